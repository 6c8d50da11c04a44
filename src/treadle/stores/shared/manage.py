"""Actions on jobs: cancel, retry, run now, reschedule, delete, complete, prune."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.errors import JobNotFound, KeyHeld, StoreBusy, WrongStatus
from treadle.filters import Filter
from treadle.ids import first_id_of, is_id
from treadle.job import UNCHANGED, Job, Reschedule, Status
from treadle.outcome import COMPLETED
from treadle.stores.rows import BulkChunk
from treadle.stores.shared import batches, keys, read, search, steps, web_records
from treadle.stores.shared.claim_settle import decode_claimed, settle
from treadle.stores.shared.ending import Ending, end_waiting, has_ended
from treadle.stores.shared.stats import tally
from treadle.stores.transaction import Moved, Transaction

Verb = Callable[[Transaction, str], Job]
"""An action on one job."""
USAGE_DAYS = 90
"""How long the usage of a minute is kept, whatever happens to the jobs."""
SIGNAL_DAYS, DAY = 90, 86_400 * SECOND
"""How long a signal is kept for which nobody waits."""


def lock_job(tx: Transaction, id: str, lock: Callable[[Transaction, Sequence[str]], object] = keys.lock) -> Job:
    """The job, which does not change until we commit. First its key."""
    if not is_id(id):
        raise JobNotFound(id)
    lock(tx, [id])
    for _ in range(100):
        if not tx.sql.LOCK_JOB or any(tx.value(statement, {"id": id}) for statement in tx.sql.LOCK_JOB):
            return read.job(tx, id)
        if not read.places(tx, id):
            return read.job(tx, id)  # its row was deleted by hand; raises JobNotFound if it never existed
    raise StoreBusy(f"job {id}", 0)  # it moved each time


def cancel(tx: Transaction, id: str) -> Job:
    job = lock_job(tx, id)
    if job.status.is_final:
        raise WrongStatus("cancel", id, job.status, "it has ended already")
    if job.status is Status.PROCESSING:
        tx.execute(tx.sql.FLAG_CANCEL, {"id": id})
    else:
        _finish_waiting(tx, job, Status.CANCELLED, "cancelled")
    return read.job(tx, id)


def retry(tx: Transaction, id: str, from_step: str | None = None) -> Job:
    """A job that has completed starts over; any other goes on after its last step, or `from_step`."""
    job = lock_job(tx, id, _hold)
    if not job.status.is_final:
        way_out = f"to wait no longer: td.run_now({id!r})" if job.status is Status.PENDING else "it has not ended"
        raise WrongStatus("retry", id, job.status, f"only a job that has ended can be retried; {way_out}")
    keys.retake(tx, id)
    if from_step is not None or job.status is Status.COMPLETED:
        steps.forget(tx, id, from_step)
    tx.execute(tx.sql.GATHER_AGAIN, {"id": id})
    batches.reopen(tx, job)
    tx.execute(tx.sql.RETRY, {"id": id, "now": tx.now})
    tx.execute(tx.sql.DELETE_FINISHED, {"ids": as_json([id])})
    if job.schedule is not None:  # the next moment of its schedule may overlap with it again
        tx.execute(tx.sql.ADD_FIRED, {"rows": as_json([(job.tenant, job.schedule, id)])})
    tally(tx, [(job.status, job.type, job.queue, -1), (Status.PENDING, job.type, job.queue, 1)])
    tx.job_waits(job.queue)
    return read.job(tx, id)


def _hold(tx: Transaction, ids: Sequence[str]) -> Sequence[object]:
    held = keys.hold(tx, ids)
    batches.lock(tx, ids)
    return held


def run_now(tx: Transaction, id: str) -> Job:
    job = lock_job(tx, id)
    _must_wait(tx, job, "run")
    tx.execute(tx.sql.RUN_NOW, {"id": id, "now": tx.now})
    tx.job_waits(job.queue)
    return read.job(tx, id)


def reschedule(tx: Transaction, id: str, changes: Reschedule) -> Job:
    job = lock_job(tx, id)
    _must_wait(tx, job, "reschedule")
    placed = {"id": id, "priority": changes.priority, "queue": changes.queue}
    if (changes.priority, changes.queue) != (None, None):
        tx.execute(tx.sql.RESCHEDULE_JOB, placed)
    tx.execute(tx.sql.RESCHEDULE, {**placed, "run_at": changes.due(tx.now), "now": tx.now})
    queue = changes.queue or job.queue
    if queue != job.queue:
        tally(tx, [(job.status, job.type, job.queue, -1), (job.status, job.type, queue, 1)])
    tx.job_waits(queue)
    return read.job(tx, id)


def _must_wait(tx: Transaction, job: Job, verb: str) -> None:
    """Raises WrongStatus if it does not wait. If its row was deleted by hand, it is written again."""
    if job.status is Status.BLOCKED and verb == "run":
        way_out = f"it waits for other jobs or for a signal, and td.why({job.id!r}) says for which"
        raise WrongStatus(verb, job.id, job.status, way_out)
    if job.status not in (Status.PENDING, Status.BLOCKED):
        way_out = "it runs already" if job.status is Status.PROCESSING else f"let it run again: td.retry({job.id!r})"
        raise WrongStatus(verb, job.id, job.status, way_out)
    if not read.places(tx, job.id):
        tx.execute(tx.sql.RETRY, {"id": job.id, "now": tx.now})


def delete(tx: Transaction, id: str) -> Job:
    job = lock_job(tx, id)
    if job.status is Status.PROCESSING:
        raise WrongStatus("delete", id, job.status, f"cancel it first: td.cancel({id!r})")
    if (waiter := tx.value(tx.sql.WAITS_FOR_IT, {"id": id})) is not None:
        raise WrongStatus("delete", id, job.status, f"job {waiter} waits for it: cancel or delete that one first")
    tx.execute(tx.sql.DELETE_READY, {"ids": as_json([id])})
    if job.dedupe_mode is not None:
        keys.drop(tx, id)
    _erase(tx, [id])
    if not job.status.is_final:
        batches.has_changed(tx, job, batches.ADDED)
    tally(tx, [(job.status, job.type, job.queue, -1)])
    return job


ACTIONS: dict[str, Verb] = {
    "retry": retry,
    "run_now": run_now,
    "cancel": cancel,
    "delete": delete,
}


def change_next(
    tx: Transaction,
    action: str,
    filter: Filter,
    before: str | None,
    limit: int,
    operation: str | None = None,
    changes: Reschedule = UNCHANGED,
) -> BulkChunk:
    verb = partial(reschedule, changes=changes) if action == "reschedule" else ACTIONS[action]
    if operation is None:
        return _change_next(tx, verb, filter, before, limit)
    before = web_records.position(tx, operation)
    if before is None:
        return BulkChunk(0, 0, None)
    chunk = _change_next(tx, verb, filter, before, limit)
    tx.execute(tx.sql.ADVANCE_OPERATION, {**chunk._asdict(), "id": operation, "now": tx.now})
    return chunk


def _change_next(tx: Transaction, verb: Verb, filter: Filter, before: str | None, limit: int) -> BulkChunk:
    """A job that is locked and matches again cannot become one that does not match."""
    page = search.jobs(tx, filter, limit, before)
    ids = sorted(job.id for job in page)  # as a settle locks leases
    held = _hold(tx, ids) if verb is retry else ()
    keys.lock(tx, ids)
    locked = [id for id in ids if _is_locked(tx, id)]
    matching = search.jobs(tx, filter.replace(ids=tuple(locked)), limit, None).jobs if locked else []
    done = sum(_done(tx, verb, job.id) for job in matching)
    keys.drop_held(tx, held)
    return BulkChunk(done, len(page) - done, page.next)


def _is_locked(tx: Transaction, id: str) -> bool:
    try:
        lock_job(tx, id)
        return True
    except JobNotFound:
        return False


def _done(tx: Transaction, verb: Verb, id: str) -> bool:
    """Each verb refuses before it writes."""
    try:
        verb(tx, id)
        return True
    except (WrongStatus, KeyHeld):
        return False


def complete(tx: Transaction, ids: Sequence[str]) -> int:
    """A worker that has such a job leased loses it: the fence refuses what it writes later."""
    changed, tx.set_aside = 0, ()  # it waits for all keys
    keys.lock(tx, [id for id in ids if is_id(id)])
    for id in sorted(ids):
        try:
            job = lock_job(tx, id)
        except JobNotFound:
            continue
        if job.status is Status.COMPLETED:
            continue
        changed += 1
        if job.status is Status.PROCESSING:
            settle(tx, [(decode_claimed(tx.value(tx.sql.LEASE_OF_JOB, {"id": id})), COMPLETED)])
            tx.execute(tx.sql.CLEAR_LEASE, {"id": id})
        elif not job.status.is_final:
            _finish_waiting(tx, job, Status.COMPLETED, None)
        else:
            tx.execute(tx.sql.COMPLETE_FINISHED, {"id": id, "now": tx.now})
            tx.execute(tx.sql.CLEAR_LEASE, {"id": id})
            has_ended(tx, [id])
            batches.has_changed(tx, job, job.status, Status.COMPLETED)
            tally(tx, [(job.status, job.type, job.queue, -1), (Status.COMPLETED, job.type, job.queue, 1)])
    return changed


def prune(tx: Transaction, statuses: Sequence[Status], before: int, limit: int) -> int:
    return tally_pruned(tx, tx.prune(prunable(tx.now, statuses, before, limit)))


def prunable(now: int, statuses: Sequence[Status], before: int, limit: int) -> Mapping[str, Any]:
    """Which jobs `tx.prune` deletes."""
    until = now - before
    ended = {"before": until, "oldest": first_id_of(until), "limit": limit, "now": now}
    return {**ended, "statuses": as_json(statuses)}


def tally_pruned(tx: Transaction, pruned: Moved) -> int:
    tally(tx, [(status, type, queue, -n) for status, type, queue, n in pruned])
    return sum(row[3] for row in pruned)


def prune_records(tx: Transaction, before: int | None, limit: int) -> None:
    """Delete what is kept for a while, whatever happens to jobs; and batches, unless they are kept forever."""
    web_records.prune(tx)  # it may wait for others, so it comes before all that others may wait for
    old = {"before": tx.now // SECOND - USAGE_DAYS * 86_400, "limit": 10 * limit}  # each is small
    tx.execute(tx.sql.PRUNE_USAGE, old)
    tx.execute(tx.sql.PRUNE_KEYS, {"now": tx.now, "limit": limit})
    tx.execute(tx.sql.PRUNE_BACKLOG, old)
    tx.execute(tx.sql.PRUNE_SIGNALS, {"before": tx.now - SIGNAL_DAYS * DAY, "limit": limit})
    if before is not None:
        batches.prune(tx, tx.now - before, limit)


def _finish_waiting(tx: Transaction, job: Job, status: Status, error: str | None) -> None:
    end_waiting(tx, [Ending(job.id, job.type, job.queue, job.status, status, error)])
    if job.dedupe_mode is not None:
        keys.drop(tx, job.id)


def _erase(tx: Transaction, ids: Sequence[str]) -> None:
    of_jobs = (
        tx.sql.DELETE_FINISHED,
        tx.sql.DELETE_ATTEMPTS,
        tx.sql.DELETE_STEPS,
        tx.sql.DELETE_LOGS,
        tx.sql.DELETE_WAITS,
        tx.sql.DELETE_JOBS,
    )
    for statement in of_jobs:
        tx.execute(statement, {"ids": as_json(ids)})
