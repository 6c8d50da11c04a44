"""What the verbs need of a database: statements to execute, rows that move, and the moment at which all of it happens.

The verbs in this package are written once. What databases do differently is in their `sql.py` and in their
`insert_claim_settle.py`: how rows move from table to table, and how they are counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

from treadle.clock import MINUTE
from treadle.codec import as_json
from treadle.job import ClaimedJob, NewJob, Status
from treadle.outcome import UNSUCCESSFUL, Outcome, OutcomeKind
from treadle.stores.base import ClaimRequest
from treadle.stores.rows import Due
from treadle.stores.shared.claim_order import ReadyRange
from treadle.stores.shared.sql import Dialect, Statements

Ended = tuple[ClaimedJob, Outcome]
NOTHING: Mapping[str, Any] = {}


class Rows(Protocol):
    """What a statement found or changed."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Transaction(ABC):
    """Statements that are committed together, or not at all."""

    sql: ClassVar[Statements]
    dialect: ClassVar[Dialect]
    now: int
    """The moment at which all of it happens."""

    @abstractmethod
    def execute(self, sql: str, parameters: Mapping[str, Any] = NOTHING) -> Rows: ...

    def value(self, sql: str, parameters: Mapping[str, Any] = NOTHING) -> Any:
        """The first column of the first row, or None."""
        row = self.execute(sql, parameters).fetchone()
        return row[0] if row else None

    @abstractmethod
    def job_waits(self, queue: str) -> None:
        """A job waits in this queue now: workers learn of it when this is committed."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """Several reads that see the same moment."""

    # How rows move, as this database does it best

    @abstractmethod
    def insert(self, jobs: Sequence[NewJob]) -> None:
        """Write the rows of new jobs, which hold their keys already."""

    @abstractmethod
    def ready_ranges(self) -> list[tuple[ReadyRange, int | None]]:
        """Every (queue, type) in which jobs wait, with its highest priority, and the free slots of a limited type."""

    @abstractmethod
    def due(self, request: ClaimRequest) -> Due:
        """Whether `claim` would find something."""

    @abstractmethod
    def claim(self, worker: str, request: ClaimRequest) -> list[ClaimedJob]:
        """Turn the most urgent jobs that may run into leases of a living worker."""

    @abstractmethod
    def settle(self, ended: Sequence[Ended]) -> Sequence[Ended]:
        """End the leases that are still held, by their outcomes. Return the outcomes as they were written."""

    # What goes with it

    def tally(self, moved: Iterable[tuple[str, str, str, int]]) -> None:
        """Count rows where they moved: status, type, queue, by how many."""
        self.execute(self.dialect.ADD_TALLIES, {"rows": as_json(list(moved))})

    def count_ended(self, ended: Iterable[Ended]) -> None:
        """Add tallies and usage of what was just written. This runs for every job, so it adds up first."""
        now = self.now
        sums: dict[tuple[OutcomeKind, str, str, str], list[int]] = {}
        for c, outcome in ended:
            sum = sums.setdefault((outcome.kind, c.type, c.queue, c.tenant), [0, 0, 0])
            sum[0] += 1
            sum[1] += now - c.started_at
            sum[2] += c.started_at - c.run_at
        moved: Counter[tuple[str, str, str]] = Counter()
        usage: list[tuple[Any, ...]] = []
        for (kind, type, queue, tenant), (runs, busy, waiting) in sums.items():
            moved[kind.final or Status.PENDING, type, queue] += runs
            moved[Status.PROCESSING, type, queue] -= runs
            if kind is not OutcomeKind.RELEASED:
                completed, failures = runs * (kind is OutcomeKind.COMPLETED), runs * (kind in UNSUCCESSFUL)
                times = max(0, busy), max(0, waiting)
                usage.append((now // MINUTE * 60, type, queue, tenant, runs, completed, failures, *times))
        self.tally([(*place, n) for place, n in moved.items()])
        if usage:
            self.execute(self.dialect.ADD_USAGE, {"rows": as_json(usage)})

    def delete_orphaned_leases(self, counted_as: Status) -> None:
        """Delete the leases of jobs that were deleted by hand."""
        if gone := Counter(self.execute(self.sql.DELETE_ORPHANED_LEASES).fetchall()):
            self.tally([(counted_as, type, queue, -n) for (type, queue), n in gone.items()])


def as_written(ended: Sequence[Ended], held: Mapping[int, int]) -> Sequence[Ended]:
    """The outcomes of the leases that are held. `held` says of each number whether the job was cancelled."""
    if len(held) == len(ended) and not any(held.values()):
        return ended
    return [(c, _unless_cancelled(outcome, held[c.number])) for c, outcome in ended if c.number in held]


def _unless_cancelled(outcome: Outcome, cancelled: int) -> Outcome:
    """A completion that came first wins; a cancelled job does not go back to wait."""
    if cancelled and outcome.kind.final is None:
        return Outcome(OutcomeKind.CANCELLED, error=outcome.error or "cancelled", charged=0)
    return outcome


def requeued(now: int, outcome: Outcome) -> tuple[int | None, int, int, int | None]:
    """How a job goes back to wait: its run_at (None: unchanged), attempts charged, 1 if snoozed, its suspicion."""
    run_at = None if outcome.kind is OutcomeKind.RELEASED else now + outcome.delay
    return run_at, outcome.charged, int(outcome.kind is OutcomeKind.SNOOZED), outcome.suspicion
