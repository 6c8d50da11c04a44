"""An enqueue on SQLite is a short path: a reader can follow it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import treadle
from treadle import Treadle

ROOT = Path(treadle.__file__).parent
PURE = {"codec", "ids", "clock", "job"}
"""Not counted: values in, values out."""


def test_an_enqueue_passes_at_most_28_functions_in_10_files(tmp_path: Path) -> None:
    td = Treadle(f"sqlite:///{tmp_path}/jobs.db")

    @td.job
    def hello(n: int) -> None: ...

    hello.enqueue(1)  # the first one opens the database
    seen: set[tuple[Path, str]] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code, path = frame.f_code, Path(frame.f_code.co_filename)
        ours = path.is_relative_to(ROOT) and path.stem not in PURE and not code.co_name.startswith("<")
        if event == "call" and ours:
            seen.add((path, code.co_qualname))

    sys.setprofile(note)
    try:
        hello.enqueue(2)
    finally:
        sys.setprofile(None)

    assert 10 < len(seen) <= 28, sorted(name for _, name in seen)
    assert len({path for path, _ in seen}) <= 10
