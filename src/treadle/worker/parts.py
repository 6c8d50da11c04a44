"""The parts of a worker: its loops, threads and slots. If one of them ends, the worker ends.

A part that ended silently would leave jobs `processing` while the heartbeat goes on, and nobody would rescue them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVarTuple

from treadle.errors import StoreMoved

Ts = TypeVarTuple("Ts")

log = logging.getLogger("treadle")

LOG_EVERY = 60.0
_logged_at: dict[str, float] = {}
"""When it was last logged of a database that its jobs have moved, by `time.monotonic()`."""


class Parts:
    """The tasks of a worker, and the name of the first part of any kind that ended by itself."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[str] = self._loop.create_future()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    def start(self, name: str, loop: Coroutine[Any, Any, None]) -> None:
        """Run a loop of the worker as a task. It must not end by itself. It may be cancelled."""
        self.tasks[name] = task = self._loop.create_task(loop)
        task.add_done_callback(lambda task: None if task.cancelled() else self.fail(name, task.exception()))

    def watch(self, name: str, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """A task that may end, but must not raise."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.fail(name, error)

        task.add_done_callback(ended)
        return task

    def fail(self, name: str, error: BaseException | None) -> None:
        """A part has ended. For the event loop only."""
        if not self._stopping and not self.failed.done():
            log.error("a part of the worker has ended: %s", name, exc_info=error)
            self.failed.set_result(name)

    def call(self, name: str, function: Callable[[*Ts], object], *args: *Ts) -> None:
        """Call what the event loop calls by itself. If it raised there, nobody would notice."""
        try:
            function(*args)
        except Exception as error:
            self.fail(name, error)

    def fail_from_thread(self, name: str, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self.fail, name, error)

    def stopping(self) -> None:
        """From now on, parts end on purpose."""
        self._stopping = True

    async def cancel(self, seconds: float) -> None:
        """End the tasks. One that does not end within this time is left behind."""
        for task in self.tasks.values():
            task.cancel()
        await asyncio.wait(self.tasks.values(), timeout=seconds)


def started_thread(name: str) -> ThreadPoolExecutor:
    """A pool of one thread, which runs already: when the machine is short of threads, a later start would fail."""
    pool = ThreadPoolExecutor(1, name)
    pool.submit(int).result()
    return pool


def warn(text: str, error: Exception) -> None:
    """Log why something has to wait. `text` has a place for the error. Each part finds out by itself that the jobs have
    moved: that is logged at once, and then once a minute."""
    if isinstance(error, StoreMoved):
        before, now = _logged_at.get(error.where), time.monotonic()
        if before is not None and now - before < LOG_EVERY:
            return
        _logged_at[error.where] = now
        text = "this worker runs nothing any more: %s"
    log.warning(text, error)
