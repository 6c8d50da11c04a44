"""The command: which sections, of what size, where, and how the result is shown."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import click
from rich.console import Console

from bench import (
    backlog,
    ceiling,
    claims,
    control,
    dashboard,
    drain,
    durable,
    enqueue,
    idle,
    machine,
    pickup,
    profile,
    prune,
    report,
    setting,
)
from bench.backend import Backend
from bench.profile import Profiled
from bench.report import ReportRow
from bench.setting import Setting

SECTIONS = (
    "ceiling",
    "enqueue",
    "wakeups",
    "drain",
    "round-trips",
    "pickup",
    "idle",
    "backlog",
    "snapshot",
    "control",
    "claims",
    "durable",
    "prune",
    "dashboard",
)
"""All sections, in the order of the report."""
ONLY_ON = {"wakeups": "PostgreSQL", "snapshot": "PostgreSQL", "round-trips": "libSQL"}
EVERYWHERE = frozenset(SECTIONS) - frozenset(ONLY_ON)


def _sections(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    for name in names:
        if name not in SECTIONS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(SECTIONS)}")
    return names


@click.command()
@click.option(
    "--db",
    metavar="URL",
    help="Measure where this database is: on its disk, or on its server. The database itself is left alone.",
)
@click.option("--pooler", metavar="URL", help="Pickup also through this pooler of --db, in transaction mode.")
@click.option("--dir", "directory", metavar="DIR", type=click.Path(file_okay=False), help="Measure in this directory.")
@click.option("--quick", is_flag=True, help="Small sizes, each once: shows that it works, too small to judge.")
@click.option("--only", metavar="NAMES", callback=_sections, help=f"Some of {','.join(SECTIONS)}.")
@click.option("--n", type=click.IntRange(100), metavar="N", help="Async no-ops in a drain; the others in proportion.")
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Slots of each worker.")
@click.option("--profile", "profiled", is_flag=True, help="Show where the time of a drain goes, and only that.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(
    db: str | None,
    pooler: str | None,
    directory: str | None,
    quick: bool,
    only: tuple[str, ...] | None,
    n: int | None,
    concurrency: int | None,
    profiled: bool,
    as_json: bool,
) -> None:
    """Measure treadle on this machine, compared with the most that its disk and the database can do.

    A full run takes some minutes. It works in a new directory next to a SQLite file (default: the current directory)
    or in new databases on a PostgreSQL server, starts its own worker processes, and removes everything when it ends.
    A libSQL server has one database: it is measured only if that has no jobs.
    """
    sizes = setting.QUICK if quick else setting.FULL
    with progress() as say, _backend(db, pooler, directory) as backend:
        names = only if only is not None else () if profiled else _here(backend)
        if missing := [name for name in names if name not in _here(backend)]:
            raise click.UsageError(_why_not(missing[0]))
        run = Setting(backend, sizes.scaled(n) if n else sizes, concurrency or setting.CONCURRENCY, say)
        here = machine.describe(run)
        rows, profiled_drain = _measure(run, names, profiled)
    if as_json:
        click.echo(report.as_json(here, rows, profiled_drain))
        return
    console = Console() if sys.stdout.isatty() else Console(width=140)
    if rows:
        report.show(console, here, rows)
    if profiled_drain is not None:
        profile.show(console, profiled_drain)


def _measure(setting: Setting, names: tuple[str, ...], profiled: bool) -> tuple[list[ReportRow], Profiled | None]:
    raw = ceiling.Ceiling(setting)
    sections: dict[str, Callable[[], list[ReportRow]]] = {
        "ceiling": lambda: ceiling.measure(setting, raw),
        "enqueue": lambda: enqueue.measure(setting, raw),
        "drain": lambda: drain.measure(setting, raw),
        "pickup": lambda: pickup.measure(setting),
        "idle": lambda: idle.measure(setting),
        "backlog": lambda: backlog.measure(setting),
        "control": lambda: control.measure(setting),
        "claims": lambda: claims.measure(setting),
        "durable": lambda: durable.measure(setting),
        "prune": lambda: prune.measure(setting),
        "dashboard": lambda: dashboard.measure(setting),
        "wakeups": lambda: _wakeups(setting),
        "snapshot": lambda: _snapshot(setting),
        "round-trips": lambda: _round_trips(setting),
    }
    try:
        rows = [row for name in SECTIONS if name in names for row in sections[name]()]
        return rows, profile.take(setting) if profiled else None
    finally:
        raw.close()


def _wakeups(setting: Setting) -> list[ReportRow]:
    from bench.postgres import wakeups

    return wakeups.measure(setting)


def _snapshot(setting: Setting) -> list[ReportRow]:
    from bench.postgres import snapshot

    return snapshot.measure(setting)


def _round_trips(setting: Setting) -> list[ReportRow]:
    from bench.libsql import round_trips

    return round_trips.measure(setting)


def _here(backend: Backend) -> tuple[str, ...]:
    return tuple(name for name in SECTIONS if name in (EVERYWHERE | backend.sections) - backend.without)


def _why_not(name: str) -> str:
    if store := ONLY_ON.get(name):
        return f"{name} is measured only on {store}: name a database with --db"
    return f"{name} is not measured here: it needs two databases, and a libSQL server has one"


@contextlib.contextmanager
def _backend(db: str | None, pooler: str | None, directory: str | None) -> Generator[Backend]:
    """Where to measure. Everything that is made there is removed afterwards."""
    if db is not None and directory is not None:
        raise click.UsageError("name either --db or --dir")
    if pooler is not None and not (db or "").startswith("postgres"):
        raise click.UsageError("--pooler is for a PostgreSQL server: name it with --db")
    backend = _find(db, pooler, directory)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no database is left behind
    try:
        yield backend
    finally:
        backend.close()
        signal.signal(signal.SIGTERM, before)


def _find(db: str | None, pooler: str | None, directory: str | None) -> Backend:
    from treadle.stores import open_store
    from treadle.stores.sqlite.url import path_of

    if db is None or db.startswith("sqlite:"):
        from bench.sqlite.backend import SQLiteBackend

        return SQLiteBackend(path_of(db).parent if db is not None else Path(directory or ".").absolute())
    if db.startswith("libsql"):
        from bench.libsql.backend import LibSQLBackend

        return LibSQLBackend(db)
    open_store(db)  # raises if the URL is wrong or psycopg is missing
    from bench.postgres.backend import PostgresBackend

    return PostgresBackend(db, pooler)


@contextlib.contextmanager
def progress() -> Generator[Callable[[str], None]]:
    """A line that changes on a terminal, else a line for each step; on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: click.echo(text, err=True)
        return
    with console.status("starting") as status:
        yield lambda text: status.update(text)
