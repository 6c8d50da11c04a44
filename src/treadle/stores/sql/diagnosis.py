"""All that `why` needs to know of a job, at a cost that does not grow with the number of waiting jobs."""

from __future__ import annotations

import msgspec

from treadle import clock
from treadle.diagnosis import MOST_AHEAD, JobFacts, alive, handles, serves
from treadle.job import Job, Status
from treadle.stores.base import RECLAIM_AFTER, WorkerRow
from treadle.stores.sql import read
from treadle.stores.sql.claim_order import ReadyRange
from treadle.stores.sql.transaction import Transaction


def job_facts(tx: Transaction, id: str) -> JobFacts | None:
    job = read.get(tx, id)
    if job is None:
        return None
    workers = tuple(read.workers(tx))
    found = JobFacts(job=job, now=tx.now, workers=workers)
    if job.status is Status.PROCESSING:
        row = tx.execute(tx.sql.LEASE_FLAGS, {"id": id}).fetchone()
        cancelled, deadline = row or (0, None)
        return msgspec.structs.replace(found, cancelled=bool(cancelled), deadline=deadline)
    if job.status is not Status.PENDING:
        return found
    parameters = {"type": job.type, "grace": RECLAIM_AFTER, "now": tx.now}
    return msgspec.structs.replace(
        found,
        limit=tx.value(tx.sql.LIMIT, {"type": job.type}),
        holders=dict(tx.execute(tx.sql.LEASE_HOLDERS, parameters).fetchall()),
        ahead=_ahead(tx, job, workers),
    )


def _ahead(tx: Transaction, job: Job, workers: tuple[WorkerRow, ...]) -> int:
    """How many due jobs come before it, of those that its own workers would take."""
    rivals = [worker for worker in alive(workers, tx.now) if handles(worker, job.queue, job.type)]
    types = {type for worker in rivals for type in worker.types}
    place = {"priority": job.priority, "run_at": clock.from_datetime(job.run_at), "id": job.id, "now": tx.now}
    ahead = 0
    for range, slots in tx.ready_ranges():
        if ahead > MOST_AHEAD:
            break
        if range.type in types and any(serves(w, range.queue) for w in rivals) and (slots is None or slots > 0):
            ahead += _ahead_in(tx, range, place, MOST_AHEAD + 1 - ahead)
    return ahead


def _ahead_in(tx: Transaction, range: ReadyRange, place: dict[str, object], limit: int) -> int:
    row = {**place, "queue": range.queue, "type": range.type, "limit": limit}
    return sum(int(tx.value(statement, row) or 0) for statement in (tx.sql.AHEAD_ABOVE, tx.sql.AHEAD_BESIDE))
