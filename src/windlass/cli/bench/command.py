"""The command: which sections, of what size, where, and how the result is shown."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import click

SECTIONS = ("ceiling", "enqueue", "drain", "pickup", "idle", "backlog")


def _sections(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    for name in names:
        if name not in SECTIONS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(SECTIONS)}")
    return names


@click.command()
@click.option("--db", metavar="URL", help="Measure on the disk of this database, which is left alone.")
@click.option("--dir", "directory", metavar="DIR", type=click.Path(file_okay=False), help="Measure in this directory.")
@click.option("--quick", is_flag=True, help="Small sizes, each once: shows that it works, too small to judge.")
@click.option("--only", metavar="NAMES", callback=_sections, help=f"Some of {','.join(SECTIONS)}.")
@click.option("--n", type=click.IntRange(100), metavar="N", help="Async no-ops in a drain; the others in proportion.")
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Slots of each worker.")
@click.option("--profile", "profiled", is_flag=True, help="Show where the time of a drain goes, and only that.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(
    db: str | None,
    directory: str | None,
    quick: bool,
    only: tuple[str, ...] | None,
    n: int | None,
    concurrency: int | None,
    profiled: bool,
    as_json: bool,
) -> None:
    """Measure windlass on this machine, beside what its disk and SQLite give at the most.

    A full run takes some minutes. It works in a new directory beside the database (default: the current directory),
    starts worker processes of its own, and removes everything when it ends.
    """
    from windlass.cli.bench import machine, report, setting

    sizes = setting.QUICK if quick else setting.FULL
    names = only if only is not None else () if profiled else SECTIONS
    with _progress() as say, _directory(db, directory) as path:
        run = setting.Setting(path, sizes.scaled(n) if n else sizes, concurrency or setting.CONCURRENCY, say)
        here = machine.describe(run)
        rows, profile = _measure(run, names, profiled)
    if as_json:
        click.echo(report.as_json(here, rows, profile))
        return
    console = _console()
    if rows:
        report.show(console, here, rows)
    if profile is not None:
        from windlass.cli.bench.profile import show

        show(console, profile)


def _measure(setting: Any, names: tuple[str, ...], profiled: bool) -> tuple[list[Any], Any]:
    from windlass.cli.bench import backlog, drain, enqueue, idle, pickup, profile
    from windlass.cli.bench import ceiling as ceilings

    ceiling = ceilings.Ceiling(setting)
    sections: dict[str, Callable[[], list[Any]]] = {
        "ceiling": lambda: ceilings.measure(setting, ceiling),
        "enqueue": lambda: enqueue.measure(setting, ceiling),
        "drain": lambda: drain.measure(setting, ceiling),
        "pickup": lambda: pickup.measure(setting),
        "idle": lambda: idle.measure(setting),
        "backlog": lambda: backlog.measure(setting),
    }
    try:
        rows = [row for name in SECTIONS if name in names for row in sections[name]()]
        return rows, profile.take(setting) if profiled else None
    finally:
        ceiling.close()


@contextlib.contextmanager
def _directory(db: str | None, directory: str | None) -> Generator[Path]:
    """A new directory on the disk that is meant, gone afterwards."""
    from windlass.stores.sqlite.place import check, path_of

    if db is not None and directory is not None:
        raise click.UsageError("name either --db or --dir")
    if db is not None and not db.startswith("sqlite:"):
        raise click.UsageError(f"only SQLite can be measured, not {db}")
    parent = path_of(db).parent if db is not None else Path(directory or ".").absolute()
    check(parent / "bench.db")
    path = Path(tempfile.mkdtemp(prefix=".windlass-bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _progress() -> Generator[Callable[[str], None]]:
    """A line that changes on a terminal, else a line for each step; on stderr."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: click.echo(text, err=True)
        return
    with console.status("starting") as status:
        yield lambda text: status.update(text)


def _console() -> Any:
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=140)
