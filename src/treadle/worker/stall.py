"""What blocks an event loop: the line of your code that its thread is at."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType

_PACKAGES = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib")})
_STDLIB = (*{f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")}, "<frozen ")
_LOOPS = ("asyncio.events", "asyncio.runners", "treadle.worker.host")
"""Modules that run what is on the loop. What has called them is not on it."""


def blocking_line(thread: int) -> str:
    """`shop.py:12, in fetch: time.sleep(60)`; '' if the thread runs no code of yours.

    It is the innermost line outside of installed packages. An app that is itself installed has none: then it is the
    outermost line, which is the handler's.
    """
    frames = list(_frames(sys._current_frames().get(thread)))
    own = [frame for frame in frames if not frame.f_code.co_filename.startswith(_PACKAGES)]
    found = own[0] if own else frames[-1] if frames else None
    return "" if found is None else _described(found)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """From the innermost one to the event loop, without those of Python and treadle."""
    while frame is not None and (module := str(frame.f_globals.get("__name__"))) not in _LOOPS:
        path = frame.f_code.co_filename
        is_pythons = path.startswith(_STDLIB) and not path.startswith(_PACKAGES)
        if not is_pythons and module.partition(".")[0] != "treadle":
            yield frame
        frame = frame.f_back


def _described(frame: FrameType) -> str:
    code, line = frame.f_code, frame.f_lineno
    source = linecache.getline(code.co_filename, line).strip()
    return f"{code.co_filename}:{line}, in {code.co_qualname}: {source}"
