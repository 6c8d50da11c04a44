"""`treadle top`: everything that matters now, on one screen of a terminal."""

from __future__ import annotations

import contextlib
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from treadle import clock, units, views
from treadle.cli import output
from treadle.cli.app_loader import database
from treadle.cli.base import Duration, Shared, command, pass_shared
from treadle.diagnosis import Problem
from treadle.job import STATE_OF, SUMMARY, FailureGroup, Latency, Status, Usage
from treadle.stores.base import WorkerRow
from treadle.stores.rows import QueueStats

if TYPE_CHECKING:
    from treadle.app import Treadle

HELP = """Watch the queue: what waits, who works, what fails. q quits, p pauses.

If stdout is not a terminal, it prints one snapshot and ends.
"""
MINUTES = 30
BARS = " ▁▂▃▄▅▆▇█"


@command("top", help=HELP)
@click.option("--interval", type=Duration(), default="1s", show_default=True, help="Between two refreshes.")
@pass_shared
def top(shared: Shared, interval: float) -> None:
    app = database(shared)
    if shared.json:
        shared.data(as_json(take(app)))
    elif not shared.out.is_terminal:
        shared.print_wide(draw(take(app), rows=200), 160)
    else:
        with keys() as pressed:
            _watch(app, shared, max(0.1, interval), pressed)


def _watch(app: Treadle, shared: Shared, interval: float, pressed: Callable[[float], str]) -> None:
    """Until q or Ctrl-C."""
    paused = False
    with Live(console=shared.out, screen=True, auto_refresh=False) as screen:
        while True:
            note = "paused: p resumes" if paused else ""
            screen.update(draw(take(app), shared.out.height, note), refresh=True)
            key = pressed(interval)
            while paused and key not in ("p", "q"):
                key = pressed(interval)
            if key == "q":
                return
            paused = paused != (key == "p")


@contextlib.contextmanager
def keys() -> Generator[Callable[[float], str]]:
    """A function that waits that many seconds for a key, and returns it, or nothing."""
    if not sys.stdin.isatty():  # nobody can press anything
        yield _sleep
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(seconds: float) -> str:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.read(1) if ready else ""


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the database says at one moment."""

    now: int
    where: str
    queues: list[QueueStats]
    workers: list[WorkerRow]
    problems: list[Problem]
    failures: list[FailureGroup]
    latency: dict[str, Latency]
    usage: list[Usage]


def take(app: Treadle) -> Snapshot:
    return Snapshot(
        now=app.store.now(),
        where=app.store.where,
        queues=app.queue_stats(),
        workers=app.workers(),
        problems=app.problems(),
        failures=[views.failure(group) for group in app.failures()],
        latency=app.latency(),
        usage=app.usage(timedelta(minutes=MINUTES), by=(), step=60),
    )


def as_json(seen: Snapshot) -> dict[str, Any]:
    """The same for programs."""
    return {
        "as_of": clock.to_datetime(seen.now),
        "database": seen.where,
        "lanes": [views.queue(row) for row in seen.queues],
        "workers": [_worker(worker, seen.now) for worker in seen.workers],
        "problems": seen.problems,
        "failures": seen.failures,
        "latency": seen.latency,
    }


def _worker(row: WorkerRow, now: int) -> dict[str, Any]:
    """Every field of the row, as `views.worker` shows it, and whether it is live."""
    shown = msgspec.structs.asdict(views.worker(row, now))
    fields = {name: shown.get(name, value) for name, value in msgspec.structs.asdict(row).items()}
    return {**fields, "live": shown["live"]}


def draw(seen: Snapshot, rows: int, note: str = "") -> RenderableType:
    """As much as fits into that many rows."""
    lists = max(3, (rows - 8 - len(seen.problems)) // 2)
    parts: list[RenderableType] = [_title(seen, note), Text(), _totals(seen), Text()]
    parts += [_problem(problem) for problem in seen.problems[:5]]
    parts += [Text()] if seen.problems else []
    parts += [_types(seen, lists), Text(), _workers(seen, max(3, lists // 2))]
    if seen.failures:
        parts += [Text(), _failures(seen, max(2, lists // 2))]
    return Group(*parts)


def _title(seen: Snapshot, note: str) -> Text:
    at = clock.to_datetime(seen.now).astimezone().strftime("%H:%M:%S")
    return Text.assemble(("treadle ", "bold"), (f"{seen.where}  {at}", "dim"), (f"  {note}", "yellow"))


def _totals(seen: Snapshot) -> Text:
    parts: list[Any] = []
    for state in (*SUMMARY, STATE_OF[Status.COMPLETED]):
        count = sum(row.counts[state.name] for row in seen.queues)
        style = f"bold {output.STYLES[state.tone]}" if count else "dim"
        parts += [(f"{count:,}", style), (f" {state.label.lower()}   ", "dim")]
    minutes = [0] * MINUTES
    for used in seen.usage:
        age = (seen.now // clock.SECOND - int(used.at.timestamp())) // 60
        if 0 <= age < MINUTES:
            minutes[MINUTES - 1 - age] += used.runs
    most = max(minutes) or 1
    drawn = "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in minutes)
    return Text.assemble(*parts, (drawn, "blue"), (f" runs in {MINUTES} min", "dim"))


def _problem(problem: Problem) -> Text:
    return Text.assemble(("⚠ ", "yellow"), output.clean(problem.text), ("  → ", "dim"), (problem.next, "dim"))


def _types(seen: Snapshot, most: int) -> Table:
    numbers = (*(state.label.upper() for state in SUMMARY), "OLDEST", "WAIT P95", "RUN P95")
    table = output.table("TYPE", "QUEUE", *numbers, right=numbers)
    rows = sorted(seen.queues, key=lambda row: (-row.counts["queued"] - row.counts["processing"], row.type))
    for row in rows[:most]:
        fast = seen.latency.get(row.type)
        oldest = "" if row.oldest_due is None else units.format_duration((seen.now - row.oldest_due) / clock.SECOND)
        table.add_row(
            Text(output.clean(row.type)),
            Text(output.clean(row.queue), style="dim"),
            *(output.number(row.counts[state.name], output.STYLES[state.tone]) for state in SUMMARY),
            Text(oldest if row.counts["queued"] else "", style="dim"),
            Text(units.format_duration(fast.wait_p95) if fast else "", style="dim"),
            Text(units.format_duration(fast.run_p95) if fast else "", style="dim"),
        )
    return table


def _workers(seen: Snapshot, most: int) -> RenderableType:
    if not seen.workers:
        return Text.assemble(("no worker is running", "yellow"), ("  → treadle worker app:td", "dim"))
    table = output.table("WORKER", "BUSY", "DOING", "HEARTBEAT", right=("BUSY",))
    rows = [views.worker(row, seen.now) for row in seen.workers]
    for row in sorted(rows, key=lambda row: row.live)[:most]:
        name, busy, heartbeat = output.worker(row)
        table.add_row(name, busy, Text(output.doing(row, seen.now, most=3) or "idle"), heartbeat)
    return table


def _failures(seen: Snapshot, most: int) -> Table:
    table = output.table("ERROR", "TYPE", "FAILED", "RETRYING", "LAST", right=("FAILED", "RETRYING"))
    now = clock.to_datetime(seen.now)
    for group in seen.failures[:most]:
        error = output.clean(group.error)[:60]
        last = Text(units.format_relative(group.last_at, now), style="dim")
        counts = output.number(group.count, output.style("failed")), output.number(group.retrying)
        table.add_row(Text(error, style="red"), output.clean(group.type), *counts, last)
    return table
