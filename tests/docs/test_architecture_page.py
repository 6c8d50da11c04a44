"""docs/architecture.md follows a real job: what it names exists, and happens in the order in which it says so."""

from __future__ import annotations

import ast
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from tests.docs.blocks import ROOT, prose_of
from treadle import Treadle

PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "treadle"

_STEP = re.compile(r"`([\w/]+\.py): ([\w.]+)`")


def test_every_file_that_is_named_exists() -> None:
    named = re.findall(r"src/treadle/[\w/]+\.\w+", PAGE.read_text("utf-8"))
    assert [path for path in named if not (ROOT / path).is_file()] == []
    assert named


def test_every_function_that_is_named_exists() -> None:
    steps = _STEP.findall(prose_of(PAGE))
    assert [f"{file}: {name}" for file, name in steps if name not in _functions(SOURCE / file)] == []
    assert steps


def test_the_steps_are_in_the_order_of_the_real_calls(tmp_path: Path) -> None:
    _, _, section = prose_of(PAGE).partition("## One job, followed\n")
    aside = re.compile(r"\(A handler that returns.*?\)", flags=re.DOTALL)
    steps = _STEP.findall(aside.sub("", section.partition("\n## ")[0]))
    assert len(steps) > 10

    calls = _calls_of_a_job(f"sqlite:///{tmp_path}/jobs.db")
    remaining = iter(calls)
    out_of_order = [f"{file}: {name}" for file, name in steps if (file, name) not in remaining]
    assert out_of_order == []


def _calls_of_a_job(url: str) -> list[tuple[str, str]]:
    """Every function of treadle, as it is called, while a job is enqueued, run and settled as a failure."""
    td = Treadle(url)

    @td.job
    def fails() -> None:
        raise ValueError("the first attempt fails")

    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            file = Path(frame.f_code.co_filename).relative_to(SOURCE)
            calls.append((file.as_posix(), frame.f_code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        fails.enqueue()
        assert td.tick().retried == 1
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None is what ends it
    return calls


def _functions(file: Path) -> set[str]:
    """The functions of a file, methods as Class.method."""
    names: set[str] = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        names |= {f"{prefix}{f.name}" for f in inside if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)}
    return names
