"""Jobs as frozen data, and the one table of their states."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from treadle import clock, codec
from treadle.dedupe import read_rule


class Status(StrEnum):
    """The status of a job. Scheduled and retrying jobs are pending with a later `run_at`. Blocked ones wait for other
    jobs or for a signal."""

    PENDING = "pending"
    BLOCKED = "blocked"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in FINAL


class State(NamedTuple):
    """A state is finer than a status: pending is queued, scheduled or retrying. Each row says how it is shown."""

    name: str
    """In filters, counts, metrics and JSON."""
    status: Status
    label: str
    """On pages."""
    tone: Literal["neutral", "calm", "accent", "warn", "good", "bad", "muted"]
    """Its color, on pages and on a terminal."""
    mark: str
    """On a terminal."""
    final: bool = False
    in_summary: bool = True
    """Whether it has a column in short tables: it waits, it runs, or it needs you."""


STATES = (
    State("queued", Status.PENDING, "Queued", "neutral", "○"),
    State("scheduled", Status.PENDING, "Scheduled", "calm", "○"),
    State("retrying", Status.PENDING, "Retrying", "warn", "○"),
    State("blocked", Status.BLOCKED, "Blocked", "calm", "◌"),
    State("processing", Status.PROCESSING, "Running", "accent", "◐"),
    State("completed", Status.COMPLETED, "Completed", "good", "●", final=True, in_summary=False),
    State("failed", Status.FAILED, "Failed", "bad", "✗", final=True),
    State("cancelled", Status.CANCELLED, "Cancelled", "muted", "⊘", final=True, in_summary=False),
)
"""The one table of states. Every list, label, tab, metric and template is derived from it."""
STATE_NAMES = tuple(state.name for state in STATES)
SUMMARY = tuple(state for state in STATES if state.in_summary)
FINAL = tuple(state.status for state in STATES if state.final)
WAITING = tuple(state.name for state in STATES if state.status is Status.PENDING)
"""The states of pending jobs: due, for a later time, or waiting after a failure."""
STATE_OF = {**{state.status.value: state for state in reversed(STATES)}, **{state.name: state for state in STATES}}
"""By name. A status with several states is shown as the first of them."""


def state_of(job: Job, now: datetime) -> str:
    if job.status is not Status.PENDING:
        return job.status.value
    if job.run_at <= now:
        return "queued"
    return "retrying" if job.attempts else "scheduled"


class Suspicion(IntEnum):
    """Whether a job may have killed its process. A suspect runs in a process of its own."""

    NONE = 0
    SUSPECTED = 1
    """It ran when a process with several jobs died, and no job is charged for that yet."""
    GUILTY = 2
    """It was alone when its process died."""


class Progress(msgspec.Struct, frozen=True):
    """The progress that a handler last reported."""

    fraction: float
    message: str = ""


if TYPE_CHECKING:  # the standard library has defaults of type variables since Python 3.13
    import typing_extensions

    R = typing_extensions.TypeVar("R", covariant=True, default=Any)
else:
    R = TypeVar("R", covariant=True)


class Job(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """One stored unit of work, as read at one moment."""

    id: str
    type: str
    queue: str
    tenant: str
    subject: str
    payload: dict[str, Any]
    priority: int
    status: Status
    run_at: datetime
    attempts: int
    max_attempts: int
    snoozes: int = 0
    created_at: datetime
    updated_at: datetime
    worker_id: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    error: str | None = None
    if TYPE_CHECKING:
        result: R | None = None
        """What its handler returned."""
    else:
        result: Any = None
    progress: Progress | None = None
    schedule: str | None = None
    """The name of the schedule that fired it, and the moment for which it did."""
    fired_at: datetime | None = None
    dedupe_mode: str | None = None
    """How it was enqueued, if it has a dedupe key: "return", "replace", …"""
    start_by: datetime | None = None
    """If it is not started by then, it is cancelled. None once it has started, and if it has no such limit."""
    waits_for_key: bool = False
    """Whether it waits until the holder of its dedupe key has ended, whatever its run_at is. Not if it is blocked."""
    origin: str | None = None
    """The id of the job whose handler started it."""
    batch: str | None = None
    """The name of the batch that it is a member of."""


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A checked and encoded request with its id, ready to be stored."""

    id: str
    type: str
    queue: str = "default"
    tenant: str = ""
    subject: str = ""
    payload: str = "{}"
    priority: int = 0
    max_attempts: int = 5
    run_at: int | None = None
    """None: at once."""
    delay: int | None = None
    """Microseconds after the database's now."""
    dedupe: str | None = None
    dedupe_rule: str | None = None
    """As `dedupe.rule_text`."""
    traceparent: str | None = None
    start_within: int | None = None
    """Microseconds after its run_at within which it has to start."""
    schedule: str | None = None
    fired_at: int | None = None
    fair: str = ""
    """As in the policy of its type."""
    after: tuple[str, ...] = ()
    """The ids of its parents, the jobs that have to end before it starts."""
    if_failed: str = "hold"
    """What becomes of it if one of them fails: it waits on ("hold"), is cancelled ("cancel"), or runs ("run")."""
    origin: str | None = None
    batch: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing has to be looked at before it can be stored, nor changed with it."""
        return self.dedupe is None and not self.after and self.batch is None

    def parked(self, now: int) -> str:
        """Why claims do not meet it, if it is stored now: as `ready.parked`."""
        return "wait" if self.after else "fair" if self.fair and self.due(now) <= now else ""

    def started_by(self, origin: str) -> NewJob:
        """The same, as a subjob of that one."""
        return msgspec.structs.replace(self, origin=origin)

    def due(self, now: int) -> int:
        """The earliest start, if it is stored now."""
        return self.run_at if self.run_at is not None else now + (self.delay or 0)

    def as_stored(self, now: int, created: datetime | None = None) -> Job:
        """The job that it becomes. `created`: the same moment as `now`."""
        created, due = created or clock.to_datetime(now), self.due(now)
        job = Job(
            id=self.id,
            type=self.type,
            queue=self.queue,
            tenant=self.tenant,
            subject=self.subject,
            payload=codec.decode(self.payload),
            priority=self.priority,
            status=Status.BLOCKED if self.after else Status.PENDING,
            run_at=created if due == now else clock.to_datetime(due),
            attempts=0,
            max_attempts=self.max_attempts,
            created_at=created,
            updated_at=created,
            origin=self.origin,
            batch=self.batch,
        )
        if self.dedupe is None and self.start_within is None and self.schedule is None:  # most are plain
            return job
        return msgspec.structs.replace(
            job,
            dedupe_mode=None if self.dedupe is None else read_rule(self.dedupe_rule).mode,
            start_by=None if self.start_within is None else clock.moment(due + self.start_within),
            schedule=self.schedule,
            fired_at=clock.optional_moment(self.fired_at),
        )


class Reschedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When, how urgently and in which queue a waiting job is to run. None: as before."""

    run_at: int | None = None
    delay: int | None = None
    """Microseconds after the database's now."""
    priority: int | None = None
    queue: str | None = None

    def due(self, now: int) -> int | None:
        """The new earliest start, if it changes."""
        return self.run_at if self.delay is None else now + self.delay

    def __str__(self) -> str:
        """For people: `run_at=2026-11-17T08:00:00Z priority=5 queue=mail`."""
        at = {} if self.run_at is None else {"run_at": clock.moment(self.run_at).isoformat().replace("+00:00", "Z")}
        after = {} if self.delay is None else {"delay": f"{self.delay / clock.SECOND:g}"}
        others = {"priority": self.priority, "queue": self.queue}
        given = {**at, **after, **{name: value for name, value in others.items() if value is not None}}
        return " ".join(f"{name}={value}" for name, value in given.items())


UNCHANGED = Reschedule()


class ClaimedJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A leased job, with all that is needed to run and settle it. Its number and its token are the fence."""

    id: str
    number: int
    token: int
    """Random, the same for all jobs of one claim: a number can be issued again after a failover."""
    type: str
    queue: str
    tenant: str
    subject: str
    payload: str
    attempt: int
    max_attempts: int
    snoozes: int
    suspicion: int
    run_at: int
    started_at: int
    deadline: int | None
    keyed: int
    traceparent: str | None = None
    fired_at: int | None = None
    """If a schedule fired it: the moment for which it did."""
    forgiven: int | None = None
    """Attempts before its last new step, which no longer count; None if it has no stored steps."""
    batch: str | None = None
    limited: int = 0
    """1 if limits have to learn that it has ended; 2 if that frees a place of a key, for which jobs may be parked."""

    @property
    def about(self) -> dict[str, str | int]:
        """What log records say of it."""
        return {"job_id": self.id, "job_type": self.type, "attempt": self.attempt, "tenant": self.tenant}

    @property
    def fence(self) -> tuple[int, int]:
        """What no two leases share."""
        return self.number, self.token

    @property
    def failures(self) -> int:
        """How many runs count, with this one: those since the last new step. It fails after `max_attempts` of them."""
        return self.attempt - (self.forgiven or 0)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One unsuccessful run of a job."""

    attempt: int
    lease: int
    worker_id: str
    started_at: datetime
    ended_at: datetime
    outcome: str
    error: str | None
    traceback: str | None


class Page(msgspec.Struct, frozen=True):
    """Some jobs, newest first, and the cursor of the next page."""

    jobs: list[Job]
    next: str | None
    searched: int | None = None
    """If the search stopped before the page was full: after how many jobs. `next` continues there."""

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, index: int) -> Job:
        return self.jobs[index]


class Count(msgspec.Struct, frozen=True):
    """A number of jobs, exact or a lower bound."""

    value: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.value:,}" if self.exact else f"{self.value:,}+"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one group in one step of time: runs, and seconds in handlers and before them. A run
    that is neither completed nor a failure was snoozed or cancelled."""

    at: datetime
    key: tuple[str, ...]
    runs: int
    completed: int
    failures: int
    busy: float
    waiting: float


class Backlog(msgspec.Struct, frozen=True):
    """The most jobs that waited and ran in one step of time, as workers sampled them once a minute."""

    at: datetime
    queued: int
    """Due."""
    later: int
    """For a later time, after a failure too."""
    processing: int


class Latency(msgspec.Struct, frozen=True):
    """How many seconds jobs waited after they were due, and ran."""

    jobs: int
    wait_p50: float
    wait_p95: float
    run_p50: float
    run_p95: float


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failed jobs of one type that raised the same, and jobs that wait for a retry after it."""

    type: str
    error: str
    count: int
    """How many failed."""
    retrying: int
    """How many wait for their next attempt. They may still complete."""
    first_at: datetime
    last_at: datetime
    sample: str
    """The id of the newest one."""


EXPIRED = "expired: "
"""How the error of a job begins that was cancelled because it was not started in time."""


def expired_error(within: int) -> str:
    """Why a job was cancelled that was not started in time: within this many microseconds."""
    seconds = f"{within // clock.SECOND}" if within % clock.SECOND == 0 else f"{within / clock.SECOND}"
    return f"{EXPIRED}it was not started within {seconds}s of its run_at"


def can_retry(status: str, attempts: int, max_attempts: int = 5) -> bool:
    """Whether a job may run once more: it is neither running nor completed, and has attempts left."""
    return status not in (Status.COMPLETED, Status.PROCESSING) and attempts < max_attempts
