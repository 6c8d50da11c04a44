"""What ends the wait of an idle worker: another process committed, this one enqueued, or a settle made room."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from treadle.stores.base import Engine
from treadle.stores.base_loop import Watch
from treadle.worker.parts import started_thread

log = logging.getLogger("treadle")

POLL = 1.0
"""Seconds after which an idle worker looks by itself. Everything that wakes it earlier is a hint."""
HEARING = 6
"""It looks this many times more rarely while it hears commits on the event loop."""


class Wakeup:
    """A hint that there may be something to claim, given by the commits that a watch hears.

    The event loop waits for what the watch hears: a thread in between costs a tenth of the time of a pickup. Only where
    there is nothing to wait for, and until a lost connection is back, a thread does.
    """

    def __init__(self, store: Engine) -> None:
        self.hint = asyncio.Event()
        self.thread = started_thread("treadle-watch")
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._watch: Watch | None = None
        self._socket: int | None = None
        """What the event loop waits for."""
        self._busy: asyncio.Future[None] | None = None
        """What the thread does."""
        self._closed = threading.Event()

    async def open(self) -> None:
        """Begin to watch before the first claim: from now on no commit goes unnoticed."""
        self._watch = await self._loop.run_in_executor(self.thread, self._store.watch)
        self._follow()

    def wake(self) -> None:
        """Give a hint, from any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self.hint.set)

    async def wait(self, seconds: float | None) -> None:
        """Until there is a hint, this many seconds have passed, or it is time to poll."""
        if self._busy is None or self._busy.done():
            self._follow()
            if self._socket is None:
                self._in_thread(self._wait_for_commit, self.hint.set)
        poll = POLL if self._socket is None else HEARING * POLL
        timer = self._loop.call_later(poll if seconds is None else min(poll, seconds), self._time_is_over)
        try:
            await self.hint.wait()
        finally:
            timer.cancel()

    def _time_is_over(self) -> None:
        self.hint.set()
        if self._socket is not None and (self._busy is None or self._busy.done()):
            self._in_thread(self._check, self._follow)

    def _in_thread(self, call: Callable[[], None], then: Callable[[], None]) -> None:
        self._busy = self._loop.run_in_executor(self.thread, call)
        self._busy.add_done_callback(lambda _: then())

    def _follow(self) -> None:
        """Let the event loop wait for what the watch hears on now."""
        socket = None if self._watch is None or self._closed.is_set() else self._watch.fileno()
        if socket != self._socket and self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket = None
            self.hint.set()  # the next wait has the thread listen again
        if socket is not None and self._socket is None:
            with contextlib.suppress(NotImplementedError):  # by the event loop of Windows
                self._loop.add_reader(socket, self._readable)
                self._socket = socket
                self._hear()  # of what came in between

    def _readable(self) -> None:
        """The worker is busy if it has not followed the last hint yet. It claims anyway, and listens when it waits."""
        if self.hint.is_set() and self._socket is not None and self._watch is not None and self._watch.can_rest:
            self._loop.remove_reader(self._socket)
            self._socket = None
        else:
            self._hear()

    def _hear(self) -> None:
        try:
            looks = () if self._watch is None else self._watch.heard()
        except Exception as error:
            log.warning("cannot watch for commits, so looking for jobs once a second: %s", error)
            self._drop_watch()
            looks = ()
        self._follow()
        for after in looks:
            if after > 0:
                self._loop.call_later(after, self.hint.set)
            else:
                self.hint.set()

    def _check(self) -> None:
        try:
            if self._watch is not None:
                self._watch.check()
        except Exception:
            log.exception("cannot find out whether commits are heard")

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
        """From any thread. The event loop no longer hears anything, if it still runs."""
        self._closed.set()
        if (watch := self._watch) is not None:
            watch.close()
        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._follow)
