"""Enqueue: jobs become rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from treadle import codec
from treadle.clock import to_datetime
from treadle.codec import as_json
from treadle.declarations import remembered, spec_of, wins
from treadle.diagnosis import alive
from treadle.job import Job, NewJob
from treadle.stores.base import TypePolicy
from treadle.stores.shared import batches, read
from treadle.stores.shared.ending import end_waiting
from treadle.stores.shared.keys import KeyTaker
from treadle.stores.shared.stats import tally
from treadle.stores.shared.waiting import check_parents, refuse_cycles, wait_for_parents
from treadle.stores.transaction import Transaction


def insert(tx: Transaction, jobs: Sequence[NewJob], *, unchecked: bool = False) -> list[Job]:
    """Store `jobs`; for a key that is held, the answer is its holder. `unchecked`: whatever their parents are."""
    if not all(job.is_plain for job in jobs):
        return _insert_with_keys(tx, jobs, unchecked)
    if moved := tx.insert(jobs):
        tally(tx, moved)
    created = to_datetime(tx.now)
    return [job.as_stored(tx.now, created) for job in jobs]


def insert_unchecked(tx: Transaction, jobs: Sequence[NewJob]) -> list[Job]:
    """`insert` of follow-ups: those whose parents are gone by now wait, because nobody would get the error."""
    return insert(tx, jobs, unchecked=True)


def _store(tx: Transaction, jobs: Sequence[NewJob], unchecked: bool) -> None:
    children = [job for job in jobs if job.after]
    if children:
        refuse_cycles(children, jobs)
    if children and not unchecked:
        check_parents(tx, children, jobs)
    tally(tx, tx.insert(jobs))
    batches.count_added(tx, jobs)
    if children:
        wait_for_parents(tx, children, jobs)


def _insert_with_keys(tx: Transaction, jobs: Sequence[NewJob], unchecked: bool) -> list[Job]:
    keys = KeyTaker(tx, jobs)
    rows = {job.id: _behind(keys.row(job), keys.holders) for job in jobs if job.id not in keys.holders}
    if rows:
        _store(tx, list(rows.values()), unchecked)
    for id in keys.successors:
        tx.execute(tx.sql.PARK_SUCCESSOR, {"id": id})
    if keys.replaced:
        end_waiting(tx, list(keys.replaced.values()))
    answers = {id: row.as_stored(tx.now) for id, row in rows.items() if id not in {*keys.replaced, *keys.successors}}
    return [answers.get(job.id) or read.job(tx, keys.holders.get(job.id, job.id)) for job in jobs]


def _behind(job: NewJob, holders: Mapping[str, str]) -> NewJob:
    """The job. It waits for the holder of a key, if that is the answer in place of its parent."""
    if not any(id in holders for id in job.after):
        return job
    return msgspec.structs.replace(job, after=tuple(holders.get(id, id) for id in job.after))


def insert_again(tx: Transaction, jobs: Sequence[NewJob]) -> list[Job]:
    """`insert` where some of the ids may be stored already, by an earlier try whose answer was lost."""
    there = {row[0] for row in tx.execute(tx.sql.EXISTING_IDS, {"ids": as_json([job.id for job in jobs])})}
    new = {job.id: job for job in jobs if job.id not in there}
    stored = dict(zip(new, insert(tx, list(new.values())), strict=True))
    return [stored[job.id] if job.id in stored else read.job(tx, job.id) for job in jobs]


# How types are run, for producers that know a type only by its name


def publish(tx: Transaction, policies: Sequence[TypePolicy]) -> int:
    """Each declaration of a worker, if it wins. Usually all are stored already, as one statement shows."""
    stored = {type: spec for type, spec, _ in tx.execute(tx.sql.DECLARED_TYPES)}
    changed = {policy.type: policy for policy in policies if stored.get(policy.type) != spec_of(policy)}
    rows = list(_winners(tx, changed)) if changed else []
    if rows:
        tx.execute(tx.sql.PUBLISH, {"rows": as_json(rows), "now": tx.now})
        tx.execute(tx.sql.LIMITS_CHANGED)
    return len(rows)


def _winners(tx: Transaction, changed: Mapping[str, TypePolicy]) -> Iterator[tuple[Any, ...]]:
    """Those that win, in the order of their types, so that no two workers deadlock."""
    stored = {row[0]: row for row in tx.execute(tx.sql.LOCK_DECLARED_TYPES, {"types": as_json(list(changed))})}
    living = alive(read.workers(tx), tx.now)
    for type, policy in sorted(changed.items()):
        _, current, text = stored.get(type, (type, "", ""))
        known: dict[str, int] = codec.decode_as(text, dict[str, int]) or {}
        spec, live = spec_of(policy), {worker.declared[type] for worker in living if type in worker.declared}
        if wins(spec, current, known, live):
            yield *msgspec.structs.astuple(policy), spec, as_json(remembered(known, spec, tx.now))


def policies(tx: Transaction) -> dict[str, TypePolicy]:
    names = TypePolicy.__struct_fields__  # the last one, the arguments, is large, and for forms alone
    return {row[0]: TypePolicy(**dict(zip(names, row, strict=False))) for row in tx.execute(tx.sql.POLICIES)}


def arguments(tx: Transaction, type: str) -> str:
    return tx.value(tx.sql.ARGUMENTS, {"type": type}) or ""
