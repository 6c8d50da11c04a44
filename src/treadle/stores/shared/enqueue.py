"""Enqueue: jobs become rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from treadle.codec import as_json
from treadle.job import Job, NewJob
from treadle.stores.base import TypePolicy
from treadle.stores.shared import read
from treadle.stores.shared.stats import tally
from treadle.stores.transaction import Transaction


def insert(tx: Transaction, jobs: Sequence[NewJob]) -> list[Job]:
    """Store `jobs`; for a key that is held, the answer is its holder."""
    has_keys = any(job.dedupe is not None for job in jobs)
    holders = _take_keys(tx, jobs) if has_keys else {}
    rows = [job for job in jobs if job.id not in holders] if holders else jobs
    if rows:
        tally(tx, tx.insert(rows))
    if not holders:
        return [job.as_stored(tx.now) for job in jobs]
    return [read.job(tx, holders[job.id]) if job.id in holders else job.as_stored(tx.now) for job in jobs]


def insert_again(tx: Transaction, jobs: Sequence[NewJob]) -> list[Job]:
    """`insert` where some of the ids may be stored already, by an earlier try whose answer was lost."""
    there = {row[0] for row in tx.execute(tx.sql.EXISTING_IDS, {"ids": as_json([job.id for job in jobs])})}
    new = {job.id: job for job in jobs if job.id not in there}
    stored = dict(zip(new, insert(tx, list(new.values())), strict=True))
    return [stored[job.id] if job.id in stored else read.job(tx, job.id) for job in jobs]


def take_key(tx: Transaction, tenant: str, key: str, id: str, fresh: Collection[str] = ()) -> str | None:
    """Take a dedupe key, or return its holder: a stored job, or one of `fresh`, which will be stored."""
    row = {"tenant": tenant, "key": key, "id": id}
    while not tx.execute(tx.sql.TAKE_KEY, row).rowcount:
        holder: str | None = tx.value(tx.sql.KEY_HOLDER, {"tenant": tenant, "key": key})
        if holder is None:
            continue  # it was released in between
        if holder in fresh or tx.value(tx.sql.IS_STORED, {"id": holder}):
            return holder
        if tx.execute(tx.sql.TRANSFER_KEY, {**row, "holder": holder}).rowcount:
            return None  # if not, the key has just been released
    return None


def _take_keys(tx: Transaction, jobs: Sequence[NewJob]) -> dict[str, str]:
    """The jobs that must not be stored, each with the job that is the answer in its place.

    In the order of the keys, so that two transactions that take the same keys do not deadlock.
    """
    holders: dict[str, str] = {}
    fresh = {job.id for job in jobs}
    for job in sorted(jobs, key=lambda job: (job.tenant, job.dedupe or "")):
        holder = None if job.dedupe is None else take_key(tx, job.tenant, job.dedupe, job.id, fresh)
        if holder is not None and tx.value(tx.sql.IS_STORED, {"id": job.id}):
            holders[job.id] = job.id  # by an earlier try, and the key may be another's by now
        elif holder is not None and holder != job.id:
            holders[job.id] = holder
    return holders


# How types are run, for producers that know a type only by its name


def publish(tx: Transaction, policies: Sequence[TypePolicy]) -> None:
    for policy in sorted(policies, key=lambda policy: policy.type):
        tx.execute(tx.sql.PUBLISH, {**msgspec.structs.asdict(policy), "now": tx.now})


def policies(tx: Transaction) -> dict[str, TypePolicy]:
    names = TypePolicy.__struct_fields__
    return {row[0]: TypePolicy(**dict(zip(names, row, strict=True))) for row in tx.execute(tx.sql.POLICIES)}
