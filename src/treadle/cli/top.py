"""`treadle top`: everything that matters now, on one screen of a terminal."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from treadle import clock, units, views
from treadle.app import Treadle
from treadle.cli import output
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, duration
from treadle.job import STATE_OF, SUMMARY, Status

if sys.platform != "win32":
    import termios
    import tty

HELP = """Watch the queue: what waits, who works, what fails. q quits, p pauses.

If stdout is not a terminal, it prints one snapshot and ends."""
MINUTES = 30
BARS = " ▁▂▃▄▅▆▇█"


@command("top", help=HELP)
@click.option("--interval", type=duration, default="1s", show_default=True, help="Between two refreshes.")
def top(shared: Shared, interval: float) -> None:
    app = database(shared)
    if shared.json:
        shared.printed_json(TopData(app).as_json())
    elif not shared.out.is_terminal:
        shared.print_wide(draw(TopData(app, shared.hint), rows=200), 160)
    else:
        with keys() as pressed:
            _watch(app, shared, max(0.1, interval), pressed)


def _watch(app: Treadle, shared: Shared, interval: float, pressed: Callable[[float], str]) -> None:
    """Until q or Ctrl-C."""
    paused, key = False, ""
    with Live(console=shared.out, screen=True, auto_refresh=False) as screen:
        while key != "q":
            paused = paused != (key == "p")
            if key == "p" or not paused:
                note = "paused: p resumes" if paused else ""
                screen.update(draw(TopData(app, shared.hint), shared.out.height, note), refresh=True)
            key = pressed(interval)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextmanager
def keys() -> Generator[Callable[[float], str]]:
    """A function that waits that many seconds for a key, and returns it, or nothing."""
    if sys.platform == "win32" or not sys.stdin.isatty():  # there are no keys to read: Ctrl-C quits
        yield _no_key
        return
    terminal = sys.stdin

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    with ExitStack() as stack:
        stack.callback(termios.tcsetattr, terminal, termios.TCSADRAIN, termios.tcgetattr(terminal))
        tty.setcbreak(terminal)
        yield pressed


class TopData:
    """What the database says at one moment."""

    def __init__(self, app: Treadle, hint: Callable[[str], str] = str) -> None:
        self.hint = hint
        self.now, self.where = app.store.now(), app.store.where
        self.queues, self.workers, self.problems = app.queue_stats(), app.workers(), app.problems()
        self.failures = [views.failure(group, app.redactor) for group in app.failures()]
        self.latency = app.latency()
        self.usage = app.usage(timedelta(minutes=MINUTES), by=(), step=60)

    def as_json(self) -> views.Overview:
        return views.Overview(
            as_of=clock.to_datetime(self.now),
            database=self.where,
            queues=[views.queue(row) for row in self.queues],
            workers=[views.worker(row, self.now) for row in self.workers],
            problems=self.problems,
            failures=self.failures,
            latency=self.latency,
        )


def draw(seen: TopData, rows: int, note: str = "") -> RenderableType:
    """As much as fits into that many rows."""
    lists = max(3, (rows - 8 - len(seen.problems)) // 2)
    parts: list[RenderableType] = [_title(seen, note), Text(), _totals(seen), Text()]
    for problem in seen.problems[:5]:
        way_out = ("  → ", "dim"), (seen.hint(problem.next), "dim")
        parts.append(Text.assemble(("⚠ ", "yellow"), output.clean(problem.text), *way_out))
    parts += [Text()] * bool(seen.problems)
    parts += [_types(seen, lists), Text(), _workers(seen, max(3, lists // 2))]
    if seen.failures:
        parts += [Text(), _failures(seen, max(2, lists // 2))]
    return Group(*parts)


def _title(seen: TopData, note: str) -> Text:
    at = clock.to_datetime(seen.now).astimezone().strftime("%H:%M:%S")
    return Text.assemble(("treadle ", "bold"), (f"{seen.where}  {at}", "dim"), (f"  {note}", "yellow"))


def _totals(seen: TopData) -> Text:
    parts: list[tuple[str, str]] = []
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


def _types(seen: TopData, most: int) -> Table:
    rows = sorted(seen.queues, key=lambda row: (-row.counts["queued"] - row.counts["processing"], row.type))[:most]
    columns: dict[str, list[Text | str]] = {"TYPE": [output.type_of(row) for row in rows]}
    columns["QUEUE"] = [_dim(row.queue) for row in rows]
    for state in SUMMARY:
        style = output.STYLES[state.tone]
        columns[state.label.upper()] = [output.number(row.counts[state.name], style) for row in rows]
    fast = [seen.latency.get(row.type) for row in rows]
    columns["OLDEST"] = [_dim(output.age(row.oldest_due if row.counts["queued"] else None, seen.now)) for row in rows]
    columns["WAIT P95"] = [_dim(units.format_duration(speed.wait_p95) if speed else "") for speed in fast]
    columns["RUN P95"] = [_dim(units.format_duration(speed.run_p95) if speed else "") for speed in fast]
    return output.table(columns, right=columns.keys() - {"TYPE", "QUEUE"})


def _dim(text: str) -> Text:
    return Text(output.clean(text), style="dim")


def _workers(seen: TopData, most: int) -> RenderableType:
    if not seen.workers:
        return Text.assemble(("no worker is running", "yellow"), (seen.hint("  → treadle worker app:td"), "dim"))
    rows = sorted((views.worker(row, seen.now) for row in seen.workers), key=lambda row: row.live)[:most]
    return output.table(output.workers(rows, seen.now, most=3, idle="idle"), right=("BUSY",))


def _failures(seen: TopData, most: int) -> Table:
    groups, now = seen.failures[:most], clock.to_datetime(seen.now)
    columns: output.Columns = {
        "ERROR": [Text(output.clean(group.error)[:60], style="red") for group in groups],
        "TYPE": [group.type for group in groups],
        "FAILED": [output.number(group.count, output.style("failed")) for group in groups],
        "RETRYING": [output.number(group.retrying) for group in groups],
        "LAST": [_dim(units.format_relative(group.last_at, now)) for group in groups],
    }
    return output.table(columns, right=("FAILED", "RETRYING"))
