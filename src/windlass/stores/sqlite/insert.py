"""Enqueue: jobs become rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from windlass import codec
from windlass.job import Job, NewJob, Status
from windlass.stores.sqlite import read
from windlass.stores.sqlite import statements as sql
from windlass.stores.sqlite.connection import Transaction


def insert(tx: Transaction, jobs: Sequence[NewJob]) -> list[Job]:
    """Store `jobs`; where a key is held, the answer is its holder."""
    keyed = any(job.dedupe is not None for job in jobs)
    holders = _take_keys(tx, jobs) if keyed else {}
    rows = [job for job in jobs if job.id not in holders] if holders else jobs
    store(tx, rows)
    if not holders:
        return [job.as_stored(tx.now) for job in jobs]
    return [read.job(tx, holders[job.id]) if job.id in holders else job.as_stored(tx.now) for job in jobs]


def insert_again(tx: Transaction, jobs: Sequence[NewJob]) -> list[Job]:
    """`insert` where some of the ids may be stored already, by an earlier try whose answer got lost."""
    there = {row[0] for row in tx.execute(sql.EXISTING, (codec.encode([job.id for job in jobs]).decode(),))}
    new = {job.id: job for job in jobs if job.id not in there}
    stored = dict(zip(new, insert(tx, list(new.values())), strict=True))
    return [stored[job.id] if job.id in stored else read.job(tx, job.id) for job in jobs]


def store(tx: Transaction, jobs: Sequence[NewJob]) -> None:
    """The rows of jobs whose keys, if any, are theirs. Those that differ in their payloads only go together."""
    alike: defaultdict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    for j in jobs:
        place = (j.type, j.queue, j.tenant, j.subject, j.priority, j.max_attempts, j.dedupe, j.traceparent)
        alike[*place, j.due(tx.now)][j.id] = j.payload
    moved: Counter[tuple[str, str]] = Counter()
    for place, payloads in alike.items():
        row = {**dict(zip(_PLACE, place, strict=True)), "now": tx.now, "rows": codec.encode(payloads).decode()}
        tx.execute(sql.INSERT_JOBS, row)
        tx.execute(sql.INSERT_READY, row)
        moved[place[0], place[1]] += len(payloads)
    tally(tx, [(Status.PENDING, type, queue, n) for (type, queue), n in moved.items()])
    tx.execute(sql.TICK, {"now": tx.now})


_PLACE = ("type", "queue", "tenant", "subject", "priority", "max_attempts", "dedupe", "traceparent", "run_at")


def tally(tx: Transaction, moved: Iterable[tuple[str, str, str, int]]) -> None:
    """Count rows where they moved."""
    tx.execute(sql.TALLY, (codec.encode(list(moved)).decode(),))


def take_key(tx: Transaction, tenant: str, key: str, id: str, fresh: Collection[str] = ()) -> str | None:
    """Take a dedupe key, or learn who holds it: a stored job, or one of `fresh`, which will be."""
    if tx.execute(sql.TAKE_KEY, (tenant, key, id)).rowcount:
        return None
    holder: str = tx.value(sql.KEY_HOLDER, (tenant, key))
    if holder in fresh or tx.value(sql.IS_STORED, (holder,)):
        return holder
    tx.execute(sql.PASS_KEY, (id, tenant, key))
    return None


def _take_keys(tx: Transaction, jobs: Sequence[NewJob]) -> dict[str, str]:
    """The jobs that must not be stored, each with the job that is the answer in its place."""
    holders: dict[str, str] = {}
    fresh = {job.id for job in jobs}
    for job in jobs:
        holder = None if job.dedupe is None else take_key(tx, job.tenant, job.dedupe, job.id, fresh)
        if holder is not None and tx.value(sql.IS_STORED, (job.id,)):
            holders[job.id] = job.id  # by an earlier try, and the key may be another's by now
        elif holder is not None and holder != job.id:
            holders[job.id] = holder
    return holders
