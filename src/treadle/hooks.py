"""Calls hooks, apart from the work: whatever they do, jobs go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from treadle import clock
from treadle.errors import TreadleError
from treadle.events import Event, Hook, Hooks
from treadle.results import run_on_a_loop

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger("treadle")

BACKLOG = 10_000
"""Events that may wait for slow hooks. Those beyond are dropped: neither jobs nor memory pay for a hook."""
CHUNK = 100
"""Events that async hooks are told before the rest of the loop has its turn."""
CLOSE_SECONDS = 5.0
"""Seconds that hooks have for what is left when their worker stops."""


def dispatch_now(hooks: Hooks, events: Sequence[Event]) -> None:
    """Call the hooks in this thread, for a job that is in somebody's own hands."""
    call_plain(hooks, events)
    if any(event.name in hooks.asynchronous for event in events):
        run_on_a_loop(call_async(hooks, events))


def call_plain(hooks: Hooks, events: Iterable[Event]) -> None:
    for event in events:
        for hook in hooks.plain.get(event.name, ()):
            try:
                hook(event)
            except BaseException:  # even SystemExit: it would end the thread, and nothing else
                _failed(hook, event)


async def call_async(hooks: Hooks, events: Iterable[Event]) -> None:
    for event in events:
        for hook in hooks.asynchronous.get(event.name, ()):
            try:
                await hook(event)
            except Exception:
                _failed(hook, event)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                _failed(hook, event)  # the hook's own doing


def _failed(hook: Hook, event: Event) -> None:
    name = getattr(hook, "__qualname__", repr(hook))
    log.exception("hook %s raised on %s of job %s (%s)", name, event.name, event.id, event.type)


class HookDispatcher:
    """Tells a worker's events one after another: plain hooks in a thread of their own, async ones on the loop.

    `now` is the database's time, for jobs that have ended themselves in a transaction.
    """

    def __init__(self, hooks: Hooks, now: Callable[[], int]) -> None:
        self._hooks = hooks
        self._now = now
        self._waiting: list[Event] = []
        self._in_hand: list[Event] = []
        self._dropped = 0
        self._telling: asyncio.Task[None] | None = None
        self._aside = _Aside()

    def add(self, events: Sequence[Event]) -> None:
        """Have these told soon. To be called on the loop."""
        if not events:
            return
        room = BACKLOG - len(self._waiting)
        self._waiting.extend(events[:room])
        if len(events) > room:
            if not self._dropped:
                log.warning("hooks are too slow: %d events wait for them, and more are dropped", BACKLOG)
            self._dropped += len(events) - room
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def close(self) -> None:
        """Tell what is left, and wait no longer than FAREWELL for it."""
        if self._telling is not None and not self._telling.done():
            await asyncio.wait([self._telling], timeout=CLOSE_SECONDS)
            if not self._telling.done():
                left = len(self._in_hand) + len(self._waiting)
                log.warning("hooks are too slow: the worker stops, and some of %d events were not told", left)
                self._telling.cancel()
        self._aside.close()

    async def _tell(self) -> None:
        while self._waiting:
            self._in_hand, self._waiting = self._waiting, []
            batch = await self._aside.run(self._in_thread, self._in_hand)
            for start in range(0, len(batch) if self._hooks.asynchronous else 0, CHUNK):
                await call_async(self._hooks, batch[start : start + CHUNK])
                await asyncio.sleep(0)
            self._in_hand = []
        if self._dropped:
            log.warning("hooks were too slow: %d events were dropped", self._dropped)
            self._dropped = 0

    def _in_thread(self, batch: list[Event]) -> list[Event]:
        if any(event.ended_at is None and event.name != "job_started" for event in batch):
            at = self._time()
            batch = [e if e.ended_at or e.name == "job_started" else e.ended(at) for e in batch]
        call_plain(self._hooks, batch)
        return batch

    def _time(self) -> int:
        try:
            return self._now()
        except TreadleError:  # the database is away: this host's time is near enough
            return clock.now()


class _Aside:
    """A thread that makes calls, one after another. A daemon: a hook that hangs keeps no process from ending."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[[T], R], value: T) -> R:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[R] = loop.create_future()

        def set_result(result: R) -> None:
            if not done.done():
                done.set_result(result)

        def answer() -> None:
            result = call(value)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(set_result, result)

        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="treadle-hooks", daemon=True)
            self._thread.start()
        self._inbox.put(answer)
        return await done

    def _serve(self) -> None:
        while (call := self._inbox.get()) is not None:
            call()

    def close(self) -> None:
        self._inbox.put(None)
