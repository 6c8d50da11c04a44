"""Liveness: workers register, beat and extend their leases; a dead one is declared dead, and its jobs are rescued."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from treadle.clock import LAST
from treadle.codec import as_json
from treadle.errors import LeaseLost, WorkerLost
from treadle.job import ClaimedJob, Progress, Status
from treadle.outcome import UNSTARTED, Outcome, OutcomeKind, after_crash
from treadle.stores.base import RECLAIM_AFTER, WorkerRow
from treadle.stores.rows import Beat, ChoresDue, Count, Flags
from treadle.stores.shared.claim_settle import decode_claimed, settle_held
from treadle.stores.shared.moved import refuse_moved
from treadle.stores.shared.stats import tally
from treadle.stores.transaction import DRIFT, LeaseOutcome, Transaction

MOST_RETURNED = 500
"""Leases that one transaction settles for a worker: on SQLite others wait for it."""
NOT_STARTED, WITH_OTHERS = LAST, LAST - 1
"""Deadlines that no job has. They say what is known of a dead worker's leases that other transactions are to settle:
one was not started, or did not run alone. Somebody else may settle them first, or this process may die."""


class Returned(NamedTuple):
    """How many leases were settled, and what is left for other transactions."""

    number: int
    rest: Sequence[LeaseOutcome] = ()


def register(tx: Transaction, worker: WorkerRow) -> None:
    lists = {"queues": as_json(worker.queues), "host": as_json(worker.host)}
    lists["types"] = as_json({type: worker.declared.get(type, "") for type in worker.types})
    lists["schedules"] = as_json(worker.schedules)
    tx.execute(tx.sql.REGISTER, {**msgspec.structs.asdict(worker), **lists, "now": tx.now})


def beat(tx: Transaction, worker: str, time_left: Sequence[tuple[ClaimedJob, int]] = (), stalled_for: int = 0) -> Beat:
    """Count up, read the counts of the others, and vouch for leases whose deadline is no longer right."""
    row = {"worker": worker, "stalled_for": stalled_for or None}
    counted = tx.execute(tx.sql.BEAT, {**row, "now": tx.now})
    flags, beats = tx.execute(tx.sql.FLAGS_OF_WORKER, {"worker": worker}), tx.execute(tx.sql.BEATS)
    leases, workers = flags.fetchall(), beats.fetchall()  # all three are sent before the first is read
    if not counted.rowcount:
        raise WorkerLost(worker)
    if wrong := _wrong_deadlines(tx.now, leases, time_left):
        tx.execute(tx.sql.MOVE_DEADLINES, {"rows": as_json(wrong)})
    return beat_of(worker, leases, workers)


def _wrong_deadlines(
    now: int, leases: Iterable[Flags], time_left: Sequence[tuple[ClaimedJob, int]]
) -> list[tuple[str, int, int, int]]:
    """The leases whose deadline is no longer right, with the right one."""
    deadlines = {number: deadline or 0 for number, _, deadline in leases}
    right = [(c, now + left) for c, left in time_left if c.number in deadlines]
    return sorted((c.id, *c.fence, at) for c, at in right if abs(at - deadlines[c.number]) > DRIFT)


def beat_of(worker: str, leases: Iterable[Flags], workers: Sequence[Count]) -> Beat:
    quiet = any(id == worker and quiet_at is not None for id, _, quiet_at in workers)
    return Beat({id: n for id, n, _ in workers}, {number: bool(cancel) for number, cancel, _ in leases}, quiet)


def set_quiet(tx: Transaction, worker: str, quiet: bool) -> bool:
    row = {"worker": worker, "quiet_at": tx.now if quiet else None}
    return tx.execute(tx.sql.SET_QUIET, row).rowcount > 0


def cancelled(tx: Transaction, worker: str) -> list[int]:
    return [number for number, cancelled, _ in tx.execute(tx.sql.FLAGS_OF_WORKER, {"worker": worker}) if cancelled]


def save_progress(tx: Transaction, progress: Sequence[tuple[ClaimedJob, Progress]]) -> None:
    for c, p in sorted(progress, key=lambda one: one[0].id):  # as a settle locks leases
        row = {"fraction": p.fraction, "message": p.message, "id": c.id, "number": c.number, "token": c.token}
        tx.execute(tx.sql.SAVE_PROGRESS, row)


def extend(tx: Transaction, claimed: ClaimedJob, until: int) -> ClaimedJob:
    deadline = tx.now + until
    row = {"deadline": deadline, "id": claimed.id, "number": claimed.number, "token": claimed.token}
    if not tx.execute(tx.sql.EXTEND, row).rowcount:
        raise LeaseLost(claimed.id, claimed.number)
    return msgspec.structs.replace(claimed, deadline=deadline)


def release_unheld(tx: Transaction, worker: str, numbers: Collection[int]) -> Returned:
    return _settled(tx, [(c, UNSTARTED) for c in _leases_of(tx, worker) if c.number in numbers])


def declare_dead(
    tx: Transaction,
    worker: str,
    reason: str,
    *,
    beats: int | None = None,
    started: Collection[int] | None = None,
    outside: bool = False,
) -> Returned:
    """Delete a worker's row and its leases together: from now on it cannot claim or settle. (If it has very many, it
    can settle the rest until that is returned, too.)"""
    if not worker:  # a lease taken by hand has only its deadline
        return Returned(0)
    gone = tx.execute(tx.sql.UNREGISTER, {"worker": worker, "beats": beats}).rowcount
    if not gone and tx.value(tx.sql.IS_ALIVE, {"worker": worker}) is not None:
        return Returned(0)  # it has beaten since: it is alive
    tx.job_waits("")  # the places under limits that it freed last are for others
    return _return(tx, _crashed(tx, worker, reason, started, outside=outside))


def _crashed(
    tx: Transaction, worker: str, reason: str, started: Collection[int] | None = None, *, outside: bool = False
) -> list[LeaseOutcome]:
    """What the death of a worker means for each of its leases."""
    leases = _leases_of(tx, worker)
    running = [c for c in leases if c.deadline != NOT_STARTED and (started is None or c.number in started)]
    alone = len(running) == 1 and running[0].deadline != WITH_OTHERS
    crashed = {c.number: after_crash(c, reason, alone=alone, outside=outside) for c in running}
    return [(c, crashed.get(c.number, UNSTARTED)) for c in leases]


def _return(tx: Transaction, crashed: Sequence[LeaseOutcome]) -> Returned:
    """Settle some leases of dead workers, those that were started first, and write down what is known of the rest."""
    returned = _settled(tx, sorted(crashed, key=lambda one: (one[1] is UNSTARTED, one[0].id)))
    if returned.rest:
        rest = ((c, NOT_STARTED if outcome is UNSTARTED else WITH_OTHERS) for c, outcome in returned.rest)
        tx.execute(tx.sql.MOVE_DEADLINES, {"rows": as_json([(c.id, *c.fence, mark) for c, mark in rest])})
    return returned


def chores_due(tx: Transaction, where: str) -> ChoresDue:
    refuse_moved(tx, where)  # a quiet worker learns it here: it claims nothing
    return ChoresDue(*map(bool, tx.execute(tx.sql.CHORES_DUE, {"now": tx.now}).fetchone()))


def rescue(tx: Transaction, *, silent_for: int | None = None) -> Returned:
    if silent_for is not None:
        tx.execute(tx.sql.UNREGISTER_SILENT, {"before": tx.now - silent_for})
    dead = [row[0] for row in tx.execute(tx.sql.DEAD_LEASEHOLDERS)]
    lost = _return(tx, [one for worker in dead for one in _crashed(tx, worker, "its worker was lost")])
    # Only now: who waits for a lease has locked none that comes after it.
    stuck = Returned(0) if lost.rest else _settled(tx, [(c, _stuck(c)) for c in _stuck_leases(tx)])
    tally(tx, tx.delete_orphaned_leases(Status.PROCESSING))
    return Returned(lost.number + stuck.number, [*lost.rest, *stuck.rest])


def _stuck_leases(tx: Transaction) -> list[ClaimedJob]:
    when = {"grace": RECLAIM_AFTER, "now": tx.now}
    ids = [id for (id,) in tx.execute(tx.sql.STUCK_IDS, when)]
    rows = tx.execute(tx.sql.STUCK_LEASES, {**when, "ids": as_json(ids)}) if ids else ()
    return [decode_claimed(row[0]) for row in rows]


def _settled(tx: Transaction, ended: Sequence[LeaseOutcome]) -> Returned:
    return Returned(settle_some(tx, ended[:MOST_RETURNED]), ended[MOST_RETURNED:])


def settle_some(tx: Transaction, ended: Sequence[LeaseOutcome]) -> int:
    """How many of these leases were still held: their owner may have been faster."""
    return len(settle_held(tx, ended)) if ended else 0


def _leases_of(tx: Transaction, worker: str) -> list[ClaimedJob]:
    return [decode_claimed(row[0]) for row in tx.execute(tx.sql.LEASES_OF_WORKER, {"worker": worker})]


def _stuck(claimed: ClaimedJob) -> Outcome:
    kind = OutcomeKind.FAILED if claimed.failures >= claimed.max_attempts else OutcomeKind.RETRIED
    return Outcome(kind, error="it was stuck: its deadline passed and no worker settled it")
