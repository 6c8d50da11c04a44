"""How an attempt ended, and the pure decisions that follow from it."""

from __future__ import annotations

import traceback as tracebacks
from enum import Enum, StrEnum
from typing import Self

import msgspec

from treadle import clock, codec
from treadle.backoff import LONGEST, Backoff, backoff_delay
from treadle.batch import NewBatch
from treadle.clock import Duration
from treadle.errors import BadOption
from treadle.job import ClaimedJob, NewJob, Status, Suspicion
from treadle.log_lines import NewLine
from treadle.settings import checked_seconds
from treadle.steps import NewStep
from treadle.waits import NewSignal, NewWait

_PACKAGE = __file__.rpartition("outcome")[0]


class OutcomeKind(StrEnum):
    COMPLETED = "completed", Status.COMPLETED
    RETRIED = "retried"
    SNOOZED = "snoozed"
    SUSPENDED = "suspended"
    FAILED = "failed", Status.FAILED
    CANCELLED = "cancelled", Status.CANCELLED
    RELEASED = "released"

    final: Status | None
    """The status that the job has ended in, or None if it goes back to wait."""

    def __new__(cls, value: str, final: Status | None = None) -> Self:
        kind = str.__new__(cls, value)
        kind._value_, kind.final = value, final
        return kind

    __hash__ = str.__hash__  # an enum's own is written in Python, and this one is hashed for every job


UNSUCCESSFUL = frozenset((OutcomeKind.RETRIED, OutcomeKind.FAILED))
"""The outcomes whose attempts are kept with the job."""


class StopReason(Enum):
    """Why the worker stops an attempt before its handler has ended."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"
    RELEASED = "released"
    LOST = "lost"


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How an attempt ended. The runner returns it, the store writes it."""

    kind: OutcomeKind
    result: str | None = None
    delay: int = 0
    """Microseconds until the job is due again, if it goes back to wait."""
    error: str | None = None
    traceback: str | None = None
    follow_ups: tuple[NewJob, ...] = ()
    suspicion: Suspicion | None = None
    """None: as it was."""
    charged: int = 1
    """Attempts that this run costs: none if it is given back, more if earlier crashes turn out to be its own."""
    started: bool = True
    """False if its handler was not called. Then the job still expires, if it does, and its rates get a start back."""
    written: bool = False
    """True if `ctx.transaction()` has stored it already."""
    holds: str | None = None
    """The limit whose key starts nothing before this job; '': all that have a rate, or else all."""
    steps: tuple[NewStep, ...] = ()
    """Steps that are stored with it: of a suspended handler, what it waits in."""
    waits: tuple[NewWait, ...] = ()
    """What a suspended handler waits for. Without any, it waits for time alone."""
    signals: tuple[NewSignal, ...] = ()
    logs: tuple[NewLine, ...] = ()
    """What the handler has logged and nobody has stored yet."""
    otherwise: Outcome | None = None
    """It was stored in a transaction of the handler's own. If that was not committed, this is how the attempt ended."""
    batches: tuple[NewBatch, ...] = ()
    """Batches that its handler made. Their members are among the follow-ups."""


def _checked_delay(option: str, delay: Duration) -> float:
    return checked_seconds(option, delay, "a delay is 0 seconds or more, and finite", most=LONGEST)


class Snooze(Exception):
    """Raise it in a handler to run again later, without using up an attempt. After `at_most` snoozes the job fails."""

    def __init__(self, seconds: Duration, *, at_most: int | None = None) -> None:
        seconds = _checked_delay("Snooze", seconds)
        if at_most is not None and (not isinstance(at_most, int) or at_most < 0):
            raise BadOption("at_most", at_most, "a number of snoozes, 0 or more; None for no limit")
        super().__init__(f"snoozed for {seconds:g} s")
        self.seconds, self.at_most = seconds, at_most


class RateLimited(Snooze):
    """Raise it in a handler when the service it calls asks to come back later: no job with the same key of the limit
    starts before. `limit` names it; default: those of its limits that have a rate, or else all of them."""

    def __init__(self, retry_after: Duration, *, limit: str = "", at_most: int | None = None) -> None:
        if not isinstance(limit, str):
            raise BadOption("limit", limit, "the name of a limit of this type; leave it out for those with a rate")
        super().__init__(retry_after, at_most=at_most)
        self.limit = limit


class Retry(Exception):
    """Raise it in a handler to fail this attempt and try again, after `delay` (seconds, or a timedelta) if given."""

    def __init__(self, reason: str = "retry requested", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.delay = None if delay is None else _checked_delay("Retry", delay)


class Suspend(BaseException):
    """Ends a run whose handler waits: it runs again when that is over. No handler should catch it."""


class Fail(Exception):
    """Raise it in a handler to fail the job at once: another attempt would not help."""


class Crash(Exception):
    """The handler killed the process that ran it."""


class TimedOut(Exception):
    """The attempt reached its timeout."""

    @classmethod
    def after(cls, seconds: float) -> Self:
        return cls(f"timed out after {seconds:g} s")


NOT_COMMITTED = (
    "its transaction did not commit; after ctx.complete(…, connection=…), commit it before the handler returns"
)
COMPLETED = Outcome(OutcomeKind.COMPLETED)
RELEASED = Outcome(OutcomeKind.RELEASED, charged=0)
UNSTARTED = Outcome(OutcomeKind.RELEASED, charged=0, started=False)
CANCELLED = Outcome(OutcomeKind.CANCELLED, error="cancelled", charged=0)


def decide(claimed: ClaimedJob, error: BaseException, backoff: Backoff) -> Outcome:
    """The outcome of an attempt that raised this exception. There is one, even if the exception cannot be read."""
    try:
        return _decide(claimed, error, backoff)
    except BaseException as broken:
        problem = Crash(f"{type(error).__name__}, which cannot be read: {type(broken).__name__}")
        return _decide(claimed, problem, backoff)


def _decide(claimed: ClaimedJob, error: BaseException, backoff: Backoff) -> Outcome:
    if isinstance(error, Snooze):
        return _snoozed(claimed, error)
    text, trace = describe(error)
    spent = claimed.failures >= claimed.max_attempts
    if spent or isinstance(error, Fail):
        return Outcome(OutcomeKind.FAILED, error=text, traceback=trace)
    own = error.delay if isinstance(error, Retry) else None
    delay = backoff_delay(backoff, claimed.failures) if own is None else clock.seconds(own)
    return Outcome(OutcomeKind.RETRIED, delay=delay, error=text, traceback=trace)


def after_stop(claimed: ClaimedJob, reason: StopReason, timeout: float | None, backoff: Backoff) -> Outcome | None:
    """The outcome of an attempt that the worker stopped. None if the worker has lost the job."""
    if reason is StopReason.CANCELLED:
        return CANCELLED
    if reason is StopReason.TIMED_OUT and timeout is not None:
        return decide(claimed, TimedOut.after(timeout), backoff)
    return RELEASED if reason is StopReason.RELEASED else None


def after_crash(claimed: ClaimedJob, reason: str, *, alone: bool, outside: bool = False, delay: int = 0) -> Outcome:
    """The outcome of an attempt whose process died.

    A job that ran alone caused it. One of several may be innocent: its attempt is given back, and it runs again in a
    process of its own, once. If that one dies too, both crashes are charged, so that nothing loops forever.
    If the process was killed from `outside`, no job caused it: each job loses an attempt, and nothing else.
    """
    if not alone and not outside and claimed.suspicion == Suspicion.NONE:
        text = f"{reason}; other jobs ran there too, so it runs again, alone"
        return Outcome(OutcomeKind.RETRIED, error=text, suspicion=Suspicion.SUSPECTED, charged=0)
    earlier = 1 if claimed.suspicion == Suspicion.SUSPECTED and not outside else 0
    kind = OutcomeKind.FAILED if claimed.failures + earlier >= claimed.max_attempts else OutcomeKind.RETRIED
    suspicion = None if outside else Suspicion.GUILTY
    return Outcome(kind, delay=delay, error=reason, suspicion=suspicion, charged=1 + earlier)


def _snoozed(claimed: ClaimedJob, snooze: Snooze) -> Outcome:
    if snooze.at_most is not None and claimed.snoozes >= snooze.at_most:
        return Outcome(OutcomeKind.FAILED, error=f"still not ready after {claimed.snoozes} snoozes")
    holds = snooze.limit if isinstance(snooze, RateLimited) else None
    return Outcome(OutcomeKind.SNOOZED, delay=clock.seconds(snooze.seconds), charged=0, holds=holds)


def describe(error: BaseException) -> tuple[str, str | None]:
    """One line and the traceback, even for an exception that cannot be printed."""
    try:
        message = str(error)
    except BaseException:
        message = "<unprintable>"
    name = type(error).__name__
    own = isinstance(error, Fail | Retry | Crash | TimedOut)
    text = message if own and message else f"{name}: {message}" if message else name
    return codec.clip(text) or name, codec.clip(_trace(error))


def _trace(error: BaseException) -> str | None:
    """Its traceback from the handler on: treadle's own frames before it help nobody."""
    trace = error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    try:
        return "".join(tracebacks.format_exception(type(error), error, trace))
    except BaseException:
        return "".join(tracebacks.format_tb(trace))
