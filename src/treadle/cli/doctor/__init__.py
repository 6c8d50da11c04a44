"""`treadle doctor`: finds what is wrong with the database, the workers and the queue. No check writes anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import click
import msgspec

import treadle
from treadle.app import Treadle
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command
from treadle.cli.errors import PROBLEMS
from treadle.cli.output import clean
from treadle.diagnosis import after_loss, alive, is_alive, silence
from treadle.job import Status
from treadle.stores.base import Store, WorkerRow
from treadle.stores.rows import Defect
from treadle.stores.sqlite.store import SQLiteStore
from treadle.units import format_duration, plural
from treadle.worker import host

Level = Literal["ok", "warning", "problem"]
MARKS = {"ok": ("✓ ", "green"), "warning": ("⚠ ", "yellow"), "problem": ("✗ ", "red")}
MANY_ENDED, MANY_FAILED = 1_000_000, 10_000
STANDSTILL = ("no_worker", "unhandled")  # problems of the queue that do not go away by themselves

RETURNS = "any worker or tick returns them within seconds: treadle tick app:td"
DEFECTS = {
    "stuck": ("leases", "job", "still held past the timeout", RETURNS),
    "ownerless": ("leases", "job", "held by workers that no longer exist", RETURNS),
    "several": ("rows", "job", "in several of ready, leases and finished", "a worker that gets to one corrects it"),
    "nowhere": ("rows", "job", "in none of ready, leases and finished", "treadle jobs run-now ID, or delete it"),
    "orphaned": ("rows", "row", "in ready without a job", "a worker that gets to one deletes it"),
    "number": ("rows", "job", "with an impossible number of attempts or snoozes", "correct the row by hand"),
    "payload": (
        "rows",
        "job",
        "whose payload is not a JSON object",
        "each of its attempts will fail: correct or cancel it",
    ),
    "count": ("rows", "count", "below zero", "rows were deleted by hand: correct the count, too"),
}
"""By code: the check, what has the defect, what is wrong with it, and the way out."""


class Finding(msgspec.Struct, frozen=True):
    """What a check has found, and how bad it is."""

    check: str
    level: Level
    text: str
    way_out: str = ""


HELP = """Check the database, the workers and the queue. The exit code is 1 if there is a problem.

It is about the whole queue, and no liveness probe: a restart of one worker would fix none of what it finds. For that,
use treadle worker app:td --health 127.0.0.1:8081"""


@command("doctor", help=HELP)
@click.option("--quick", is_flag=True, help="Do not read the whole of a SQLite file to check it.")
def doctor(shared: Shared, quick: bool) -> None:
    app = database(shared)
    with shared.err.status("looking"):
        findings = list(checks(app, quick=quick))
    levels = Counter[str](finding.level for finding in findings)
    counts = {"problems": levels["problem"], "warnings": levels["warning"]}
    if not shared.printed_json({"where": app.store.where, **counts, "findings": findings}):
        _print(shared, app.store.where, findings, levels)
    if levels["problem"]:
        click.get_current_context().exit(PROBLEMS)


def _print(shared: Shared, where: str, findings: list[Finding], levels: Counter[str]) -> None:
    shared.print((where, "dim"))
    for finding in findings:
        shared.print(MARKS[finding.level], finding.text)
        if finding.way_out:
            shared.print(("  → ", "dim"), shared.hint(finding.way_out))
    bad = ", ".join(plural(levels[level], level) for level in ("problem", "warning") if levels[level])
    shared.print("\n", bad or ("all is well", "green"))


def checks(app: Treadle, *, quick: bool) -> Iterator[Finding]:
    """The database first, then what is in it. `quick`: without what takes long on a large one."""
    status, workers, now = app.store.status(), app.workers(), app.store.now()
    counts, living = app.counts(("status", "type", "queue")), alive(workers, now)
    yield Finding("schema", "ok", f"schema {status['schema']} (current)")
    yield from _store(app.store, status, quick=quick)
    problems = [found for found in app.problems() if found.code != "lost_worker"]
    if all(found.code != "no_worker" for found in problems):
        yield _workers(living, now)
    yield from _lost(app, workers, now)
    yield from _versions(living)
    for found in problems:
        level: Level = "problem" if found.code in STANDSTILL else "warning"
        yield Finding(found.code, level, clean(found.text), clean(found.next))
    yield from _defects(app.store.defects(quick=quick))
    yield _ended(counts)


def _store(store: Store, status: Mapping[str, Any], *, quick: bool) -> Iterator[Finding]:
    if status["store"] == "postgresql":
        from treadle.cli.doctor import postgres  # needs psycopg

        return postgres.checks(store)
    from treadle.cli.doctor import sqlite

    if isinstance(store, SQLiteStore):
        return sqlite.checks(store, status, quick=quick)
    return sqlite.libsql_checks(store, status)


def _workers(living: list[WorkerRow], now: int) -> Finding:
    if not living:
        return Finding("workers", "ok", "no worker is running, and no job is due")
    newest = format_duration(min(silence(worker, now) for worker in living))
    return Finding("workers", "ok", f"{plural(len(living), 'worker')}, newest heartbeat {newest} ago")


def _lost(app: Treadle, workers: list[WorkerRow], now: int) -> Iterator[Finding]:
    for worker in workers:
        if is_alive(worker, now):
            continue
        dead = host.is_dead(worker.host, single_host=app.store.single_host)
        gone = "its process is gone" if dead else "its process hangs, is paused, or out of reach"
        last = f"its last heartbeat was {format_duration(silence(worker, now))} ago"
        text = f"worker {clean(worker.name)} is lost and holds {plural(worker.leases, 'job')}: {last}, {gone}"
        yield Finding("lost", "problem", text, after_loss(workers, now))


def _versions(living: list[WorkerRow]) -> Iterator[Finding]:
    versions = Counter(worker.version for worker in living)
    if set(versions) - {treadle.__version__}:
        found = ", ".join(f"{clean(version)} ({count})" for version, count in sorted(versions.items()))
        text = f"workers run treadle {found}; this is {treadle.__version__}"
        way_out = "restart the old ones; neighboring versions work together until then"
        yield Finding("versions", "warning", text, way_out)


def _defects(found: list[Defect]) -> Iterator[Finding]:
    for defect in found:
        check, noun, text, way_out = DEFECTS[defect.code]
        sample = f" (broken by hand): {clean(defect.sample)}" if check == "rows" else ""
        yield Finding(check, "problem", f"{plural(defect.rows, noun)} {text}{sample}", way_out)


def _ended(counts: list[dict[str, Any]]) -> Finding:
    ended = sum(row["count"] for row in counts if row["status"] in (Status.COMPLETED, Status.CANCELLED))
    failed = sum(row["count"] for row in counts if row["status"] == Status.FAILED)
    if ended > MANY_ENDED:
        text, way_out = f"{ended:,} completed and cancelled jobs are kept", "treadle db prune --older-than 7d"
        return Finding("retention", "warning", text, f"{way_out}; or a shorter Treadle(retention=…)")
    if failed > MANY_FAILED:
        text = f"{failed:,} failed jobs are kept: they are never pruned by themselves"
        return Finding("retention", "warning", text, "treadle db prune --status failed --older-than 30d")
    return Finding("retention", "ok", f"{ended:,} ended and {failed:,} failed jobs are kept")
