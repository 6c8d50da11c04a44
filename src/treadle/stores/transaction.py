"""What the verbs need of a database: statements to execute, rows that move, and the moment at which all of it happens.

The verbs in `shared` are written once. What databases do differently is in their `sql.py` and in their
`insert_claim_settle.py`: how rows move from table to table. Such a transition calls no verb. What it does not count
while it moves, it returns, and the verb counts it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

from treadle.codec import as_json
from treadle.job import ClaimedJob, Job, NewJob, Status
from treadle.limits import Key
from treadle.outcome import Outcome, OutcomeKind
from treadle.steps import NewStep
from treadle.stores.base import ClaimRequest
from treadle.stores.ranges import Found
from treadle.stores.rows import Claim, Due

if TYPE_CHECKING:
    from treadle.stores.postgres.sql import PostgresStatements
    from treadle.stores.sqlite.sql import SQLiteStatements

P = ParamSpec("P")
T = TypeVar("T")

LeaseOutcome = tuple[ClaimedJob, Outcome]
Moved = Sequence[tuple[str, str, str, int]]
"""Rows that moved: their status, type and queue, and how many came or, if negative, went."""
LimitValues = tuple[str, str, str, str]
"""What the keys of a job are made of: its id, tenant and subject, and as JSON what its payload has at some paths."""
DRIFT = 2_000_000
"""Microseconds by which a deadline may differ from what its owner's clock says: not every beat writes it again."""
BUSY_SECONDS = 10.0
"""How long a call waits for a lock or a connection before it raises StoreBusy."""
NOTHING: Mapping[str, Any] = {}


class KeysLocked(Exception):
    """Other transactions have locked the dedupe keys of these jobs. They are set aside, and the rest goes on."""

    def __init__(self, ids: Collection[str]) -> None:
        super().__init__(", ".join(ids))
        self.ids = ids


class WaitsForever(Exception):
    """A handler waits for a job that cannot go on before its own job has ended. Then its attempt fails."""

    def __init__(self, id: str, text: str) -> None:
        super().__init__(text)
        self.id = id

    def outcome(self, claimed: ClaimedJob, outcome: Outcome) -> Outcome:
        """This outcome, or how the attempt fails in its place."""
        return outcome if claimed.id != self.id else Outcome(OutcomeKind.FAILED, error=str(self), logs=outcome.logs)


class Rows(Protocol):
    """What a statement found or changed."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Transaction(ABC):
    """Statements that are committed together, or not at all."""

    sql: ClassVar[SQLiteStatements | PostgresStatements]
    now: int
    """The moment at which all of it happens."""
    set_aside: Collection[str] = ()
    """Jobs that are not settled now: an earlier try found that their dedupe keys are locked."""
    travels_together: ClassVar[bool] = False
    """Whether statements wait for the first answer that is read, and one more costs no round trip."""
    locks_limits: ClassVar[bool]
    """Whether `lock_limits` makes a difference: what was counted before it may have changed."""
    has_locked_limits = False
    """Whether it has waited for locks of limits: then it does not wait for more."""
    has_locked_keys = False
    """Whether it has locked the dedupe keys of the jobs that it changes. It waits for no more of them: it may hold jobs
    for which others wait who have such a key."""
    met_expired = False
    """Whether its claim met jobs that were not started in time. They still wait, and the verb ends them."""

    @abstractmethod
    def execute(self, sql: str, parameters: Mapping[str, Any] = NOTHING) -> Rows: ...

    def value(self, sql: str, parameters: Mapping[str, Any] = NOTHING) -> Any:
        """The first column of the first row, or None."""
        row = self.execute(sql, parameters).fetchone()
        return row[0] if row else None

    def add_counts(self, tallies: Sequence[tuple[str, str, str, int]], usage: Sequence[tuple[object, ...]]) -> None:
        """Count jobs that have ended: by status, type and queue; and their runs, as ADD_USAGE takes them."""
        if tallies:
            self.execute(self.sql.ADD_TALLIES, {"rows": as_json(tallies)})
        if usage:
            self.execute(self.sql.ADD_USAGE, {"rows": as_json(usage)})

    @abstractmethod
    def job_waits(self, queue: str) -> None:
        """A job waits in this queue now: workers learn of it when this is committed."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """Several reads that see the same moment."""

    def act_for(self, tenant: str) -> None:  # noqa: B027 (most databases have nothing to do)
        """See and change the rows of this tenant, if the database shows its users one tenant at a time."""

    # How rows move, as this database does it best

    @abstractmethod
    def insert(self, jobs: Sequence[NewJob]) -> Moved:
        """Write the rows of new jobs, which hold their keys already. Return what is still to be tallied."""

    @abstractmethod
    def ready_ranges(self) -> list[Found]:
        """Every (queue, type) in which jobs wait, with its highest priority."""

    @abstractmethod
    def lock_limits(self, keys: Collection[Key], *, wait: bool) -> Collection[Key]:
        """Let no other transaction start a job of these keys until this one ends. Return those that are locked now:
        all of them, unless this does not wait."""

    @abstractmethod
    def limit_values(self, ids: Sequence[str], paths: Sequence[Sequence[str]] | None) -> Iterable[LimitValues]:
        """Of each job that still waits, with what its payload has at these paths. None: the tenant is enough."""

    @abstractmethod
    def due(self, request: ClaimRequest) -> Due:
        """Whether `claim` would find something."""

    @abstractmethod
    def claim(self, worker: str, request: ClaimRequest) -> tuple[Claim, Moved]:
        """Turn the most urgent jobs that may run into leases of a living worker. Also return what is still to be
        tallied."""

    @abstractmethod
    def settle(self, ended: Sequence[LeaseOutcome]) -> tuple[Sequence[LeaseOutcome], Sequence[LeaseOutcome]]:
        """End the leases that are still held, by their outcomes. Return the outcomes as they were written, and those
        of them that are still to be counted."""

    @abstractmethod
    def release_keys(self, ids: Sequence[str]) -> Collection[str]:
        """Release the dedupe keys of jobs that have ended; their successors wait no longer. Return the jobs whose keys
        other transactions have locked: those are not released."""

    @abstractmethod
    def prune(self, old: Mapping[str, Any]) -> Moved:
        """Delete some jobs that ended long ago, with all of their rows. Return what they were, and how many: this is
        still to be tallied."""

    def delete_orphaned_leases(self, counted_as: Status) -> Moved:
        """Delete the leases of jobs that were deleted by hand."""
        gone = Counter(self.execute(self.sql.DELETE_ORPHANED_LEASES).fetchall())
        return [(counted_as, type, queue, -n) for (type, queue), n in gone.items()]


Steps = Callable[Concatenate[Transaction, P], T]
Insert = Callable[[Transaction, Sequence[NewJob]], list[Job]]
"""`insert` or `insert_again` of `shared/enqueue.py`."""


class Connections(Protocol):
    """The connections of one process to a database. `pool` says what for, so that none starves another."""

    pid: int

    def write(self, pool: str, steps: Steps[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Take the steps in one transaction. Nothing of them stays if they raise."""
        ...

    def read(self, pool: str, steps: Steps[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Take steps that only read, each of which sees the newest commit."""
        ...

    def close(self) -> None: ...


def as_written(ended: Sequence[LeaseOutcome], held: Mapping[tuple[int, int], int]) -> Sequence[LeaseOutcome]:
    """The outcomes of the leases that are held. `held` says of each fence whether the job was cancelled."""
    if len(held) == len(ended) and not any(held.values()):
        return ended
    return [(c, _unless_cancelled(outcome, held[c.fence])) for c, outcome in ended if c.fence in held]


def _unless_cancelled(outcome: Outcome, cancelled: int) -> Outcome:
    """A completion that came first wins; a cancelled job does not go back to wait."""
    if cancelled and outcome.kind.final is None:
        return Outcome(OutcomeKind.CANCELLED, error=outcome.error or "cancelled", charged=0)
    return outcome


def requeued(now: int, outcome: Outcome) -> tuple[int | None, int, int, int | None, int, str]:
    """How a job goes back to wait: its run_at (None: unchanged), attempts charged, 1 if snoozed, its suspicion, 1 if it
    was started, and why claims do not meet it."""
    run_at = None if outcome.kind is OutcomeKind.RELEASED else now + outcome.delay
    snoozed, parked = int(outcome.kind is OutcomeKind.SNOOZED), "wait" if outcome.waits else ""
    return run_at, outcome.charged, snoozed, outcome.suspicion, int(outcome.started), parked


def step_row(id: str, tenant: str, s: NewStep, lease: int, attempt: int) -> tuple[object, ...]:
    """A new step of a job, and the lease and the attempt of the run that did it, as ADD_STEPS takes it."""
    return id, tenant, s.name, s.position, s.kind, s.value, s.arguments, lease, attempt, s.took
