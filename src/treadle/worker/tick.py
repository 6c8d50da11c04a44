"""One bounded pass of a worker, for cron and serverless callers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from treadle import clock
from treadle.diagnosis import BEAT, is_alive
from treadle.errors import BadOption
from treadle.outcome import OutcomeKind
from treadle.results import run_on_a_loop
from treadle.stores.base import ClaimRequest, Engine
from treadle.stores.rows import Due
from treadle.worker.chores import declare_local_dead, declare_schedules, expire
from treadle.worker.firing import fire_due
from treadle.worker.worker import Worker

if TYPE_CHECKING:
    from treadle.app import Treadle


BETWEEN_LOOKS = 1.2 * BEAT
"""Seconds between the two looks at a worker that may be dead: one beat, and what the time between two beats varies."""


class TickReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a tick did, and when it is worth calling again."""

    ok: bool = True
    fired: int = 0
    """Jobs that schedules have stored."""
    rescued: int = 0
    ran: int = 0
    completed: int = 0
    retried: int = 0
    snoozed: int = 0
    suspended: int = 0
    failed: int = 0
    cancelled: int = 0
    """Also those that were not started in time."""
    released: int = 0
    next_due_at: datetime | None = None
    """When the next job or schedule is due; a time in the past means now."""


def tick(app: Treadle, max_jobs: int, max_seconds: float) -> TickReport:
    """Rescue, fire schedules, claim at most `max_jobs` within `max_seconds`, and run them here. What has not ended
    then is released.

    A worker that looks lost is dead if its count then stands still for a beat. If none looks lost, no tick waits.
    """
    if max_jobs < 1 or max_seconds <= 0:
        raise BadOption("tick", (max_jobs, max_seconds), "at least 1 job and more than 0 seconds")
    until = time.monotonic() + max_seconds
    expired = expire(app.store)
    rescued = declare_local_dead(app.store) + app.store.rescue()  # the worker does the former, but does not count it
    fired = declare_and_fire(app, max_seconds / 2)  # what is left is for the jobs
    worker = Worker(app, concurrency=min(max_jobs, 10), grace=0, max_jobs=max_jobs)
    with ThreadPoolExecutor(1, "treadle-tick") as thread:  # not in the loop's own pool: handlers may fill that
        looked = thread.submit(declare_lost_dead, app.store)
        run_on_a_loop(_pass(worker, until, looked))
    report = report_of(worker, rescued + looked.result(), next_due(app), fired)
    return msgspec.structs.replace(report, cancelled=report.cancelled + expired)


def next_due(app: Treadle) -> int | None:
    """When the next job or schedule is due."""
    due = app.store.due(ClaimRequest(limit=1, types=dict.fromkeys(app.registry.types)))
    return next_of(due, app.store.next_fire())


def declare_lost_dead(store: Engine) -> int:
    """Declare dead the workers that look lost and whose counts do not change for a beat. Return the number of jobs."""
    now = store.now()
    counts = {worker.id: worker.beats for worker in store.workers() if not is_alive(worker, now)}
    if counts:
        time.sleep(BETWEEN_LOOKS)
    return sum(store.declare_dead(id, "its worker stopped beating", beats=beats) for id, beats in counts.items())


def declare_and_fire(app: Treadle, seconds: float) -> int:
    """Store what the code declares, and fire what is due, for about this long. How many jobs were stored."""
    declare_schedules(app)
    return fire_due(app.store, seconds)


def next_of(*times: Due) -> int | None:
    """The earliest of these times."""
    moments = [clock.now() if one.now else one.next_at for one in times]
    return min((at for at in moments if at is not None), default=None)


def report_of(worker: Worker, rescued: int, next_at: int | None, fired: int) -> TickReport:
    counts: dict[str, Any] = {kind.value: worker.outcomes[kind] for kind in OutcomeKind}
    counts["next_due_at"] = clock.optional_moment(next_at)
    return TickReport(fired=fired, rescued=rescued, ran=worker.claimed_total, **counts)


async def _pass(worker: Worker, until: float, looked: Future[int]) -> None:
    async with worker:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until - time.monotonic()):
                await worker.drained()
                if await asyncio.shield(asyncio.wrap_future(looked)):
                    await worker.drained()
