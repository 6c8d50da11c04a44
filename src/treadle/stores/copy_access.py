"""Who may use a database that is copied: a source that is closed, and a target that is being filled.

Nobody else may change the target: programs that use it already, and SQL. Triggers refuse that while the note that it is
being filled is positive. A transaction of the copy makes it negative, which no other one sees, and positive again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.errors import TreadleError
from treadle.stores.error_codes import HAS_MOVED, IS_FILLED
from treadle.stores.shared import moved
from treadle.stores.shared.store import SQLStore
from treadle.stores.transaction import Transaction

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


class CopyAccess:
    """One database, and its notes."""

    def __init__(self, store: SQLStore[Any], tenant: str | None = None) -> None:
        self.store, self.tenant = store, tenant
        self.url = store.where if "://" in store.where else f"sqlite:///{store.where}"
        """Without a password, so that anybody may see it."""
        self._note: str | None = None
        """What says that we fill this database."""

    def read(self, steps: Any, *args: Any) -> Any:
        return self.store.database.read("other", steps, *args)

    def write(self, steps: Any, *args: Any) -> Any:
        return self.store.database.write("other", steps, *args)

    def fill(self, steps: Any, *args: Any) -> None:
        """Write what others may not write."""

        def all_steps(tx: Transaction) -> None:
            if self._note and not tx.execute(tx.sql.NEGATE_META, {"key": self._note}).rowcount:
                raise CannotCopy(f"another copy has completed {self.url} in the meantime; it can be used")
            steps(tx, *args)
            if self._note:
                tx.execute(tx.sql.NEGATE_META, {"key": self._note})

        self.write(all_steps)

    def notes(self, *kinds: str) -> list[str]:
        return list(self.read(moved.notes, *kinds))

    def note(self, key: str, at: int) -> None:
        self.write(moved.note, key, at)

    def drop_notes(self, kind: str) -> None:
        self.write(moved.drop_notes, kind)

    def start_filling(self, source: str, at: int) -> None:
        """From this commit on, nobody else changes or opens the database, until it is complete."""
        note = self._note = f"{moved.FILLED}{source}"

        def steps(tx: Transaction) -> None:
            is_new = note not in moved.notes(tx)
            for each in tx.sql.forbid("filled", CLOSED, CHANGES, f"{IS_FILLED}{source}", f"({tx.sql.IS_FILLED})"):
                tx.execute(each)
            moved.note(tx, note, at)
            moved.drop_notes(tx, moved.COMPLETE)
            if is_new and tx.execute(tx.sql.SOME_JOB).fetchall():
                raise CannotCopy(f"{self.url} has jobs already; name a database without jobs")

        self.write(steps)

    def end_filling(self, source: str, at: int) -> None:
        """Let everybody use the database, which is complete."""

        def steps(tx: Transaction) -> None:
            for each in tx.sql.allow("filled", CLOSED):
                tx.execute(each)
            moved.drop_notes(tx, moved.FILLED)
            moved.note(tx, f"{moved.COMPLETE}{source}", at)

        self.write(steps)

    def close_claims(self, place: str) -> None:
        """From this commit on, nothing is claimed."""

        def steps(tx: Transaction) -> None:
            _wait_briefly(tx)
            for each in tx.sql.allow("moved", ("leases",)):  # a copy to another place may have been killed
                tx.execute(each)
            self._forbid(tx, ("leases",), ("INSERT",), place)

        self.write(steps)

    def close(self, place: str, at: int) -> None:
        """From this commit on, nothing changes here, and whoever opens the database learns where its jobs are."""

        def steps(tx: Transaction) -> None:
            _wait_briefly(tx)
            self._forbid(tx, CLOSED, CHANGES, place)
            moved.note(tx, f"{moved.MOVED}{place}", at)

        self.write(steps)

    @staticmethod
    def _forbid(tx: Transaction, tables: Sequence[str], changes: Sequence[str], place: str) -> None:
        for each in tx.sql.forbid("moved", tables, changes, f"{HAS_MOVED}{place}", "true"):
            tx.execute(each)

    def reopen(self) -> None:
        """Undo `close` and `close_claims`."""

        def steps(tx: Transaction) -> None:
            for each in tx.sql.allow("moved", CLOSED):
                tx.execute(each)
            moved.drop_notes(tx, moved.MOVED)

        self.write(steps)


def _wait_briefly(tx: Transaction) -> None:
    """Raise StoreBusy rather than wait for long. This locks many tables: a producer that has locked one of them and
    waits for another would be the one that a deadlock ends."""
    for statement in tx.sql.WAIT_BRIEFLY:
        tx.execute(statement)
