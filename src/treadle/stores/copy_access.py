"""Who may use a database that is copied: a source that is closed, and a target that is being filled.

Nobody else may change the target: programs that use it already, and SQL. Triggers refuse that while the note that it is
being filled is positive. A transaction of the copy makes it negative, which no other one sees, and positive again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from treadle.errors import TreadleError
from treadle.stores.error_codes import HAS_MOVED, IS_FILLED
from treadle.stores.shared import moved
from treadle.stores.shared.store import SQLStore
from treadle.stores.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")

OF_JOBS = ("jobs", "ready", "finished", "attempts", "steps", "waits", "logs")
"""Tables that have rows of a job, by its id."""
OF_TENANTS = ("dedupe", "signals", "arrivals", "batches", "batch_counts", "schedules", "fired", "pauses", "usage")
"""Tables that are copied as a whole, or the part of one tenant."""
OF_ALL = ("types", "limits", "openings", "buckets", "backlog", "audit", "tokens", "requests")
"""Tables that are copied as a whole, and only then."""
CLOSED = (*OF_JOBS, *OF_TENANTS, *OF_ALL, "leases")
CHANGES = ("INSERT", "UPDATE", "DELETE")


class CannotCopy(TreadleError):
    """A copy that cannot begin, go on or be finished. The message says why, and what to do."""


def _in_transaction(
    steps: Callable[Concatenate[CopyAccess, Transaction, P], None],
) -> Callable[Concatenate[CopyAccess, P], None]:
    """A method that is one transaction. It gets that, and its callers do not pass it."""

    @wraps(steps)
    def method(self: CopyAccess, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.write(partial(steps, self), *args, **kwargs)

    return method


class CopyAccess:
    """One database, and its notes."""

    def __init__(self, store: SQLStore[Any], tenant: str | None = None) -> None:
        self.store, self.tenant = store, tenant
        self.url = store.where if "://" in store.where else f"sqlite:///{store.where}"
        """Without a password, so that anybody may see it."""
        self._note: str | None = None
        """What says that we fill this database."""

    def read(self, steps: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = self.store.database.read("other", steps, *args, **kwargs)
        return answer

    def write(self, steps: Callable[Concatenate[Transaction, P], object], *args: P.args, **kwargs: P.kwargs) -> None:
        self.store.database.write("other", steps, *args, **kwargs)

    def fill(self, steps: Callable[Concatenate[Transaction, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Write what others may not write."""

        def all_steps(tx: Transaction) -> None:
            if self._note and not tx.execute(tx.sql.NEGATE_META, {"key": self._note}).rowcount:
                raise CannotCopy(f"another copy has completed {self.url} in the meantime; it can be used")
            steps(tx, *args, **kwargs)
            if self._note:
                tx.execute(tx.sql.NEGATE_META, {"key": self._note})

        self.write(all_steps)

    def notes(self, *kinds: str) -> list[str]:
        return list(self.read(moved.notes, *kinds))

    def note(self, key: str, at: int) -> None:
        self.write(moved.note, key, at)

    def drop_notes(self, kind: str) -> None:
        self.write(moved.drop_notes, kind)

    @_in_transaction
    def start_filling(self, tx: Transaction, source: str, at: int) -> None:
        """From this commit on, nobody else changes or opens the database, until it is complete."""
        self._note = f"{moved.FILLED}{source}"
        is_new = self._note not in moved.notes(tx)
        _run(tx, tx.sql.forbid("filled", CLOSED, CHANGES, f"{IS_FILLED}{source}", f"({tx.sql.IS_FILLED})"))
        moved.note(tx, self._note, at)
        moved.drop_notes(tx, moved.COMPLETE)
        if is_new and tx.execute(tx.sql.SOME_JOB).fetchall():
            raise CannotCopy(f"{self.url} has jobs already; name a database without jobs")

    @_in_transaction
    def end_filling(self, tx: Transaction, source: str, at: int) -> None:
        """Let everybody use the database, which is complete."""
        _run(tx, tx.sql.allow("filled", CLOSED))
        moved.drop_notes(tx, moved.FILLED)
        moved.note(tx, f"{moved.COMPLETE}{source}", at)

    # To close a source locks many tables: a producer that has locked one of them and waits for another would be the one
    # that a deadlock ends. So it raises StoreBusy rather than wait for long.

    @_in_transaction
    def close_claims(self, tx: Transaction, place: str) -> None:
        """From this commit on, nothing is claimed."""
        _run(tx, tx.sql.WAIT_BRIEFLY)
        _run(tx, tx.sql.allow("moved", ("leases",)))  # a copy to another place may have been killed
        _run(tx, tx.sql.forbid("moved", ("leases",), ("INSERT",), f"{HAS_MOVED}{place}", "true"))

    @_in_transaction
    def close(self, tx: Transaction, place: str, at: int) -> None:
        """From this commit on, nothing changes here, and whoever opens the database learns where its jobs are."""
        _run(tx, tx.sql.WAIT_BRIEFLY)
        _run(tx, tx.sql.forbid("moved", CLOSED, CHANGES, f"{HAS_MOVED}{place}", "true"))
        moved.note(tx, f"{moved.MOVED}{place}", at)

    @_in_transaction
    def reopen(self, tx: Transaction) -> None:
        """Undo `close` and `close_claims`."""
        _run(tx, tx.sql.allow("moved", CLOSED))
        moved.drop_notes(tx, moved.MOVED)


def _run(tx: Transaction, statements: Iterable[str]) -> None:
    for statement in statements:
        tx.execute(statement)
