"""What a job is, as frozen data without I/O."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any

import msgspec

from treadle import clock, codec


class Status(StrEnum):
    """Where a job is. Scheduled and retrying jobs are pending with a later `run_at`."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


class Suspicion(IntEnum):
    """Whether a job may have killed the process it ran in. A suspect runs in a process of its own."""

    NONE = 0
    SUSPECTED = 1
    """One crash near it is not charged to anybody yet."""
    GUILTY = 2
    """It was alone when its process died."""


class Progress(msgspec.Struct, frozen=True):
    """What a handler last said of how far it is."""

    fraction: float
    message: str = ""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One stored unit of work, as it was when it was read."""

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
    created_at: datetime
    updated_at: datetime
    worker_id: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    error: str | None = None
    result: Any = None
    progress: Progress | None = None


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: checked, encoded, with its id, ready to be stored."""

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
    traceparent: str | None = None

    def due(self, now: int) -> int:
        """When it may start, if it is stored now."""
        return self.run_at if self.run_at is not None else now + (self.delay or 0)

    def as_stored(self, now: int) -> Job:
        """The job that this becomes when it is stored."""
        created = clock.to_datetime(now)
        due = self.due(now)
        return Job(
            id=self.id,
            type=self.type,
            queue=self.queue,
            tenant=self.tenant,
            subject=self.subject,
            payload=codec.decode(self.payload),
            priority=self.priority,
            status=Status.PENDING,
            run_at=created if due == now else clock.to_datetime(due),
            attempts=0,
            max_attempts=self.max_attempts,
            created_at=created,
            updated_at=created,
        )


class ClaimedJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job in hand, with all that is needed to run it and to settle it. Its number is the fence."""

    id: str
    number: int
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
    """Some jobs, newest first, and the cursor of the page after them."""

    jobs: list[Job]
    next: str | None
    searched: int | None = None
    """If it is not full because the search ended: after how many jobs. `next` goes on from there."""

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, index: int) -> Job:
        return self.jobs[index]


class Count(msgspec.Struct, frozen=True):
    """How many: exactly, or that many at least."""

    value: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.value:,}" if self.exact else f"{self.value:,}+"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What was run in one stretch of time, by what it is grouped by: runs, and seconds in handlers and before them."""

    at: datetime
    key: tuple[str, ...]
    runs: int
    failures: int
    busy: float
    waiting: float


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failed jobs of one type that raised the same."""

    type: str
    error: str
    count: int
    first_at: datetime
    last_at: datetime
    sample: str
    """The newest one's id."""


def can_retry(status: str, attempts: int, max_attempts: int = 5) -> bool:
    """Whether a job in this status may run once more: not while it runs, not once it completed, not when spent."""
    return status not in (Status.COMPLETED, Status.PROCESSING) and attempts < max_attempts
