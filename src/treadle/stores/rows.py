"""What a store returns, and what the HTTP API records: rows, as frozen data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from treadle.job import ClaimedJob
from treadle.outcome import Outcome
from treadle.schedule import Rule


class Due(msgspec.Struct, frozen=True):
    """Whether there is something to claim, and if not, when there will be. After a claim that did not look at
    everything: that there may be something, and when to look."""

    now: bool
    next_at: int | None = None
    in_seconds: float | None = None
    """The same, counted from the store's own now: its clock need not be this host's."""


class Claim(list[ClaimedJob]):
    """The jobs that were claimed."""

    due: Due | None = None
    """If they are fewer than asked for: when it is worth to claim again."""
    arrived: bool = False
    """Whether something has happened that may let other jobs go: it is to be matched."""
    signalled: bool = False
    """Whether that is a signal, as far as it is known."""
    orphaned: int = 0
    """How many leases have no job: rows were broken by hand."""


class Paused(NamedTuple):
    """What is paused at one moment, as a claim needs it."""

    queues: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    ended: tuple[str, ...] = ()
    """Tenants whose pause is over, while rows may still be parked for them."""
    next_at: int | None = None
    """When the first of them ends by itself."""

    def holds(self, queue: str, type: str) -> bool:
        return queue in self.queues or type in self.types


NOTHING_PAUSED = Paused()


class ChoresDue(NamedTuple):
    """Which chores may have something to do."""

    rescue: bool
    expire: bool
    put_back: bool
    open_limits: bool


class Beat(msgspec.Struct, frozen=True):
    """What a worker learns from a heartbeat."""

    workers: Mapping[str, int]
    """The count of every living worker."""
    leases: Mapping[int, bool]
    """The numbers of its own leases, and whether each was cancelled."""
    quiet: bool = False
    """Whether somebody wants it to claim nothing."""


Flags = tuple[int, int, int | None]
"""Of a lease: its number, whether it was cancelled, and its deadline."""
Count = tuple[str, int, int | None]
"""Of a worker: its id, its count, and since when somebody wants it to claim nothing."""


class Settled(msgspec.Struct, frozen=True):
    """What a `settle` wrote."""

    at: int
    """When, by the database's time."""
    written: Sequence[tuple[ClaimedJob, Outcome]] = ()
    """As it was written: a cancelled job does not go back to wait."""
    lost: list[ClaimedJob] = []
    """Those whose lease was lost: nothing was written for them."""
    set_aside: Sequence[tuple[ClaimedJob, Outcome]] = ()
    """Those whose dedupe keys other transactions have locked: nothing was written for them yet. Settle them again."""


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one type in one queue."""

    queue: str
    type: str
    counts: dict[str, int]
    """By state."""
    oldest_due: int | None
    next_due: int | None
    limit: int | None
    exact: bool
    """False if too many are for later to count all of them."""
    others: int = 0
    """If it is the sum of that many queues and types, which have no row of their own. Its names are '' then."""


class JobCounts(NamedTuple):
    """Rows like `{"status": "pending", "count": 3}`, and whether all jobs were counted."""

    rows: list[dict[str, Any]]
    exact: bool


class Sampled(NamedTuple):
    """How long a job waited and ran, in microseconds."""

    type: str
    queue: str
    waited: int
    ran: int


class Defect(NamedTuple):
    """Rows with the same thing wrong: how many, and the id of one of them."""

    code: str
    rows: int
    sample: str


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is stored. Its times are whole microseconds."""

    tenant: str
    name: str
    type: str
    cron: str
    zone: str
    every: int
    anchor: int
    payload: str
    subject: str
    queue: str | None
    priority: int | None
    max_attempts: int | None
    missed: str
    overlap: str
    source: str
    """`code`: workers declare it. `runtime`: it was put, and no declaration changes it."""
    spec: str
    known: str
    """JSON: the specs that workers have declared, and when each was declared first."""
    revision: int
    next_at: int | None
    """None while it is paused without an end."""
    paused_at: int | None
    paused_by: str | None
    paused_reason: str | None
    paused_until: int | None
    last_job: str | None
    last_moment: int | None
    skipped_at: int | None
    """The last moment without a job of its own, and why it has none."""
    skipped_why: str | None
    created_at: int
    updated_at: int

    @property
    def rule(self) -> Rule:
        return Rule(cron=self.cron, zone=self.zone, every=self.every, anchor=self.anchor)


class Fired(NamedTuple):
    """What one transaction fired: how many jobs, and whether more schedules are due."""

    jobs: int
    more: bool


class AuditRow(msgspec.Struct, frozen=True):
    """Who changed what."""

    who: str
    action: str
    what: str
    count: int = 1
    tenant: str = ""
    id: str = ""
    at: int = 0


class Token(msgspec.Struct, frozen=True):
    """A caller of the HTTP API, by its token."""

    hash: str
    name: str
    scopes: tuple[str, ...]
    tenant: str = ""
    expires_at: int | None = None
    created_at: int = 0


class Operation(msgspec.Struct, frozen=True):
    """An action on many jobs, which is carried out chunk by chunk."""

    id: str
    who: str
    action: str
    filter: str
    total: int
    done: int = 0
    skipped: int = 0
    position: str | None = None
    started_at: int = 0
    updated_at: int = 0
    ended_at: int | None = None
    error: str | None = None
    changes: str = "{}"
    """Of a reschedule: a `Reschedule` as JSON."""


class BulkChunk(NamedTuple):
    """What one transaction of a bulk action did, and where the next one continues; None if it was the last."""

    done: int
    skipped: int
    position: str | None
