"""Batches as rows, and the counts of their members.

Whoever stores or ends members appends a row of counts, and locks nothing of the batch: the transaction may be a user's,
and stay open for long. If members have ended, it appends an arrival, too. A claim that comes to it adds up the counts,
and closes the batch (closing.py).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from treadle import clock, codec
from treadle.batch import Batch, NewBatch
from treadle.codec import as_json
from treadle.errors import BatchExists
from treadle.job import Job, NewJob, Status
from treadle.stores.shared.waiting import arrive
from treadle.stores.transaction import LeaseOutcome, Transaction

log = logging.getLogger("treadle")

ADDED = "added"
COUNTED = (ADDED, Status.COMPLETED, Status.FAILED, Status.CANCELLED)
"""The columns of counts."""
Name = tuple[str, str]
"""The tenant and the name of a batch."""
Change = tuple[str, str, str, int]
"""A tenant, a batch, which of its counts changes, and by how much."""


# Written with the jobs that they count


def count(tx: Transaction, changes: Iterable[Change], *, ended: bool = True) -> None:
    """Append the sums of these changes. `ended`: a batch may be complete now."""
    sums: dict[Name, Counter[str]] = {}
    for tenant, batch, what, n in changes:
        sums.setdefault((tenant, batch), Counter())[what] += n
    if not sums:
        return
    put_counts(tx, sums)
    if ended:
        arrive(tx, [(tx.now, "batch", *name) for name in sorted(sums)])


def put_counts(tx: Transaction, sums: dict[Name, Counter[str]]) -> None:
    rows = [(*name, *(sum[what] for what in COUNTED)) for name, sum in sums.items()]
    tx.execute(tx.sql.ADD_BATCH_COUNTS, {"rows": as_json(rows)})


def count_added(tx: Transaction, jobs: Sequence[NewJob]) -> None:
    count(tx, ((job.tenant, job.batch, ADDED, 1) for job in jobs if job.batch is not None), ended=False)


def count_settled(tx: Transaction, settled: Iterable[LeaseOutcome]) -> None:
    finals = ((c, outcome.kind.final) for c, outcome in settled)
    count(tx, ((c.tenant, c.batch, final, 1) for c, final in finals if final is not None and c.batch is not None))


def count_ended(tx: Transaction, ended: Sequence[tuple[str, Status]]) -> None:
    """Count those of these jobs that are members."""
    statuses = dict(ended)
    members = tx.execute(tx.sql.BATCHES_OF, {"ids": as_json(list(statuses))})
    count(tx, [(tenant, batch, statuses[id], 1) for id, tenant, batch in members])


def has_changed(tx: Transaction, job: Job, before: str, *after: str) -> None:
    """A member no longer counts as `before`, but as `after`, if that is given."""
    if job.batch is not None:
        changes = [(before, -1), *((what, 1) for what in after)]
        count(tx, [(job.tenant, job.batch, what, n) for what, n in changes])


def lock(tx: Transaction, ids: Sequence[str]) -> None:
    """Lock the batches of these jobs, before the jobs themselves: all at once."""
    for statement in tx.sql.LOCK_BATCHES:
        tx.execute(statement, {"ids": as_json(ids)})


def reopen(tx: Transaction, job: Job) -> None:
    """A member that has ended is retried. The caller has locked its batch."""
    if job.batch is not None and tx.value(tx.sql.REOPEN_BATCH, {"tenant": job.tenant, "name": job.batch}):
        count(tx, [(job.tenant, job.batch, job.status, -1)], ended=False)


# Store


def add(tx: Transaction, new: NewBatch, *, again: bool = False) -> None:
    """Store a batch, without its members. Raises BatchExists. `again`: an earlier try may have stored it."""
    if not _is_added(tx, new) and not (again and tx.value(tx.sql.SAME_BATCH, _row(new))):
        raise BatchExists(new.name, new.tenant)


def add_made(tx: Transaction, made: Iterable[NewBatch]) -> None:
    """Store batches that handlers made, with a step or the completion. Nobody gets an error here: if another was
    faster, the members are that batch's."""
    for new in sorted(made, key=lambda new: (new.tenant, new.name)):
        if not _is_added(tx, new) and not tx.value(tx.sql.SAME_BATCH, _row(new)):
            log.error("batch %r exists already, and gets the members that a handler made for a new one", new.name)


def _is_added(tx: Transaction, new: NewBatch) -> bool:
    if not tx.value(tx.sql.ADD_BATCH, {**_row(new), "now": tx.now}):
        return False
    arrive(tx, [(tx.now, "batch", new.tenant, new.name)])  # it may have no members
    return True


def _row(new: NewBatch) -> dict[str, str | None]:
    then, on_failure = (None if job is None else as_json(job) for job in (new.then, new.on_failure))
    return {"tenant": new.tenant, "name": new.name, "then_job": then, "else_job": on_failure}


# Look


def batch(tx: Transaction, tenant: str, name: str) -> Batch | None:
    tx.act_for(tenant)
    row = tx.execute(tx.sql.BATCH, {"tenant": tenant, "name": name}).fetchone()
    return _to_batch(row) if row else None


def batches(tx: Transaction, tenant: str | None, before: tuple[int, str, str], limit: int) -> list[Batch]:
    tx.act_for(tenant or "")
    older = dict(zip(("before", "before_tenant", "before_name"), before, strict=True))
    if tenant is None:
        found = tx.execute(tx.sql.BATCHES, {**older, "limit": limit})
    else:
        found = tx.execute(tx.sql.BATCHES_OF_TENANT, {**older, "tenant": tenant, "limit": limit})
    return [_to_batch(row) for row in found]


def _to_batch(row: Sequence[Any]) -> Batch:
    tenant, name, then, on_failure, closings, closed_at, last_job, created_at, sums = row
    return Batch(
        tenant=tenant,
        name=name,
        **dict(zip(COUNTED, msgspec.json.decode(sums, type=tuple[int, int, int, int]), strict=True)),
        created_at=clock.moment(created_at),
        closed_at=clock.optional_moment(closed_at),
        closings=closings,
        then=_type_of(then),
        on_failure=_type_of(on_failure),
        last_job=last_job,
    )


def _type_of(request: str | None) -> str | None:
    job = to_request(request)
    return None if job is None else job.type


def to_request(text: str | None) -> NewJob | None:
    """What to enqueue. If it was broken by hand: nothing."""
    return None if text is None else codec.decode_as(text, NewJob)


def prune(tx: Transaction, before: int, limit: int) -> None:
    gone = tx.execute(tx.sql.PRUNE_BATCHES, {"before": before, "limit": limit}).fetchall()
    if gone:
        tx.execute(tx.sql.TAKE_BATCH_COUNTS, {"names": as_json(gone), "most": limit})
