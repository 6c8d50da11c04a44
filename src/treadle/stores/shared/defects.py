"""Rows that nobody can use as they are, for `treadle doctor`."""

from __future__ import annotations

from treadle.stores.base import RECLAIM_AFTER
from treadle.stores.rows import Defect
from treadle.stores.transaction import Transaction


def defects(tx: Transaction) -> list[Defect]:
    rows = tx.execute(tx.sql.DEFECTS, {"grace": RECLAIM_AFTER, "now": tx.now})
    return [Defect(*row) for row in rows]
