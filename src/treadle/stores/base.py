"""What every store can do: the contract, in verbs, split by who calls them. `tests/conformance` holds each store to it.

A store is synchronous and may be used from any thread. It never calls up: it returns what happened.
"""

# pyright: reportReturnType=false
# A method of a Protocol is its docstring here. (pyright would want a `...` after each.)

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from treadle.diagnosis import JobFacts
from treadle.filters import Filter
from treadle.job import (
    Attempt,
    Backlog,
    ClaimedJob,
    FailureGroup,
    Job,
    NewJob,
    Page,
    Progress,
    Reschedule,
    Status,
    Usage,
)
from treadle.outcome import Outcome
from treadle.stores.base_control import Limiting, Pausing
from treadle.stores.base_durable import Durable
from treadle.stores.base_loop import LoopClaims, Watch
from treadle.stores.base_schedules import Scheduling
from treadle.stores.base_web_records import WebRecords
from treadle.stores.rows import (
    Beat,
    BulkChunk,
    ChoresDue,
    Claim,
    Defect,
    Due,
    JobCounts,
    QueueStats,
    Sampled,
    Settled,
)

LAST_PRUNED = 1_000
"""A prune may delete fewer jobs than it is asked for, but no fewer than these, unless they are the last ones."""
RECLAIM_AFTER = 5_000_000
"""Microseconds past its deadline after which a job of a worker can be stuck: its worker goes first."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs a worker asks for."""

    limit: int
    types: Mapping[str, int | None] | None = None
    """Each type with its timeout in microseconds; None: every type."""
    queues: tuple[str, ...] = ()
    """Empty: every queue."""
    lease_for: int | None = None
    """For a lease taken by hand: microseconds until its deadline, whatever the timeout of its type is."""


class TypePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How workers run a type: for producers that know only its name, and for the limits."""

    type: str
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 5
    concurrency: int | None = None
    timeout: int | None = None
    redact: str = "[]"
    """As `Redactor.published`: names that its app hides, too."""
    limits: str = "[]"
    """JSON: the limits that its code declares, but for its concurrency."""
    fair: str = ""
    """`tenant` if its tenants take turns."""
    arguments: str = ""
    """To publish: the JSON schema of its handler's arguments. `policies` leaves it out, `arguments` returns it."""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker as the others see it."""

    id: str
    name: str
    concurrency: int
    queues: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    host: Mapping[str, Any] = {}
    version: str = ""
    beats: int = 0
    started_at: int = 0
    seen_at: int = 0
    stalled_at: int | None = None
    """Since when its event loop is blocked."""
    quiet_at: int | None = None
    """Since when somebody wants it to claim nothing."""
    schedules: Mapping[str, str] = {}
    """The schedules that its code declares: each name, and the hash of what is declared."""
    declared: Mapping[str, str] = {}
    """What its code declares of each type: the hash of it."""
    doing: tuple[tuple[str, int, int], ...] = ()
    """The jobs that it runs: each type, how many, and since when the first."""
    broken: tuple[str, ...] = ()
    """Columns of its row that cannot be read: they were changed by hand."""

    @property
    def leases(self) -> int:
        """How many jobs it runs."""
        return sum(n for _, n, _ in self.doing)


Inserted = list[Job] | Exception


class Engine(Protocol):
    """What producers and workers need: enqueue, claim, settle, liveness, and the chores."""

    url: str
    """Opens the same database again, from any process and any working directory."""
    where: str
    """The database, for people: an absolute path, or a URL without its password."""
    single_host: bool
    """True if all users of this database run on one machine, so that process ids and boot ids show which are dead."""
    notices_commits: bool
    """Whether `watch` notices commits of other processes. If not, a worker looks for jobs once a second."""
    dedupe_may_block: bool
    """Whether an enqueue with a dedupe key may have to wait for an open transaction that holds the key."""
    joins_transactions: bool
    """Whether `insert` can be part of a transaction on the user's own connection."""

    def open(self) -> None:
        """Connect, and create or upgrade the tables where the store does that by itself."""

    def close(self) -> None:
        """Close every connection. The store opens again when it is used again."""

    def now(self) -> int:
        """The time that decides here, which need not be this host's."""

    def changes(self) -> int:
        """A number that differs from the last one if another process has committed since. Cheap enough to poll."""

    def watch(self) -> Watch:
        """Something to wait on until there is a commit."""

    def claims_on_loop(self, thread: Executor) -> LoopClaims | None:
        """Another way to claim, if there is one that does not block an event loop. It may use the thread."""

    # Enqueue
    def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Job]:
        """Store all of `jobs` or none. They are durable when this returns.

        A job whose dedupe key is held is not stored: the holder is returned in its place. A job whose id exists was
        stored by an earlier try, and is returned as it is now.
        With `connection`, they are part of that connection's open transaction, and nothing is committed here.
        """

    def insert_groups(self, groups: Sequence[Sequence[NewJob]]) -> list[Inserted]:
        """`insert` each group, in one commit if possible. If not, only the group at fault gets an error."""

    def publish(self, policies: Sequence[TypePolicy]) -> int:
        """Say how these types are run: the newest declaration of a live worker wins. Return how many have changed."""

    def policies(self) -> dict[str, TypePolicy]:
        """What was published, by type."""

    # Claim and settle
    def due(self, request: ClaimRequest) -> Due:
        """Whether `claim` would find something. Takes no lock."""

    def claim(self, worker: str, request: ClaimRequest) -> Claim:
        """Lease up to `request.limit` due jobs to `worker`, most urgent first: priority, then run_at, then id.

        No job is ever leased twice at a time, no type exceeds its limit, and nothing of what was paused before this
        began is leased. Each job's attempt counts from now on. Raises WorkerLost if the worker was declared dead,
        WorkerQuiet if it is to claim nothing. Worker '' claims by hand.
        """

    def settle(self, ended: Sequence[tuple[ClaimedJob, Outcome]]) -> Settled:
        """Write how these attempts ended, together, as far as their leases are held. An outcome that was written
        before (a repeated commit) is not lost."""

    def transaction(self, claimed: ClaimedJob, outcome: Callable[[], Outcome | None]) -> AbstractContextManager[Any]:
        """A connection whose transaction ends with the job's outcome. Raises LeaseLost, and rolls back, if the job
        is no longer the caller's. No outcome: it ends with what the caller wrote, the job is not of this store."""

    def complete_within(self, claimed: ClaimedJob, outcome: Outcome, connection: Any) -> None:
        """Write a completion in that connection's open transaction, and commit nothing. Raises LeaseLost if the job is
        no longer the caller's: then what the transaction has written cannot be committed either."""

    def save_progress(self, progress: Sequence[tuple[ClaimedJob, Progress]]) -> None:
        """Store the newest progress of leased jobs; for a lost lease nothing is written."""

    def extend(self, claimed: ClaimedJob, until: int) -> ClaimedJob:
        """Move a deadline, given in microseconds from the database's now. Raises LeaseLost."""

    # Liveness
    def register(self, worker: WorkerRow) -> None:
        """Add a new living worker."""

    def beat(self, worker: str, time_left: Sequence[tuple[ClaimedJob, int]] = (), stalled_for: int = 0) -> Beat:
        """Count up, and vouch for these leases: a deadline that differs from the time that is left, in microseconds
        from now, by more than two seconds is moved. `stalled_for`: the microseconds for which the worker's event loop
        has been blocked. Raises WorkerLost if the worker was declared dead."""

    def cancelled(self, worker: str) -> list[int]:
        """The numbers of the worker's leases that were cancelled. Takes no lock."""

    def release_unheld(self, worker: str, numbers: Collection[int]) -> int:
        """Release the leases of these numbers, of which the worker does not know, without charge."""

    def declare_dead(
        self,
        worker: str,
        reason: str,
        *,
        beats: int | None = None,
        started: Collection[int] | None = None,
        outside: bool = False,
    ) -> int:
        """Declare a worker dead, forever, and settle its leases. Return their number.

        With `beats`, only if its count is still that. Only the leases in `started` are charged for the crash;
        None: all of them. `outside`: it was killed from outside, so that none of its jobs is suspected.
        A worker that is already gone is declared dead again, for what was left in its name.
        """

    def rescue(self, *, silent_for: int | None = None) -> int:
        """Settle the leases whose worker has no row, and those that are stuck. Return their number.

        A lease of a worker is stuck if its deadline passed more than RECLAIM_AFTER ago, and the worker has beaten since
        then without moving it. A lease taken by hand is stuck after its deadline.

        With `silent_for`, first declare workers dead that have not beaten for that many microseconds of database time.
        """

    def workers(self) -> list[WorkerRow]:
        """All living workers, oldest first."""

    # Chores
    def complete(self, ids: Sequence[str]) -> int:
        """Mark these jobs as completed, whatever their status: their work exists. Return how many were not before."""

    def chores_due(self) -> ChoresDue:
        """Which of rescue, expire, `put_back_parked` and `open_limits` may have something to do. Raises StoreMoved."""

    def expire(self, limit: int) -> int:
        """Cancel up to `limit` jobs that were not started in time, `start_within` of their run_at. Return their number.
        A claim that meets such jobs cancels them, too, and starts none."""

    def sample_backlog(self) -> int:
        """Write down how many jobs wait and run, once a minute for all workers. Return 1, or 0 if it is written."""

    def compact(self) -> int:
        """Add up the counts that were appended, if the store appends them. Return the number of rows left."""

    def prune(self, statuses: Sequence[Status], before: int, limit: int) -> int:
        """Delete up to `limit` jobs that ended in one of `statuses` more than `before` microseconds ago. Return
        their number. If it is less than `limit` and than LAST_PRUNED, there are no more."""


class Schema(Protocol):
    """Its tables, for `treadle db` and `doctor`."""

    def schema(self) -> int | None:
        """The schema that the database has, 0 without treadle's tables, None if there is none. Changes nothing."""

    def newest_schema(self) -> int:
        """The schema that this treadle needs. Without connecting."""

    def upgrade(self) -> int:
        """Create the tables, or bring them to the newest schema: its number. Safe to repeat."""

    def schema_sql(self) -> str:
        """All tables as SQL, for people. Without connecting."""

    def status(self) -> Mapping[str, Any]:
        """What `treadle db status` and `doctor` show: schema, versions, sizes, settings."""

    def defects(self, *, quick: bool = False) -> list[Defect]:
        """Rows that nobody can use as they are: leases without a living owner, and what was broken by hand. `quick`:
        without looking at every job."""


class Reading(Protocol):
    """Lists, counts and statistics, for people."""

    def get(self, id: str) -> Job | None:
        """The job as it is now."""

    def ids_between(self, first: str, last: str, limit: int) -> list[str]:
        """The ids of jobs in this range, newest first."""

    def job_facts(self, id: str) -> JobFacts | None:
        """All that `why` needs to know of a job, at a bounded cost; None if there is no such job."""

    def arguments(self, type: str) -> str:
        """The JSON schema of the arguments of a type, as its workers published it; '' if there is none."""

    def attempts(self, id: str) -> list[Attempt]:
        """Its unsuccessful attempts, oldest first."""

    def jobs(self, filter: Filter, limit: int, before: str | None = None) -> Page:
        """Jobs, newest first, with ids before `before`. At a bounded cost: see `Page.searched`."""

    def counts(self, by: Sequence[str], filter: Filter = ..., most: int | None = None) -> JobCounts:
        """Count jobs, grouped by some of status, state, type, queue, tenant and subject.

        With `most`, of those that have to be counted one by one only that many of the newest are.
        """

    def queue_stats(self) -> list[QueueStats]:
        """What waits, runs and has ended, by queue and type. At a bounded cost: the last row may sum many `others`."""

    def usage(
        self,
        since: int,
        until: int,
        step: int,
        by: Sequence[str],
        tenant: str | None = None,
        type: str | None = None,
        most: int | None = None,
    ) -> list[Usage]:
        """What ran from one second to another, in steps of `step` seconds, by some of type, queue and tenant.

        With `most`, only what has run most is returned.
        """

    def backlog(self, since: int, until: int, step: int) -> list[Backlog]:
        """The most jobs that waited and ran, from one second to another, in steps of `step` seconds. Steps without a
        sample are left out."""

    def latency_sample(self) -> list[Sampled]:
        """How long the newest jobs waited and ran."""

    def failures(self) -> list[FailureGroup]:
        """The newest failed jobs, and those that wait for a retry, by type and error; the latest first."""


class Managing(Protocol):
    """Actions of people on jobs."""

    def cancel(self, id: str) -> Job:
        """End a waiting job; flag a leased one, so that its worker stops it. Raises JobNotFound or WrongStatus."""

    def retry(self, id: str, from_step: str | None = None) -> Job:
        """Let an ended job run again, with all of its attempts. One that has completed starts over; any other keeps its
        steps, or those before `from_step`. Raises JobNotFound, WrongStatus or KeyHeld."""

    def delete(self, id: str) -> Job:
        """Erase a job that is not leased. Raises JobNotFound or WrongStatus."""

    def run_now(self, id: str) -> Job:
        """A waiting job waits no longer. Raises JobNotFound or WrongStatus."""

    def reschedule(self, id: str, changes: Reschedule) -> Job:
        """Move a waiting job to another time, priority or queue: for good, through retries too. Raises JobNotFound or
        WrongStatus."""

    def change_next(
        self,
        action: str,
        filter: Filter,
        before: str | None,
        limit: int,
        operation: str | None = None,
        changes: Reschedule = ...,
    ) -> BulkChunk:
        """Retry, cancel, delete, run now or reschedule the next jobs that match, with ids before `before`. A job to
        which the action does not apply is skipped. With `operation`, continue that one, and record it in the same
        commit. `changes`: what a reschedule sets."""


class Store(Engine, Schema, Reading, Managing, Pausing, Limiting, Scheduling, Durable, WebRecords, Protocol):
    """A database that keeps jobs."""
