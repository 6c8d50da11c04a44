"""What the doctor looks at. Each check returns what it found; none of them writes."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import windlass
from windlass.cli.health import SILENT, live, silence, unhandled
from windlass.cli.output import clean
from windlass.cli.units import plural, size, span
from windlass.job import Job, Status
from windlass.stores.base import RECLAIM_AFTER
from windlass.stores.sqlite.place import NETWORK_FILE_SYSTEMS
from windlass.worker import host

if TYPE_CHECKING:
    from windlass.app import Windlass
    from windlass.stores.base import WorkerRow

LONG_LOG = 64 << 20
MANY_ENDED = 1_000_000
MANY_FAILED = 10_000
LITTLE_DISK, TOO_LITTLE_DISK = 1 << 30, 100 << 20
MENDED = ((3, 44, 6), (3, 45, 0)), ((3, 50, 7), (3, 51, 0))
"""Versions, from and before, in which the WAL-reset race was mended besides 3.51.3 and later."""


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    check: str
    level: Level
    text: str
    way_out: str = ""


def checks(app: Windlass) -> Iterator[Finding]:
    """All checks that are quick."""
    status, workers = app.store.status(), app.workers()
    counts = app.counts(("status", "type", "queue"))
    yield _schema(status)
    yield _journal(status)
    yield _file_system(status)
    yield _sqlite(str(status["sqlite_version"]))
    yield _log(status)
    yield _disk(status)
    pending = sum(row["count"] for row in counts if row["status"] == Status.PENDING)
    yield _workers(workers, pending)
    yield from _lost(workers)
    yield from _versions(workers)
    for lane in unhandled(counts, workers) if live(workers) else ():
        lane_name = f"type {clean(lane.type)} in queue {clean(lane.queue)}"
        text = f"{lane.pending:,} jobs wait and no live worker handles them: {lane_name}"
        yield Finding("types", Level.PROBLEM, text, "start a worker whose app has the type, or restart old ones")
    yield from _stuck(app, workers)
    yield _ended(counts)


def integrity(app: Windlass) -> Finding:
    """SQLite's own check, which reads the whole file."""
    check = getattr(app.store, "check", None)
    answer = check() if check else "ok"
    if answer == "ok":
        return Finding("integrity", Level.OK, "the file is intact")
    way_out = "stop the workers, copy the file with its -wal, and rescue what can be: sqlite3 FILE .recover"
    return Finding("integrity", Level.PROBLEM, f"the file is damaged: {clean(answer)}", way_out)


def wal_reset_race(version: tuple[int, ...]) -> bool:
    """Whether this SQLite can corrupt a database when somebody commits while another connection checkpoints."""
    return (3, 7, 0) <= version <= (3, 51, 2) and not any(since <= version < before for since, before in MENDED)


def _schema(status: Mapping[str, Any]) -> Finding:
    return Finding("schema", Level.OK, f"schema {status['schema']} (current)")


def _journal(status: Mapping[str, Any]) -> Finding:
    if status["journal_mode"] == "wal":
        return Finding(
            "journal", Level.OK, f"WAL on, synchronous {status['synchronous']} for windlass's own connections"
        )
    text = f"journal mode is {status['journal_mode']}, so readers and writers wait for each other"
    return Finding("journal", Level.PROBLEM, text, "somebody turned WAL off; the next worker turns it on: find who did")


def _file_system(status: Mapping[str, Any]) -> Finding:
    kind = status["file_system"]
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding(
            "disk", Level.PROBLEM, f"the file is on a network file system ({kind})", "move it to a local disk"
        )
    return Finding("disk", Level.OK, f"local file system ({kind})" if kind else "file system: the system does not tell")


def _sqlite(version: str) -> Finding:
    if not wal_reset_race(tuple(int(part) for part in version.split("."))):
        return Finding("sqlite", Level.OK, f"SQLite {version}")
    text = (
        f"SQLite {version} has the WAL-reset race: a commit during a checkpoint can corrupt a file. windlass "
        "checkpoints while nobody can commit; connections of your own do not"
    )
    way_out = "on your own connections: PRAGMA wal_autocheckpoint=0; or a Python with SQLite 3.51.3, 3.50.7 or 3.44.6"
    return Finding("sqlite", Level.WARNING, text, way_out)


def _log(status: Mapping[str, Any]) -> Finding:
    length = size(status["log_bytes"])
    if status["log_bytes"] < LONG_LOG:
        return Finding("log", Level.OK, f"write-ahead log of {length}")
    way_out = "end it: a forgotten transaction, a database browser, a backup that hangs"
    return Finding(
        "log", Level.WARNING, f"write-ahead log of {length}: a long reader keeps it from being reset", way_out
    )


def _disk(status: Mapping[str, Any]) -> Finding:
    free = shutil.disk_usage(Path(status["where"]).parent).free
    if free >= LITTLE_DISK:
        return Finding("space", Level.OK, f"{size(free)} free on its disk")
    level = Level.PROBLEM if free < TOO_LITTLE_DISK else Level.WARNING
    return Finding(
        "space", level, f"only {size(free)} free on its disk", "make room: windlass db prune --older-than 1d"
    )


def _workers(workers: list[WorkerRow], pending: int) -> Finding:
    living = live(workers)
    if living:
        newest = span(min(silence(worker) for worker in living))
        return Finding("workers", Level.OK, f"{plural(len(living), 'worker')}, newest heartbeat {newest} ago")
    if pending:
        text = f"no worker is running, and work waits: {plural(pending, 'job')}"
        return Finding("workers", Level.PROBLEM, text, "windlass worker app:wl")
    return Finding("workers", Level.OK, "no worker is running, and no job waits")


def _lost(workers: list[WorkerRow]) -> Iterator[Finding]:
    for worker in workers:
        if silence(worker) <= SILENT:
            continue
        gone = (
            "its process is gone" if host.is_dead(worker.host, one_machine=True) else "its process hangs, or is paused"
        )
        last = f"its last heartbeat was {span(silence(worker))} ago"
        text = f"worker {clean(worker.name)} is lost with {worker.leases} jobs in hand: {last}, {gone}"
        yield Finding(
            "lost", Level.PROBLEM, text, "any worker returns its jobs: windlass worker app:wl, or windlass tick"
        )


def _versions(workers: list[WorkerRow]) -> Iterator[Finding]:
    versions = Counter(worker.version for worker in live(workers))
    if set(versions) - {windlass.__version__}:
        found = ", ".join(f"{clean(version)} ({count})" for version, count in sorted(versions.items()))
        text = f"workers run windlass {found}; this is {windlass.__version__}"
        yield Finding(
            "versions", Level.WARNING, text, "restart the old ones; neighbouring versions work together until then"
        )


def _stuck(app: Windlass, workers: list[WorkerRow]) -> Iterator[Finding]:
    """Leases past their type's timeout, and leases of workers that are no longer there."""
    policies, known = app.store.policies(), {worker.id for worker in workers}
    now, overdue, orphaned = datetime.now(UTC), 0, 0
    for job in _processing(app):
        if job.worker_id is None or job.started_at is None:
            continue  # claimed by hand: only its own deadline says
        policy = policies.get(job.type)
        limit = timedelta(microseconds=policy.timeout + RECLAIM_AFTER) if policy and policy.timeout else None
        overdue += limit is not None and now > job.started_at + limit
        orphaned += job.worker_id not in known
    way_out = "every worker reclaims them within seconds; with none running: windlass tick"
    if overdue:
        yield Finding("leases", Level.PROBLEM, f"{overdue:,} jobs are past their timeout and still held", way_out)
    if orphaned:
        yield Finding("leases", Level.PROBLEM, f"{orphaned:,} jobs are held by workers that no longer exist", way_out)


def _processing(app: Windlass) -> Iterator[Job]:
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
            "retention", Level.WARNING, text, "windlass db prune --older-than 7d; or a shorter Windlass(retention=…)"
        )
    if total[Status.FAILED] > MANY_FAILED:
        text = f"{total[Status.FAILED]:,} failed jobs are kept: they are never pruned by themselves"
        return Finding("retention", Level.WARNING, text, "windlass db prune --status failed --older-than 30d")
    return Finding("retention", Level.OK, f"{ended:,} ended and {total[Status.FAILED]:,} failed jobs are kept")
