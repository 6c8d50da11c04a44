"""Bury the dead and rescue what they held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from treadle.errors import WorkerLost
from treadle.job import ClaimedJob, Status
from treadle.outcome import RELEASED, Outcome, OutcomeKind, after_crash
from treadle.stores.base import RECLAIM_AFTER, Beat
from treadle.stores.sql.insert import tally
from treadle.stores.sql.settle import settle_held
from treadle.stores.sql.transaction import Ended, Transaction

decode_claimed = msgspec.json.Decoder(ClaimedJob).decode


def beat(tx: Transaction, worker: str) -> Beat:
    """Count up, and look around."""
    counted = tx.execute(tx.sql.BEAT, {"now": tx.now, "worker": worker})
    leases, beats = tx.execute(tx.sql.LEASES_MINE, {"worker": worker}), tx.execute(tx.sql.BEATS)
    seen = Beat(dict(beats.fetchall()), {number: bool(cancelled) for number, cancelled in leases})
    if not counted.rowcount:
        raise WorkerLost(worker)
    return seen


def release_unheld(tx: Transaction, worker: str, numbers: Collection[int]) -> int:
    """Give back what the worker never learnt that it has."""
    unheld = [(c, RELEASED) for c in leases_of(tx, worker) if c.number in numbers]
    return _settled(tx, unheld)


def declare_dead(
    tx: Transaction,
    worker: str,
    reason: str,
    *,
    beats: int | None = None,
    started: Collection[int] | None = None,
    outside: bool = False,
) -> int:
    """A worker's row and leases go together: it can neither claim nor settle from now on."""
    if not worker:  # leases by hand live by their deadlines
        return 0
    gone = tx.execute(tx.sql.UNREGISTER, {"worker": worker, "beats": beats}).rowcount
    if not gone and tx.value(tx.sql.IS_ALIVE, {"worker": worker}):
        return 0  # it has beaten since: alive after all
    leases = leases_of(tx, worker)
    running = [c for c in leases if started is None or c.number in started]
    alone = len(running) == 1
    crashed = {c.number for c in running}
    return _settled(
        tx,
        [
            (c, after_crash(c, reason, alone=alone, outside=outside) if c.number in crashed else RELEASED)
            for c in leases
        ],
    )


def rescue(tx: Transaction, silent_for: int | None = None) -> int:
    """Return what has no living owner, and what is long overdue."""
    if silent_for is not None:
        tx.execute(tx.sql.UNREGISTER_SILENT, {"before": tx.now - silent_for})
    dead = [row[0] for row in tx.execute(tx.sql.LEASES_OF_THE_DEAD)]
    rescued = sum(declare_dead(tx, worker, "its worker was lost") for worker in dead)
    long_ago = {"grace": RECLAIM_AFTER, "now": tx.now}
    overdue = [decode_claimed(row[0]) for row in tx.execute(tx.sql.LEASES_OVERDUE, long_ago)]
    rescued += _settled(tx, [(c, _overdue(c)) for c in overdue])
    forget(tx, Status.PROCESSING)
    return rescued


def _settled(tx: Transaction, ended: Sequence[Ended]) -> int:
    """How many of these leases were still there to be ended: their owner may have been faster."""
    return len(ended) - len(settle_held(tx, ended)) if ended else 0


def forget(tx: Transaction, counted_as: Status) -> None:
    """Drop the leases of jobs that somebody deleted by hand."""
    if gone := Counter(tx.execute(tx.sql.FORGET_LEASES).fetchall()):
        tally(tx, [(counted_as, type, queue, -n) for (type, queue), n in gone.items()])


def leases_of(tx: Transaction, worker: str) -> list[ClaimedJob]:
    return [decode_claimed(row[0]) for row in tx.execute(tx.sql.LEASES_OF_WORKER, {"worker": worker})]


def _overdue(claimed: ClaimedJob) -> Outcome:
    kind = OutcomeKind.FAILED if claimed.attempt >= claimed.max_attempts else OutcomeKind.RETRIED
    return Outcome(kind, error="it was stuck: its deadline passed and nobody settled it")
