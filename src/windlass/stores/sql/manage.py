"""What people do to jobs: cancel, retry, delete, complete, prune."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from windlass.clock import SECOND
from windlass.errors import JobNotFound, KeyHeld, StoreBusy, WrongStatus
from windlass.job import Job, Status
from windlass.outcome import COMPLETED
from windlass.stores.sql import read
from windlass.stores.sql.insert import as_json, take_key, tally
from windlass.stores.sql.rescue import decode_claimed
from windlass.stores.sql.settle import settle
from windlass.stores.sql.transaction import Transaction

USAGE_DAYS = 90
"""How long the usage of a minute is kept, whatever becomes of the jobs."""


def hold(tx: Transaction, id: str) -> Job:
    """The job as it is, and as it stays until we commit."""
    tries = 100
    for _ in range(tries):
        if not tx.sql.HOLD or any(tx.value(statement, {"id": id}) for statement in tx.sql.HOLD):
            return read.job(tx, id)
        if not tx.value(tx.sql.IS_STORED, {"id": id}):
            raise JobNotFound(id)
    raise StoreBusy(f"job {id}", 0)  # it moved under our hands each time


def cancel(tx: Transaction, id: str) -> Job:
    job = hold(tx, id)
    if job.status.is_final:
        raise WrongStatus("cancel", id, job.status, "it has ended already")
    if job.status is Status.PROCESSING:
        tx.execute(tx.sql.FLAG_CANCEL, {"id": id})
    else:
        _finish_waiting(tx, job, Status.CANCELLED, "cancelled")
    return read.job(tx, id)


def retry(tx: Transaction, id: str) -> Job:
    job = hold(tx, id)
    if not job.status.is_final:
        raise WrongStatus(
            "retry", id, job.status, "only a job that has ended can be retried; this one will run by itself"
        )
    _retake_key(tx, id)
    tx.execute(tx.sql.RETRY, {"id": id, "now": tx.now})
    tx.execute(tx.sql.DELETE_FINISHED, {"ids": as_json([id])})
    tally(tx, [(job.status, job.type, job.queue, -1), (Status.PENDING, job.type, job.queue, 1)])
    tx.waiting(job.queue)
    return read.job(tx, id)


def delete(tx: Transaction, id: str) -> Job:
    job = hold(tx, id)
    if job.status is Status.PROCESSING:
        raise WrongStatus("delete", id, job.status, f"cancel it first: wl.cancel({id!r})")
    tx.execute(tx.sql.DELETE_READY, {"ids": as_json([id])})
    tx.execute(tx.sql.DROP_KEYS, {"ids": as_json([id])})
    _erase(tx, [id])
    tally(tx, [(job.status, job.type, job.queue, -1)])
    return job


def complete(tx: Transaction, ids: Sequence[str]) -> int:
    """Whoever holds such a job loses it: its later word is refused by the fence."""
    changed = 0
    for id in ids:
        try:
            job = hold(tx, id)
        except JobNotFound:
            continue
        if job.status is Status.COMPLETED:
            continue
        changed += 1
        if job.status is Status.PROCESSING:
            settle(tx, [(decode_claimed(tx.value(tx.sql.LEASE_OF_JOB, {"id": id})), COMPLETED)])
            tx.execute(tx.sql.DISOWN, {"id": id})
        elif job.status is Status.PENDING:
            _finish_waiting(tx, job, Status.COMPLETED, None)
        else:
            tx.execute(tx.sql.COMPLETE_FINISHED, {"id": id, "now": tx.now})
            tx.execute(tx.sql.DISOWN, {"id": id})
            tally(tx, [(job.status, job.type, job.queue, -1), (Status.COMPLETED, job.type, job.queue, 1)])
    return changed


def prune(tx: Transaction, statuses: Sequence[Status], before: int, limit: int) -> int:
    until = tx.now - before
    wanted = {"statuses": as_json(statuses), "before": until, "oldest": _first_id_of(until), "limit": limit}
    rows = tx.execute(tx.sql.PRUNABLE, wanted).fetchall() if statuses else []
    oldest = tx.now // SECOND - USAGE_DAYS * 86_400
    tx.execute(tx.sql.PRUNE_USAGE, {"oldest": oldest, "limit": 10 * limit})  # each is small
    if rows:
        _erase(tx, [row[0] for row in rows])
        tally(tx, [(*place, -n) for place, n in Counter((s, type, queue) for _, s, type, queue in rows).items()])
    return len(rows)


def _finish_waiting(tx: Transaction, job: Job, status: Status, error: str | None) -> None:
    tx.execute(tx.sql.FINISH_READY, {"id": job.id, "status": status, "now": tx.now, "error": error})
    tx.execute(tx.sql.DELETE_READY, {"ids": as_json([job.id])})
    tx.execute(tx.sql.DROP_KEYS, {"ids": as_json([job.id])})
    tally(tx, [(Status.PENDING, job.type, job.queue, -1), (status, job.type, job.queue, 1)])


def _retake_key(tx: Transaction, id: str) -> None:
    """A retried job holds its dedupe key again, or does not start."""
    row = tx.execute(tx.sql.DEDUPE_OF, {"id": id}).fetchone()
    if row is None:
        return
    tenant, key = row
    if holder := take_key(tx, tenant, key, id):
        raise KeyHeld(id, key, holder)


def _erase(tx: Transaction, ids: Sequence[str]) -> None:
    for statement in (tx.sql.DELETE_FINISHED, tx.sql.DELETE_ATTEMPTS, tx.sql.DELETE_JOBS):
        tx.execute(statement, {"ids": as_json(ids)})


def _first_id_of(at: int) -> str:
    """The smallest id that a job made after `at` can have."""
    text = f"{max(0, at // 1000 + 1):012x}"
    return f"{text[:8]}-{text[8:]}-0000-0000-000000000000"
