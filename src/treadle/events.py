"""What hooks are told, and who wants to be told what. Telling them is in `telling.py`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Literal, TypeVar, get_args, overload

import msgspec

from treadle import clock, codec
from treadle.errors import BadOption, UnknownEvent
from treadle.job import ClaimedJob
from treadle.outcome import Outcome, OutcomeKind

EventName = Literal[
    "job_started",
    "job_completed",
    "job_retried",
    "job_snoozed",
    "job_failed",
    "job_cancelled",
    "job_released",
]
"""A start, and an end for each kind of outcome."""

NAMES: tuple[EventName, ...] = get_args(EventName)
_OUTCOMES: dict[OutcomeKind, EventName] = {OutcomeKind(name.removeprefix("job_")): name for name in NAMES[1:]}
ERROR = 1_000
"""Characters of an error that an event carries: many events may wait for a slow hook."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened to a job, and is committed."""

    name: EventName
    id: str
    """The job's."""
    type: str
    queue: str
    tenant: str
    subject: str
    attempt: int
    max_attempts: int
    lease: int
    """Its number: no two attempts share one, not even of one job."""
    worker_id: str
    """'' for a job in your own hands."""
    started_at: datetime
    ended_at: datetime | None = None
    """None for `job_started`."""
    busy: float = 0.0
    """Seconds from the claim to the outcome, as `usage` counts them."""
    waiting: float
    """Seconds from when it was due to the claim."""
    error: str | None = None

    def ended(self, at: int) -> Event:
        """The same, now that it is known when."""
        busy = at - clock.from_datetime(self.started_at)
        return msgspec.structs.replace(self, ended_at=clock.to_datetime(at), busy=max(0, busy) / clock.SECOND)


Hook = Callable[[Event], Any]
H = TypeVar("H", bound=Hook)


class Hooks:
    """The functions that want to be told, by event. False while there are none."""

    def __init__(self) -> None:
        self.plain: dict[str, tuple[Hook, ...]] = {}
        self.asynchronous: dict[str, tuple[Hook, ...]] = {}

    @overload
    def on(self, event: EventName, hook: H, /) -> H: ...
    @overload
    def on(self, event: EventName, /) -> Callable[[H], H]: ...
    def on(self, event: EventName, hook: Any = None, /) -> Any:
        """Call `hook` with an `Event` whenever this has happened to a job that this process runs.

        Also a decorator: `@td.on("job_failed")`. Hooks are called after the commit, apart from the work: one that
        raises is logged, one that is slow delays other hooks and no job. A crash may swallow an event.
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
        return hook

    def __bool__(self) -> bool:
        return bool(self.plain or self.asynchronous)

    def wants(self, event: str) -> bool:
        """Whether anybody is to be told of this."""
        return event in self.plain or event in self.asynchronous

    def started(self, claimed: Iterable[ClaimedJob], worker: str) -> list[Event]:
        """What to tell of a claim."""
        return [_event("job_started", c, worker) for c in claimed] if self.wants("job_started") else []

    def ended(self, written: Iterable[tuple[ClaimedJob, Outcome]], at: int | None, worker: str) -> list[Event]:
        """What to tell of outcomes that were committed. `at`: None if that is still to be found out."""
        wanted: dict[OutcomeKind, EventName] = {
            kind: _OUTCOMES[kind] for kind in OutcomeKind if self.wants(_OUTCOMES[kind])
        }
        return [_event(wanted[o.kind], c, worker, at, o.error) for c, o in written if o.kind in wanted]


def _event(name: EventName, c: ClaimedJob, worker: str, at: int | None = None, error: str | None = None) -> Event:
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
        started_at=clock.to_datetime(c.started_at),
        ended_at=None if at is None else clock.to_datetime(at),
        busy=0.0 if at is None else max(0, at - c.started_at) / clock.SECOND,
        waiting=max(0, c.started_at - c.run_at) / clock.SECOND,
        error=codec.clip(error, ERROR),
    )
