"""Notes of `treadle copy` about a whole database: its jobs are elsewhere now, or not all here yet."""

from __future__ import annotations

from treadle.errors import StoreMoved
from treadle.stores.error_codes import incomplete
from treadle.stores.transaction import Transaction

MOVED, FILLED = "moved to ", "filled from "
"""Keys of `meta`, each followed by the other database."""


def notes(tx: Transaction) -> list[str]:
    return [row[0] for row in tx.execute(tx.sql.META_KEYS) if row[0].startswith((MOVED, FILLED))]


def note(tx: Transaction, key: str, at: int) -> None:
    tx.execute(tx.sql.ADD_META, {"key": key, "at": at})


def drop_notes(tx: Transaction, kind: str) -> None:
    for key in notes(tx):
        if key.startswith(kind):
            tx.execute(tx.sql.DROP_META, {"key": key})


def refuse_moved(tx: Transaction, where: str) -> None:
    """Raise an error if the jobs of this database are elsewhere, or not all here yet."""
    for note in notes(tx):
        if note.startswith(MOVED):
            raise StoreMoved(where, note.removeprefix(MOVED))
        raise incomplete(where, note.removeprefix(FILLED))
