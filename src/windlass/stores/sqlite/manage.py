"""What people do to jobs: cancel, retry, delete, complete, prune."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from windlass import codec
from windlass.clock import SECOND
from windlass.errors import KeyHeld, WrongStatus
from windlass.job import Job, Status
from windlass.outcome import COMPLETED
from windlass.stores.sqlite import read
from windlass.stores.sqlite import statements as sql
from windlass.stores.sqlite.connection import Transaction
from windlass.stores.sqlite.insert import take_key, tally
from windlass.stores.sqlite.rescue import decode_claimed
from windlass.stores.sqlite.settle import settle

USAGE_DAYS = 90
"""How long the usage of a minute is kept, whatever becomes of the jobs."""


def cancel(tx: Transaction, id: str) -> Job:
    job = read.job(tx, id)
    if job.status.is_final:
        raise WrongStatus("cancel", id, job.status, "it has ended already")
    if job.status is Status.PROCESSING:
        tx.execute(sql.FLAG_CANCEL, (id,))
    else:
        _finish_waiting(tx, job, Status.CANCELLED, "cancelled")
    return read.job(tx, id)


def retry(tx: Transaction, id: str) -> Job:
    job = read.job(tx, id)
    if not job.status.is_final:
        raise WrongStatus(
            "retry", id, job.status, "only a job that has ended can be retried; this one will run by itself"
        )
    _retake_key(tx, id)
    tx.execute(sql.RETRY, {"id": id, "now": tx.now})
    tx.execute(sql.DELETE_FINISHED, (_json([id]),))
    tally(tx, [(job.status, job.type, job.queue, -1), (Status.PENDING, job.type, job.queue, 1)])
    tx.execute(sql.TICK, {"now": tx.now})
    return read.job(tx, id)


def delete(tx: Transaction, id: str) -> Job:
    job = read.job(tx, id)
    if job.status is Status.PROCESSING:
        raise WrongStatus("delete", id, job.status, f"cancel it first: wl.cancel({id!r})")
    tx.execute(sql.DELETE_READY_JOB, (id,))
    tx.execute(sql.DROP_KEYS, (_json([id]),))
    _erase(tx, [id])
    tally(tx, [(job.status, job.type, job.queue, -1)])
    return job


def complete(tx: Transaction, ids: Sequence[str]) -> int:
    """Whoever holds such a job loses it: its later word is refused by the fence."""
    changed = 0
    for id in ids:
        job = read.get(tx, id)
        if job is None or job.status is Status.COMPLETED:
            continue
        changed += 1
        if job.status is Status.PROCESSING:
            settle(tx, [(decode_claimed(tx.value(sql.LEASE_OF_JOB, (id,))), COMPLETED)])
            tx.execute(sql.DISOWN, (id,))
        elif job.status is Status.PENDING:
            _finish_waiting(tx, job, Status.COMPLETED, None)
        else:
            tx.execute(sql.COMPLETE_FINISHED, {"id": id, "now": tx.now})
            tx.execute(sql.DISOWN, (id,))
            tally(tx, [(job.status, job.type, job.queue, -1), (Status.COMPLETED, job.type, job.queue, 1)])
    return changed


def prune(tx: Transaction, statuses: Sequence[Status], before: int, limit: int) -> int:
    until = tx.now - before
    wanted = {"statuses": _json(statuses), "before": until, "oldest": _first_id_of(until), "limit": limit}
    rows = tx.execute(sql.PRUNABLE, wanted).fetchall() if statuses else []
    tx.execute(sql.PRUNE_USAGE, (tx.now // SECOND - USAGE_DAYS * 86_400, 10 * limit))  # each is small
    if rows:
        _erase(tx, [row[0] for row in rows])
        tally(tx, [(*place, -n) for place, n in Counter((s, type, queue) for _, s, type, queue in rows).items()])
    return len(rows)


def _finish_waiting(tx: Transaction, job: Job, status: Status, error: str | None) -> None:
    tx.execute(sql.FINISH_READY, {"id": job.id, "status": status, "now": tx.now, "error": error})
    tx.execute(sql.DELETE_READY_JOB, (job.id,))
    tx.execute(sql.DROP_KEYS, (_json([job.id]),))
    tally(tx, [(Status.PENDING, job.type, job.queue, -1), (status, job.type, job.queue, 1)])


def _retake_key(tx: Transaction, id: str) -> None:
    """A retried job holds its dedupe key again, or does not start."""
    row = tx.execute(sql.DEDUPE_OF, (id,)).fetchone()
    if row is None:
        return
    tenant, key = row
    if holder := take_key(tx, tenant, key, id):
        raise KeyHeld(id, key, holder)


def _erase(tx: Transaction, ids: Sequence[str]) -> None:
    for statement in (sql.DELETE_FINISHED, sql.DELETE_ATTEMPTS, sql.DELETE_JOBS):
        tx.execute(statement, (_json(ids),))


def _first_id_of(at: int) -> str:
    """The smallest id that a job made after `at` can have."""
    text = f"{max(0, at // 1000 + 1):012x}"
    return f"{text[:8]}-{text[8:]}"


def _json(value: object) -> str:
    return codec.encode(value).decode()
