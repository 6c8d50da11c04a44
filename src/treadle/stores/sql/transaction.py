"""What the verbs need of a database: statements to execute, and the moment at which all of it happens.

The verbs in this package are written once. What two databases do differently is in their `statements.py`, same names
in the same order, and in their `moves.py`: how rows move from table to table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from treadle.job import ClaimedJob, NewJob
from treadle.outcome import Outcome
from treadle.stores.base import ClaimRequest, Due
from treadle.stores.sql.claim_order import Lane

Ended = tuple[ClaimedJob, Outcome]


class Rows(Protocol):
    """What a statement found or changed."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Reader(Protocol):
    """Statements that see the newest commit."""

    @property
    def sql(self) -> Any:
        """The `statements` of this database."""
        ...

    def execute(self, sql: str, parameters: Mapping[str, Any] = ..., /) -> Rows: ...

    def value(self, sql: str, parameters: Mapping[str, Any] = ..., /) -> Any:
        """The first column of the first row, or None."""
        ...


class Transaction(Reader, Protocol):
    """Statements that are committed together, or not at all."""

    @property
    def now(self) -> int: ...

    @property
    def moves(self) -> Moves: ...

    def waiting(self, queue: str) -> None:
        """A job waits in this queue now: those who look for work are to learn of it when this is committed."""
        ...


class Moves(Protocol):
    """How rows move, as this database does it best. A module, `moves.py`, in the package of each."""

    def store(self, tx: Any, jobs: Sequence[NewJob]) -> None:
        """The rows of new jobs, whose keys are theirs."""
        ...

    def lanes(self, tx: Any) -> list[tuple[Lane, int | None]]:
        """Every (queue, type) that has somebody waiting, and how many more of a limited type may run."""
        ...

    def due(self, tx: Any, wanted: ClaimRequest) -> Due:
        """Whether `take` would find something."""
        ...

    def take(self, tx: Any, worker: str, wanted: ClaimRequest) -> list[ClaimedJob]:
        """The most urgent jobs that may run become leases of a worker that lives."""
        ...

    def leave(self, tx: Any, ended: Sequence[Ended]) -> dict[int, int]:
        """Leases that are still held end as their outcomes say, and are counted; a cancelled one does not wait again.

        The numbers of those that were held, each with whether it was cancelled.
        """
        ...
