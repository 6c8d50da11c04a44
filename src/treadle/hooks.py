"""Hooks: your functions, called with an `Event` after a commit. They cannot delay or fail a job."""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, overload

import msgspec

from treadle import clock, codec
from treadle.errors import BadOption, TreadleError, UnknownEvent
from treadle.job import ClaimedJob
from treadle.outcome import Outcome, OutcomeKind
from treadle.results import run_on_a_loop

log = logging.getLogger("treadle")

EventName = Literal[
    "job_started",
    "job_completed",
    "job_retried",
    "job_snoozed",
    "job_suspended",
    "job_failed",
    "job_cancelled",
    "job_released",
]
"""A start, and an end for each kind of outcome."""

NAMES: tuple[EventName, ...] = get_args(EventName)
_OUTCOMES: dict[OutcomeKind, EventName] = {OutcomeKind(name.removeprefix("job_")): name for name in NAMES[1:]}
ERROR = 1_000
"""Characters of an error that an event carries: many events may wait for a slow hook."""
BACKLOG = 10_000
"""Events that may wait for slow hooks. Further ones are dropped, to bound memory and delay no job."""
CHUNK = 100
"""Events that async hooks are called with before the rest of the event loop has its turn."""
START_PAUSE = 0.5
"""Seconds after which a thread for the hooks that could not be started is tried again."""
CLOSE_SECONDS = 5.0
"""Seconds that hooks have for what is left when their worker stops."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened to a job, and is committed."""

    name: EventName
    id: str
    """The job's id."""
    type: str
    queue: str
    tenant: str
    subject: str
    attempt: int
    max_attempts: int
    lease: int
    """Its number: no two attempts share one, not even of one job."""
    worker_id: str
    """'' for a job that you claimed by hand."""
    started_at: datetime
    ended_at: datetime | None = None
    """None for `job_started`."""
    busy: float = 0.0
    """Seconds from the claim to the outcome, as `usage` counts them."""
    waiting: float
    """Seconds from when it was due to the claim."""
    error: str | None = None
    traceback: str | None = None
    """Of an attempt that failed, as `td.attempts` has it."""
    exception: BaseException | None = None
    """What the handler raised. None if it ran in a child process, or was stopped by its worker."""

    def ended(self, at: int) -> Event:
        """The same event, with the time of its end."""
        busy = at - clock.from_datetime(self.started_at)
        return msgspec.structs.replace(self, ended_at=clock.moment(at), busy=max(0, busy) / clock.SECOND)


Hook = Callable[[Event], Any]
Around = Callable[[], AbstractContextManager[None]]
Written = Iterable[tuple[ClaimedJob, Outcome]]
Raised = Mapping[int, BaseException]
"""By lease number."""
NOTHING_RAISED: Raised = MappingProxyType({})
H = TypeVar("H", bound=Hook)


class Hooks:
    """The hooks of an app, by event."""

    def __init__(self) -> None:
        self.any = False
        """Whether there is a hook at all: asked for every batch of jobs."""
        self.plain: dict[str, tuple[Hook, ...]] = {}
        self.asynchronous: dict[str, tuple[Hook, ...]] = {}
        self.around: Around = nullcontext
        """What goes around each call of a hook or of `already_done` in a thread of treadle's own. Not around calls in
        the caller's thread: what it closes there, the caller may be using."""

    @overload
    def on(self, event: EventName, hook: H, /) -> H: ...
    @overload
    def on(self, event: EventName, /) -> Callable[[H], H]: ...
    def on(self, event: EventName, hook: Any = None, /) -> Any:
        """Call `hook` with an `Event` whenever this has happened to a job that this process runs.

        Also a decorator: `@td.on("job_failed")`. Hooks are called after the commit, apart from the work: one that
        raises is logged, one that is slow delays other hooks and no job. A crash may lose an event.
        """
        if event not in NAMES:
            raise UnknownEvent(event, NAMES)
        return (lambda hook: self._add(event, hook)) if hook is None else self._add(event, hook)

    def _add(self, event: EventName, hook: H) -> H:
        if not callable(hook):
            raise BadOption("on", hook, f"a function of one event: td.on({event!r}, function)")
        is_async = inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)
        hooks = self.asynchronous if is_async else self.plain
        hooks[event] = (*hooks.get(event, ()), hook)
        self.any = True
        return hook

    def wants(self, event: str) -> bool:
        return event in self.plain or event in self.asynchronous

    def started(self, claimed: Iterable[ClaimedJob], worker: str) -> list[Event]:
        return [_event("job_started", c, worker) for c in claimed] if self.wants("job_started") else []

    def ended(self, written: Written, at: int | None, worker: str, raised: Raised) -> list[Event]:
        """The events of outcomes that were committed. `at` is None if the time is not known yet."""
        wanted: dict[OutcomeKind, EventName] = {k: name for k, name in _OUTCOMES.items() if self.wants(name)}
        return [_event(wanted[o.kind], c, worker, at, o, raised.get(c.number)) for c, o in written if o.kind in wanted]


def _event(
    name: EventName,
    c: ClaimedJob,
    worker: str,
    at: int | None = None,
    outcome: Outcome | None = None,
    exception: BaseException | None = None,
) -> Event:
    return Event(
        name=name,
        id=c.id,
        type=c.type,
        queue=c.queue,
        tenant=c.tenant,
        subject=c.subject,
        attempt=c.attempt,
        max_attempts=c.max_attempts,
        lease=c.number,
        worker_id=worker,
        started_at=clock.moment(c.started_at),
        ended_at=clock.optional_moment(at),
        busy=0.0 if at is None else max(0, at - c.started_at) / clock.SECOND,
        waiting=max(0, c.started_at - c.run_at) / clock.SECOND,
        error=None if outcome is None else codec.clip(outcome.error, ERROR),
        traceback=None if outcome is None else outcome.traceback,
        exception=exception,
    )


def dispatch_now(hooks: Hooks, events: Sequence[Event], around: Around = nullcontext) -> None:
    """Call the hooks in this thread, for a job that was claimed by hand."""
    call_plain(hooks, events, around)
    if any(event.name in hooks.asynchronous for event in events):
        run_on_a_loop(call_async(hooks, events, around))


def call_plain(hooks: Hooks, events: Iterable[Event], around: Around) -> None:
    for event in events:
        for hook in hooks.plain.get(event.name, ()):
            try:
                with around():
                    hook(event)
            except BaseException:  # even SystemExit: it would end the thread, and nothing else
                _failed(hook, event)


async def call_async(hooks: Hooks, events: Iterable[Event], around: Around) -> None:
    for event in events:
        for hook in hooks.asynchronous.get(event.name, ()):
            try:
                with around():
                    await hook(event)
            except Exception:
                _failed(hook, event)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                _failed(hook, event)  # the hook raised it by itself


def _failed(hook: Hook, event: Event) -> None:
    name = getattr(hook, "__qualname__", repr(hook))
    about = {"job_id": event.id, "job_type": event.type, "attempt": event.attempt, "tenant": event.tenant}
    log.exception("hook %s raised on %s of job %s (%s)", name, event.name, event.id, event.type, extra=about)


class HookDispatcher:
    """Calls hooks with a worker's events, in order: plain hooks in a thread of their own, async ones on the loop."""

    def __init__(
        self, hooks: Hooks, now: Callable[[], int], failed: Callable[[str, BaseException | None], None]
    ) -> None:
        """`now` is the database's time, for jobs that ended in their own transaction. `failed` is called if the thread
        ends by itself."""
        self.worker = ""
        self.hooks = hooks
        self._now = now
        self._failed = failed
        self._waiting: list[Event] = []
        self._calling: list[Event] = []
        self._dropped = 0
        self._task: asyncio.Task[None] | None = None
        self._inbox: queue.SimpleQueue[tuple[Future[list[Event]], list[Event]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def started(self, claimed: Iterable[ClaimedJob]) -> None:
        self._add(self.hooks.started(claimed, self.worker))

    def ended(self, written: Written, at: int | None, raised: Raised = NOTHING_RAISED) -> None:
        self._add(self.hooks.ended(written, at, self.worker, raised))

    def _add(self, events: Sequence[Event]) -> None:
        if not events:
            return
        room = BACKLOG - len(self._waiting)
        self._waiting.extend(events[:room])
        if len(events) > room:
            if not self._dropped:
                log.warning("hooks are too slow: %d events wait for them, and more are dropped", BACKLOG)
            self._dropped += len(events) - room
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._dispatch())

    async def close(self) -> None:
        """Call the hooks with what is left, for at most CLOSE_SECONDS."""
        if self._task is not None and not self._task.done():
            can_end = self._thread is None or self._thread.is_alive()
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS if can_end else 0)
            if not self._task.done():
                left = len(self._calling) + len(self._waiting)
                log.warning("hooks are too slow: the worker stops, and some of %d events were not delivered", left)
                self._task.cancel()
        self._inbox.put(None)

    async def _dispatch(self) -> None:
        while self._waiting:
            self._calling, self._waiting = self._waiting, []
            batch = await self._in_thread(self._calling)
            for start in range(0, len(batch) if self.hooks.asynchronous else 0, CHUNK):
                await call_async(self.hooks, batch[start : start + CHUNK], self.hooks.around)
                await asyncio.sleep(0)
            self._calling = []
        if self._dropped:
            log.warning("hooks were too slow: %d events were dropped", self._dropped)
            self._dropped = 0

    async def _in_thread(self, batch: list[Event]) -> list[Event]:
        """Call the plain hooks. In a daemon thread: a hook that hangs does not keep the process from ending."""
        while self._thread is None:
            thread = threading.Thread(target=self._run_thread, name="treadle-hooks", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError as error:
                log.warning("hooks have to wait for a thread: %s", error)
                await asyncio.sleep(START_PAUSE)
        future: Future[list[Event]] = Future()
        self._inbox.put((future, batch))
        return await asyncio.wrap_future(future)

    def _run_thread(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._failed("the thread of the hooks", error)

    def _serve(self) -> None:
        while (item := self._inbox.get()) is not None:
            future, batch = item
            if any(event.ended_at is None and event.name != "job_started" for event in batch):
                at = self._time()
                batch = [e if e.ended_at or e.name == "job_started" else e.ended(at) for e in batch]
            call_plain(self.hooks, batch, self.hooks.around)
            if future.set_running_or_notify_cancel():
                future.set_result(batch)

    def _time(self) -> int:
        try:
            return self._now()
        except TreadleError:  # the database cannot be reached: this host's time is close enough
            return clock.now()
