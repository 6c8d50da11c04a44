"""What ends the wait of an idle worker: another process committed, this one enqueued, or a settle made room."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading

from treadle.stores.base import Engine, Watch
from treadle.worker.parts import started_thread

log = logging.getLogger("treadle")

POLL = 1.0
"""Seconds after which an idle worker looks by itself. Everything that wakes it earlier is a hint."""


class Wakeup:
    """A hint that there may be something to claim, and a thread that watches for commits."""

    def __init__(self, store: Engine) -> None:
        self.hint = asyncio.Event()
        self.thread = started_thread("treadle-watch")
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._watch: Watch | None = None
        self._watching: asyncio.Future[None] | None = None
        self._closed = threading.Event()

    async def open(self) -> None:
        """Begin to watch before the first claim: from now on no commit goes unnoticed."""
        self._watch = await self._loop.run_in_executor(self.thread, self._store.watch)

    def wake(self) -> None:
        """Give a hint, from any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self.hint.set)

    async def wait(self, seconds: float | None) -> None:
        """Until there is a hint, this many seconds have passed, or it is time to poll. Meanwhile the thread watches
        for commits."""
        if self._watching is None or self._watching.done():
            self._watching = self._loop.run_in_executor(self.thread, self._wait_for_commit)
            self._watching.add_done_callback(lambda _: self.hint.set())
        timer = self._loop.call_later(POLL if seconds is None else min(POLL, seconds), self.hint.set)
        try:
            await self.hint.wait()
        finally:
            timer.cancel()

    def _wait_for_commit(self) -> None:
        """Without a watch, the worker looks once a second. Each time this thread tries to get a new one."""
        try:
            if self._watch is None:
                self._watch = self._store.watch()  # something may have been missed: look at once
            else:
                self._watch.wait(POLL)
        except Exception as error:
            log.warning("cannot watch for commits, so looking for jobs once a second: %s", error)
            self._drop_watch()
            self._closed.wait(POLL)

    def _drop_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            with contextlib.suppress(Exception):  # it is broken
                watch.close()

    def close(self) -> None:
        self._closed.set()
        if (watch := self._watch) is not None:
            watch.close()
