"""The end of jobs that wait: they are cancelled, completed or replaced before they start.

Every way into `finished` tells those who wait for the job: this one, and a settle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from treadle.codec import as_json
from treadle.job import Status
from treadle.stores.shared import batches
from treadle.stores.shared.stats import tally
from treadle.stores.transaction import Transaction


class Ending(NamedTuple):
    """A waiting job that ends, and how."""

    id: str
    type: str
    queue: str
    before: Status
    status: Status
    error: str | None


def waiting_status(parked: str) -> Status:
    """The status of a job that waits."""
    return Status.BLOCKED if parked == "wait" else Status.PENDING


def end_waiting(tx: Transaction, endings: Sequence[Ending]) -> None:
    """End these. The caller has locked them, and sees to their dedupe keys."""
    ids = as_json([one.id for one in endings])
    rows = as_json([(one.id, one.status, one.error) for one in endings])
    tx.execute(tx.sql.FINISH_WAITING, {"rows": rows, "now": tx.now})
    tx.execute(tx.sql.DELETE_READY, {"ids": ids})
    gone = Counter((one.before, one.type, one.queue) for one in endings)
    come = Counter((one.status, one.type, one.queue) for one in endings)
    tally(tx, [*((*key, -n) for key, n in gone.items()), *((*key, n) for key, n in come.items())])
    if blocked := [one.id for one in endings if one.before is Status.BLOCKED]:
        tx.execute(tx.sql.STOP_WAITING, {"ids": as_json(blocked)})
    has_ended(tx, [one.id for one in endings])
    batches.count_ended(tx, [(one.id, one.status) for one in endings])


def has_ended(tx: Transaction, ids: Sequence[str]) -> None:
    """Tell the jobs that wait for these, if there are any."""
    if tx.execute(tx.sql.ARRIVE_ENDED, {"ids": as_json(ids), "now": tx.now}).fetchall():
        tx.job_waits("")
