"""The app of the worker processes: handlers that do nothing, so that only windlass is measured."""

from __future__ import annotations

import time

from windlass import Windlass

wl = Windlass()


@wl.job
async def noop(n: int) -> None:
    """On the event loop."""


@wl.job
def noop_thread(n: int) -> None:
    """In a thread."""


@wl.job(run="process")
def noop_process(n: int) -> None:
    """In a child process."""


@wl.job(concurrency=1)
async def limited(n: int) -> None:
    """Never runs here: the one lease it may have is taken."""


@wl.job
async def stamp() -> int:
    """The moment at which its handler started."""
    return time.time_ns()
