"""What the doctor looks at. Each check returns what it found; none of them writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import treadle
from treadle import clock
from treadle.cli import checks_libsql, checks_postgres, checks_sqlite
from treadle.cli.finding import Finding, Level
from treadle.cli.output import clean
from treadle.health import SILENT, live, silence
from treadle.job import Job, Status
from treadle.stores.base import RECLAIM_AFTER
from treadle.units import format_duration, plural
from treadle.worker import host

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.stores.base import WorkerRow

MANY_ENDED = 1_000_000
MANY_FAILED = 10_000
STANDSTILL = ("no_worker", "unhandled")
"""Problems of the queue that do not pass by themselves."""
OF_STORE = {"sqlite": checks_sqlite.checks, "postgresql": checks_postgres.checks, "libsql": checks_libsql.checks}


def checks(app: Treadle, *, quick: bool) -> Iterator[Finding]:
    """Of the database, then of what is in it. `quick`: without what takes long on a large one."""
    status, workers, now = app.store.status(), app.workers(), app.store.now()
    counts, living = app.counts(("status", "type", "queue")), live(workers, now)
    yield _schema(status)
    if of_store := OF_STORE.get(status["store"]):
        yield from of_store(app, status, quick=quick)
    problems = [problem for problem in app.problems() if problem.code != "lost_worker"]
    if all(problem.code != "no_worker" for problem in problems):
        yield _workers(living, now)
    yield from _lost(app, workers, now)
    yield from _versions(living)
    for problem in problems:
        level = Level.PROBLEM if problem.code in STANDSTILL else Level.WARNING
        yield Finding(problem.code, level, clean(problem.text), clean(problem.next))
    yield from _stuck(app, workers, now)
    yield _ended(counts)


def _schema(status: Mapping[str, Any]) -> Finding:
    return Finding("schema", Level.OK, f"schema {status['schema']} (current)")


def _workers(living: list[WorkerRow], now: int) -> Finding:
    if not living:
        return Finding("workers", Level.OK, "no worker is running, and no job is due")
    newest = format_duration(min(silence(worker, now) for worker in living))
    return Finding("workers", Level.OK, f"{plural(len(living), 'worker')}, newest heartbeat {newest} ago")


def _lost(app: Treadle, workers: list[WorkerRow], now: int) -> Iterator[Finding]:
    for worker in workers:
        if silence(worker, now) <= SILENT:
            continue
        dead = host.is_dead(worker.host, one_machine=app.store.one_machine)
        gone = "its process is gone" if dead else "its process hangs, is paused, or out of reach"
        last = f"its last heartbeat was {format_duration(silence(worker, now))} ago"
        text = f"worker {clean(worker.name)} is lost with {worker.leases} jobs in hand: {last}, {gone}"
        yield Finding(
            "lost", Level.PROBLEM, text, "any worker returns its jobs: treadle worker app:td, or treadle tick"
        )


def _versions(living: list[WorkerRow]) -> Iterator[Finding]:
    versions = Counter(worker.version for worker in living)
    if set(versions) - {treadle.__version__}:
        found = ", ".join(f"{clean(version)} ({count})" for version, count in sorted(versions.items()))
        text = f"workers run treadle {found}; this is {treadle.__version__}"
        yield Finding(
            "versions", Level.WARNING, text, "restart the old ones; neighbouring versions work together until then"
        )


def _stuck(app: Treadle, workers: list[WorkerRow], at: int) -> Iterator[Finding]:
    """Leases past their type's timeout, and leases of workers that are no longer there."""
    policies, known = app.store.policies(), {worker.id for worker in workers}
    now, overdue, orphaned = clock.to_datetime(at), 0, 0
    for job in _processing(app):
        if job.worker_id is None or job.started_at is None:
            continue  # claimed by hand: only its own deadline says
        policy = policies.get(job.type)
        limit = timedelta(microseconds=policy.timeout + RECLAIM_AFTER) if policy and policy.timeout else None
        overdue += limit is not None and now > job.started_at + limit
        orphaned += job.worker_id not in known
    way_out = "every worker reclaims them within seconds; with none running: treadle tick"
    if overdue:
        yield Finding("leases", Level.PROBLEM, f"{overdue:,} jobs are past their timeout and still held", way_out)
    if orphaned:
        yield Finding("leases", Level.PROBLEM, f"{orphaned:,} jobs are held by workers that no longer exist", way_out)


def _processing(app: Treadle) -> Iterator[Job]:
    cursor: str | None = None
    while True:
        page = app.jobs(status=Status.PROCESSING, limit=200, cursor=cursor)
        yield from page
        if (cursor := page.next) is None:
            return


def _ended(counts: list[dict[str, Any]]) -> Finding:
    total: Counter[str] = Counter()
    for row in counts:
        total[row["status"]] += row["count"]
    ended = total[Status.COMPLETED] + total[Status.CANCELLED]
    if ended > MANY_ENDED:
        text = f"{ended:,} completed and cancelled jobs are kept"
        return Finding(
            "retention", Level.WARNING, text, "treadle db prune --older-than 7d; or a shorter Treadle(retention=…)"
        )
    if total[Status.FAILED] > MANY_FAILED:
        text = f"{total[Status.FAILED]:,} failed jobs are kept: they are never pruned by themselves"
        return Finding("retention", Level.WARNING, text, "treadle db prune --status failed --older-than 30d")
    return Finding("retention", Level.OK, f"{ended:,} ended and {total[Status.FAILED]:,} failed jobs are kept")
