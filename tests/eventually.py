"""The one way in which tests wait for something to become true."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], within: float = 60, *, every: float = 0.01) -> T:
    """Return what `look` returns as soon as that is true. Missing the deadline means broken, not slow.

    `every`: seconds between two looks.
    """
    deadline = time.monotonic() + within
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still {found!r} after {within:g} s: {_source(look)}")
        time.sleep(every)
    return found


def _source(look: Callable[[], object]) -> str:
    """The line of a lambda, or the name of a function."""
    if getattr(look, "__name__", "") != "<lambda>":
        return getattr(look, "__qualname__", repr(look))
    try:
        return inspect.getsource(look).strip()
    except OSError:
        return repr(look)
