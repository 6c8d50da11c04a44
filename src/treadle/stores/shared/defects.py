"""Rows that nobody can use as they are: what `treadle doctor` names, and what a verb removes if it is in its way."""

from __future__ import annotations

import logging

from treadle.stores.base import RECLAIM_AFTER
from treadle.stores.rows import Defect
from treadle.stores.transaction import Transaction

log = logging.getLogger("treadle")


def defects(tx: Transaction, *, quick: bool = False) -> list[Defect]:
    found: dict[str, Defect] = {}
    every = () if quick else (tx.sql.DEFECTS_OF_ALL, tx.sql.DEFECTIVE_PAYLOADS)
    for row in (
        *tx.execute(tx.sql.DEFECTS, {"grace": RECLAIM_AFTER, "now": tx.now}),
        *(row for statement in every for row in tx.execute(statement)),
    ):
        defect = Defect(*row)
        rows = defect.rows + (found[defect.code].rows if defect.code in found else 0)
        found[defect.code] = defect._replace(rows=rows)
    return [defect for defect in found.values() if defect.rows]


def repair(tx: Transaction) -> int:
    """Remove rows that contradict others, so that a job is in one place again. Return the number of rows."""
    waiting = tx.execute(tx.sql.DROP_READY_OF_LEASED).fetchall()
    ended = tx.execute(tx.sql.DROP_LEASES_OF_FINISHED).fetchall()
    repeated = tx.execute(tx.sql.DROP_REPEATED_ATTEMPTS).fetchall()
    keys = tx.execute(tx.sql.PRUNE_LEASE_KEYS).rowcount
    if keys:
        log.warning("%d keys of limits were broken by hand: they counted jobs that do not run", keys)
    for rows, problem in (
        (waiting, "was in ready and in leases: it runs, and no longer waits"),
        (ended, "was in leases and in finished: it has ended, and no longer runs"),
        (repeated, "had an attempt with the number of its lease: that attempt is no longer listed"),
    ):
        for id, *_ in rows:
            log.warning("job %s was broken by hand: it %s", id, problem)
    return len(waiting) + len(ended) + len(repeated) + keys
