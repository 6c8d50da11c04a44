"""The closing of batches: when all members have ended, the job that was asked for is enqueued, once for each closing.

Who closes a batch has locked its row, and so has who retries a member. Nobody else does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from treadle.batch import NewBatch
from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.errors import CommitUnknown, JobNotFound, StoreBusy, StoreRefused, StoreUnusable
from treadle.ids import id_at
from treadle.job import NewJob, Status
from treadle.stores.shared import batches, enqueue
from treadle.stores.shared.batches import ADDED, COUNTED, Name
from treadle.stores.shared.waiting import arrive
from treadle.stores.transaction import Connections, Insert, Transaction

if TYPE_CHECKING:
    from treadle.stores.shared.store import SQLStore

MOST_COUNTS = 2_000
"""Rows of counts that one transaction adds up: on SQLite others wait for it."""


class Locked(NamedTuple):
    """A batch that nobody else closes or opens until we commit."""

    tenant: str
    name: str
    then: str | None
    on_failure: str | None
    closings: int
    closed_at: int | None

    def closing(self, sum: Counter[str], now: int) -> NewJob | None:
        """The job to enqueue. Its id follows from the closing."""
        completed = sum[Status.COMPLETED] >= sum[ADDED]
        job = batches.to_request(self.then if completed else self.on_failure)
        id = id_at(now, "batch", self.tenant, self.name, str(self.closings + 1))
        return job and msgspec.structs.replace(job, id=id)


def close(tx: Transaction, names: Collection[Name], *, postpone: bool) -> tuple[set[Name], int]:
    """Add up the counts of these batches, and close those whose members have all ended. Return those that are to be
    looked at again, and how many counts were added up. `postpone`: what they enqueue could not be stored just now."""
    asked = {"names": as_json(sorted(names))}
    locked = {row[:2]: Locked(*row) for row in tx.execute(tx.sql.LOCK_FREE_BATCHES, asked).fetchall()}
    busy = set(names) - locked.keys()
    gone = busy - {(tenant, name) for tenant, name in tx.execute(tx.sql.EXISTING_BATCHES, asked)} if busy else set()
    taken = {"names": as_json(sorted({*locked, *gone})), "most": MOST_COUNTS}
    rows = tx.execute(tx.sql.TAKE_BATCH_COUNTS, taken).fetchall()
    sums = {name: Counter[str]() for name in locked}
    for tenant, name, *counts in rows:
        if (tenant, name) in sums:
            sums[tenant, name].update(dict(zip(COUNTED, counts, strict=True)))
    if counted := {name: sum for name, sum in sums.items() if any(sum.values())}:
        batches.put_counts(tx, counted)
    if len(rows) == MOST_COUNTS:  # there may be more
        return set(names), len(rows)
    _decide(tx, locked, sums, postpone=postpone)
    return busy - gone, len(rows)


def _decide(
    tx: Transaction, locked: Mapping[Name, Locked], sums: Mapping[Name, Counter[str]], *, postpone: bool
) -> None:
    changed: list[tuple[Locked, NewJob | None, bool]] = []
    for name, batch in locked.items():
        sum = sums[name]
        done = sum.total() - sum[ADDED] >= sum[ADDED]
        job = batch.closing(sum, tx.now) if done and batch.closed_at is None else None
        if job is not None and postpone:
            arrive(tx, [(tx.now + SECOND, "batch", *name)])
        elif done == (batch.closed_at is None):
            changed.append((batch, job, done))
    stored = _enqueue(tx, [job for _, job, _ in changed if job is not None])
    rows = [
        (b.tenant, b.name, tx.now if done else None, b.closings + done, job and stored[job.id])
        for b, job, done in changed
    ]
    if rows:
        tx.execute(tx.sql.SET_BATCHES, {"rows": as_json(rows)})


def _enqueue(tx: Transaction, jobs: list[NewJob]) -> dict[str, str]:
    """The id of each, or of the job that holds its dedupe key."""
    for statement in tx.sql.WAIT_BRIEFLY if any(job.dedupe is not None for job in jobs) else ():
        tx.execute(statement)
    stored = enqueue.insert(tx, jobs) if jobs else []
    return {job.id: there.id for job, there in zip(jobs, stored, strict=True)}


def insert_batch(store: SQLStore[Any], new: NewBatch, connection: Any = None) -> None:
    """Store a batch and its members, in one transaction."""

    def steps(tx: Transaction, how: Insert, *, again: bool = False) -> None:
        tx.act_for(new.tenant)
        batches.add(tx, new, again=again)
        if new.jobs:
            store._insert(tx, new.jobs, how)

    if connection is not None:
        with store._within(connection) as tx:
            return steps(tx, enqueue.insert_again)
    database: Connections = store.database
    try:
        return database.write("insert", steps, enqueue.insert)
    except (CommitUnknown, StoreRefused, JobNotFound) as error:  # as `SQLStore.insert`
        try:
            return database.write("insert", steps, enqueue.insert_again, again=True)
        except (StoreUnusable, StoreBusy):
            raise error from None
