"""The small periodic duties of every worker: rescue, compact, reconcile, prune and such. There is no leader to lose."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from treadle import clock
from treadle.errors import TreadleError
from treadle.filters import Filter
from treadle.job import Status
from treadle.pausing import put_back
from treadle.stores.base import LAST_PRUNED
from treadle.stores.rows import ChoresDue
from treadle.worker import host, parts

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.registry import JobType
    from treadle.stores.base import Engine, Store, TypePolicy

log = logging.getLogger("treadle")

T = TypeVar("T")
Chore = Callable[[], int]

PRUNED = (Status.COMPLETED, Status.CANCELLED)
"""What is pruned by default. A failed job stays until a person has looked at it."""
CHUNK, PAGE = 500, 100
OLD, OLD_IN_A_FILE = 5_000, 8_000
"""Jobs that are pruned in one transaction. All other writers of a SQLite file wait for it, about 7 ms."""
PAUSE = 0.005
"""Seconds between two of them: a thread or process that only just ended a transaction would be the first to begin."""


async def do_chores(app: Treadle, every: float) -> None:
    """Do each chore periodically, until cancelled. One that fails is tried again, and does not delay the others."""
    policies = published_types(app)
    chores: list[tuple[Chore, float]] = [
        (app.store.compact, 3 * every),
        (app.store.sample_backlog, 6 * every),
        (lambda: _prune(app), 12 * every),
        (lambda: _reconcile(app), 60 * every),
        (lambda: app.store.publish(policies), 12 * every),
        (lambda: declare_schedules(app), 12 * every),
    ]
    # Not in the loop's own pool: handlers may fill that, and a rescue must not wait for them.
    threads = ThreadPoolExecutor(len(chores) + len(ChoresDue._fields), "treadle-chores")
    try:
        await asyncio.gather(
            _repeat_due(app, every, threads), *(_repeat(chore, seconds, threads) for chore, seconds in chores)
        )
    finally:
        threads.shutdown(wait=False)


async def _repeat_due(app: Treadle, every: float, threads: ThreadPoolExecutor) -> None:
    """The chores that seldom have something to do. One look at the database finds out which have."""
    chores = app.store.rescue, lambda: expire(app.store), lambda: put_back(app.store), opening(app)
    while True:
        due = await _do(app.store.chores_due, threads) or ()
        await asyncio.gather(*(_do(chore, threads) for chore, is_due in zip(chores, due, strict=False) if is_due))
        await asyncio.sleep(every * random.uniform(0.8, 1.2))


async def _repeat(chore: Chore, every: float, threads: ThreadPoolExecutor) -> None:
    while True:
        await _do(chore, threads)
        await asyncio.sleep(every * random.uniform(0.8, 1.2))


async def _do(chore: Callable[[], T], threads: ThreadPoolExecutor) -> T | None:
    """What it returns; None if it failed."""
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, chore)
    except TreadleError as error:
        parts.warn("a chore has to wait: %s", error)
    except (Exception, SystemExit):  # `already_done` is the user's code: it must not end the process
        log.exception("a chore failed")
    return None


def opening(app: Treadle) -> Callable[[], int]:
    """A chore that lets jobs go that are parked for limits with free places. It goes on where it ended before."""
    after = ""

    def open_some() -> int:
        nonlocal after
        opened, after = app.store.open_limits(after)
        return opened

    return open_some


def published_types(app: Treadle) -> list[TypePolicy]:
    """How its types are run, for producers that know only their names, and for the limits."""
    return [job_type.published(app.redactor.published) for job_type in app.registry.types.values()]


def declare_schedules(app: Treadle) -> int:
    """Declare the schedules again: of several declarations, one wins when the workers of the others are gone."""
    if declared := list(app.registry.schedules.values()):
        app.store.declare_schedules(declared)
    return len(declared)


def declare_local_dead(store: Engine) -> int:
    """Declare dead the workers whose process on this machine is gone, without waiting for beats. The jobs returned."""
    returned = 0
    for worker in store.workers():
        if worker.broken:
            log.warning("the row of worker %s was broken by hand: %s", worker.id, ", ".join(worker.broken))
        if host.is_dead(worker.host, single_host=store.single_host):
            returned += store.declare_dead(worker.id, "its process is gone", beats=worker.beats)
    return returned


def reconcile(store: Store, types: Mapping[str, JobType]) -> int:
    """Complete the jobs whose work exists already: `already_done` looks at them page by page."""
    unfinished = tuple(status for status in Status if status is not Status.COMPLETED)
    completed = 0
    for name, job_type in types.items():
        if job_type.already_done is None:
            continue
        cursor: str | None = None
        while True:
            page = store.jobs(Filter(statuses=unfinished, types=(name,)), PAGE, cursor)
            done = job_type.already_done(page.jobs) if page.jobs else ()
            completed += store.complete([job.id for job in done]) if done else 0
            if (cursor := page.next) is None:
                break
    return completed


def prune(store: Engine, statuses: Sequence[Status], age: float, *, rest: float = 0.0) -> Generator[int]:
    """Delete jobs that ended more than `age` seconds ago, in small transactions: others can write in between.

    `rest`: how long to pause after a transaction, compared with the time that it took.
    """
    began, most = time.monotonic(), OLD_IN_A_FILE if store.single_host else OLD
    while deleted := store.prune(statuses, clock.seconds(age), most):
        yield deleted
        if deleted < LAST_PRUNED:
            return
        time.sleep(max(PAUSE, rest * (time.monotonic() - began)))
        began = time.monotonic()


def expire(store: Engine) -> int:
    """Cancel the jobs that were not started in time, in small transactions: nobody may claim their type."""
    expired = chunk = store.expire(CHUNK)
    while chunk == CHUNK:
        expired += (chunk := store.expire(CHUNK))
    return expired


def _reconcile(app: Treadle) -> int:
    """`already_done` is the user's code, and may leave open what a thread of ours has to close."""
    with app.hooks.around():
        return app.reconcile()


def _prune(app: Treadle) -> int:
    """Faster than jobs can end, and not much faster: those that run would have to wait. SQLite works on their own
    cores, and its transactions wait for each other, so it rests longer."""
    rest = 4.0 if app.store.single_host else 1.7
    if app.retention is None:  # all jobs are kept; their usage by the minute is not
        return sum(prune(app.store, (), 0, rest=rest))
    return sum(prune(app.store, PRUNED, app.retention.total_seconds(), rest=rest))
