"""Firing: the moments of schedules become jobs, each exactly once.

A schedule moves on, if it is still as it was read, in the transaction that stores its jobs. So a crash fires a moment
again only if nothing of it was stored. The id of a job follows from its moment, too: no moment is stored twice even if
a schedule is deleted and made again, or is backfilled over moments that it has fired.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from treadle import codec
from treadle.clock import LAST, SECOND
from treadle.codec import as_json
from treadle.errors import JobNotFound, ScheduleNotFound, WrongStatus
from treadle.ids import id_at, new_id
from treadle.job import Job, NewJob
from treadle.schedule import Admitted, admitted, due_moments, latest, next_after
from treadle.stores.rows import Due, Fired, ScheduleRow
from treadle.stores.shared import enqueue, manage
from treadle.stores.shared.schedules import to_row
from treadle.stores.transaction import Transaction

log = logging.getLogger("treadle")

MOST_JOBS = 200
"""About as many jobs are stored in one transaction: on SQLite nobody else can write meanwhile."""
MOST_SECONDS = 0.02
"""The same, for the search for moments: after a long outage that takes a while for each schedule."""

Name = tuple[str, str]
"""The tenant and the name of a schedule."""


class ToFire(NamedTuple):
    """A schedule, and what its jobs get."""

    row: ScheduleRow
    queue: str
    priority: int
    max_attempts: int
    fair: str

    @property
    def key(self) -> Name:
        return self.row.tenant, self.row.name

    def job(self, id: str, fired_at: int) -> NewJob:
        row = self.row
        return NewJob(
            id=id,
            type=row.type,
            queue=self.queue,
            tenant=row.tenant,
            subject=row.subject,
            payload=row.payload,
            priority=self.priority,
            max_attempts=self.max_attempts,
            schedule=row.name,
            fired_at=fired_at,
            fair=self.fair,
        )

    def job_at(self, moment: int) -> NewJob:
        """The one job of a moment."""
        return self.job(id_at(moment, *self.key), moment)


class Decision(NamedTuple):
    """What becomes of a schedule that is due."""

    schedule: ToFire
    jobs: list[NewJob]
    cancels: list[str]
    next_at: int | None
    skipped_at: int | None = None
    skipped_why: str | None = None

    def moved_on(self) -> tuple[object, ...]:
        """A row of ADVANCE_SCHEDULES."""
        row, last = self.schedule.row, self.jobs[-1] if self.jobs else None
        fired = (last.id, last.fired_at) if last else (None, None)
        return row.tenant, row.name, row.next_at, row.revision, self.next_at, *fired, self.skipped_at, self.skipped_why


def next_fire(tx: Transaction) -> Due:
    next_at: int | None = tx.value(tx.sql.NEXT_FIRE)
    if next_at is None:
        return Due(now=False)
    return Due(next_at <= tx.now, next_at, max(0, next_at - tx.now) / SECOND)


def fire(tx: Transaction, limit: int) -> Fired:
    due = [_to_fire(row) for row in tx.execute(tx.sql.DUE_SCHEDULES, {"now": tx.now, "limit": limit})]
    watched = [one.key for one in due if one.row.overlap != "allow"]
    unended = _unended(tx, watched)
    decisions: list[Decision] = []
    stored, began = 0, time.monotonic()
    for one in due:
        if stored >= MOST_JOBS or time.monotonic() - began > MOST_SECONDS:
            break
        decisions.append(_decide(one, unended[one.key], tx.now))
        stored += len(decisions[-1].jobs)
    if decisions:
        stored = _carry_out(tx, decisions)
    if watched:  # last: who retries such a job waits for this transaction
        tx.execute(tx.sql.DROP_ENDED, {"names": as_json(watched)})
    return Fired(stored, more=len(due) == limit or len(decisions) < len(due))


def _to_fire(row: Sequence[Any]) -> ToFire:
    return ToFire(to_row(row), *row[-4:])


def _unended(tx: Transaction, names: Sequence[Name]) -> defaultdict[Name, list[tuple[str, bool]]]:
    """The jobs of these schedules that have not ended, each with whether it runs."""
    found: defaultdict[Name, list[tuple[str, bool]]] = defaultdict(list)
    if names:
        for tenant, name, id, runs in tx.execute(tx.sql.UNENDED, {"names": as_json(names)}):
            found[tenant, name].append((id, bool(runs)))
    return found


def _decide(one: ToFire, unended: Sequence[tuple[str, bool]], now: int) -> Decision:
    row = one.row
    assert row.next_at is not None
    try:
        last = latest(row.rule, row.next_at, now)
        wanted = due_moments(row.rule, row.missed, row.next_at, last, now)
        next_at = next_after(row.rule, now)
        _check_by_hand(row, next_at)
    except Exception as error:  # it must not keep the others from being fired
        log.error("schedule %r cannot be read, so it is not fired any more: %r", row.name, error)
        return Decision(one, [], [], None, row.next_at, f"its rule cannot be read: {error}")
    running = sum(runs for _, runs in unended)
    let = admitted(row.overlap, wanted, len(unended) - running, running)
    jobs = [one.job_at(moment) for moment in let.moments]
    cancels = [id for id, _ in unended] if let.cancels else []
    return Decision(one, jobs, cancels, next_at, *_skipped(one, last, wanted, let, unended))


def _check_by_hand(row: ScheduleRow, next_at: int | None) -> None:
    """What was broken by hand must not reach a statement: that would fail for all schedules of the batch."""
    if codec.decode_as(row.payload, dict[str, Any]) is None:
        raise ValueError("its payload is not a JSON object")
    if next_at is not None and next_at > LAST:
        raise ValueError("its next moment is beyond all dates")


def _skipped(
    one: ToFire, last: int, wanted: list[int], let: Admitted, unended: Sequence[tuple[str, bool]]
) -> tuple[int | None, str | None]:
    """The last moment that gets no job, and why."""
    if left_out := [moment for moment in wanted if moment not in let.moments]:
        earlier = unended[0][0] if unended else "of an earlier moment"
        return left_out[-1], f"job {earlier} has not ended (overlap={one.row.overlap!r})"
    if one.row.next_at not in wanted:
        return one.row.next_at if wanted else last, f"no worker or tick fired it in time (missed={one.row.missed!r})"
    return None, None


def _carry_out(tx: Transaction, decisions: Sequence[Decision]) -> int:
    """Move the schedules on, and store the jobs of those that were as they were read."""
    rows = as_json([decision.moved_on() for decision in decisions])
    moved = {(tenant, name) for tenant, name in tx.execute(tx.sql.ADVANCE_SCHEDULES, {"rows": rows})}
    ours = [decision for decision in decisions if decision.schedule.key in moved]
    for id in sorted(id for decision in ours for id in decision.cancels):  # as a bulk action locks them
        with suppress(WrongStatus, JobNotFound):  # it has just ended
            manage.cancel(tx, id)
    jobs = [job for decision in ours for job in decision.jobs]
    watched = [job for decision in ours if decision.schedule.row.overlap != "allow" for job in decision.jobs]
    if jobs:
        enqueue.insert_again(tx, jobs)
    if watched:
        tx.execute(tx.sql.ADD_FIRED, {"rows": as_json([(job.tenant, job.schedule, job.id) for job in watched])})
    return len(jobs)


# By hand


def fire_now(tx: Transaction, tenant: str, name: str) -> Job:
    one = _lock(tx, tenant, name)
    [job] = enqueue.insert(tx, [one.job(new_id(), tx.now)])
    tx.execute(tx.sql.ADD_FIRED, {"rows": as_json([(tenant, name, job.id)])})
    tx.execute(tx.sql.SET_LAST_JOB, {"tenant": tenant, "name": name, "id": job.id})
    return job


def backfill(
    tx: Transaction,
    tenant: str,
    name: str,
    moments: Sequence[int],
    operation: str | None = None,
    position: str | None = None,
) -> int:
    """These jobs do not count as overlap: they would keep the schedule from firing until the last one has ended."""
    one = _lock(tx, tenant, name)
    jobs = {job.id: job for job in map(one.job_at, moments)}
    there = {row[0] for row in tx.execute(tx.sql.EXISTING_IDS, {"ids": as_json(list(jobs))})}
    new = [job for id, job in jobs.items() if id not in there]
    if new:
        enqueue.insert(tx, new)
    if operation is not None:
        counts = {"done": len(new), "skipped": len(jobs) - len(new), "position": position}
        tx.execute(tx.sql.ADVANCE_OPERATION, {**counts, "id": operation, "now": tx.now})
    return len(new)


def _lock(tx: Transaction, tenant: str, name: str) -> ToFire:
    tx.act_for(tenant)
    row = tx.execute(tx.sql.LOCK_TO_FIRE, {"tenant": tenant, "name": name}).fetchone()
    if row is None:
        raise ScheduleNotFound(name, tenant)
    return _to_fire(row)
