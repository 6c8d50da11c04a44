"""Notes of `treadle copy` about a whole database: its jobs are elsewhere now, or not all here yet."""

from __future__ import annotations

from treadle.errors import StoreMoved
from treadle.stores.error_codes import incomplete
from treadle.stores.transaction import Transaction

MOVED, FILLED, COMPLETE = "moved to ", "filled from ", "complete from "
"""Keys of `meta`, each followed by the other database. The last one refuses nobody."""
QUIETED = "made quiet "
"""... and one that is followed by a worker, which claims again if the database is opened again."""


def notes(tx: Transaction, *kinds: str) -> list[str]:
    """Those of these kinds, or those for which the database cannot be used."""
    return [row[0] for row in tx.execute(tx.sql.META_KEYS) if row[0].startswith(kinds or (MOVED, FILLED))]


def note(tx: Transaction, key: str, at: int) -> None:
    tx.execute(tx.sql.ADD_META, {"key": key, "at": at})


def drop_notes(tx: Transaction, kind: str) -> None:
    for key in notes(tx, kind):
        tx.execute(tx.sql.DROP_META, {"key": key})


def refuse_moved(tx: Transaction, where: str) -> None:
    """Raise an error if the jobs of this database are elsewhere, or not all here yet."""
    for note in notes(tx):
        if note.startswith(MOVED):
            raise StoreMoved(where, note.removeprefix(MOVED))
        raise incomplete(where, note.removeprefix(FILLED))
