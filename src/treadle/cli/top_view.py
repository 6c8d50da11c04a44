"""What `treadle top` shows: everything that matters now, on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treadle import clock, units, views
from treadle.cli import output
from treadle.diagnosis import Problem, is_alive, silence
from treadle.job import STATE_OF, SUMMARY, FailureGroup, Latency, Status, Usage
from treadle.stores.base import WorkerRow
from treadle.stores.rows import QueueStats

if TYPE_CHECKING:
    from treadle.app import Treadle

MINUTES = 30
BARS = " ▁▂▃▄▅▆▇█"


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the database."""

    now: int
    where: str
    lanes: list[QueueStats]
    workers: list[WorkerRow]
    problems: list[Problem]
    failures: list[FailureGroup]
    latency: dict[str, Latency]
    usage: list[Usage]


def look(app: Treadle) -> Glance:
    return Glance(
        now=app.store.now(),
        where=app.store.where,
        lanes=app.queue_stats(),
        workers=app.workers(),
        problems=app.problems(),
        failures=[views.failure(group) for group in app.failures()],
        latency=app.latency(),
        usage=app.usage(timedelta(minutes=MINUTES), by=(), step=60),
    )


def as_json(seen: Glance) -> dict[str, Any]:
    """The same for programs, with times as text."""
    return {
        "as_of": clock.to_datetime(seen.now),
        "database": seen.where,
        "lanes": [views.queue(lane) for lane in seen.lanes],
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


def draw(seen: Glance, rows: int, note: str = "") -> RenderableType:
    """As much as fits into so many rows."""
    lists = max(3, (rows - 8 - len(seen.problems)) // 2)
    parts: list[RenderableType] = [_title(seen, note), Text(), _totals(seen), Text()]
    parts += [_problem(problem) for problem in seen.problems[:5]]
    parts += [Text()] if seen.problems else []
    parts += [_types(seen, lists), Text(), _workers(seen, max(3, lists // 2))]
    if seen.failures:
        parts += [Text(), _failures(seen, max(2, lists // 2))]
    return Group(*parts)


def _title(seen: Glance, note: str) -> Text:
    at = clock.to_datetime(seen.now).astimezone().strftime("%H:%M:%S")
    return Text.assemble(("treadle ", "bold"), (f"{seen.where}  {at}", "dim"), (f"  {note}", "yellow"))


def _totals(seen: Glance) -> Text:
    parts: list[Any] = []
    for state in (*SUMMARY, STATE_OF[Status.COMPLETED]):
        count = sum(lane.counts[state.name] for lane in seen.lanes)
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


def _types(seen: Glance, most: int) -> Table:
    numbers = (*(state.label.upper() for state in SUMMARY), "OLDEST", "WAIT P95", "RUN P95")
    table = output.table("TYPE", "QUEUE", *numbers, right=numbers)
    lanes = sorted(seen.lanes, key=lambda lane: (-lane.counts["queued"] - lane.counts["processing"], lane.type))
    for lane in lanes[:most]:
        fast = seen.latency.get(lane.type)
        oldest = "" if lane.oldest_due is None else units.format_duration((seen.now - lane.oldest_due) / clock.SECOND)
        table.add_row(
            Text(output.clean(lane.type)),
            Text(output.clean(lane.queue), style="dim"),
            *(output.number(lane.counts[state.name], output.STYLES[state.tone]) for state in SUMMARY),
            Text(oldest if lane.counts["queued"] else "", style="dim"),
            Text(units.format_duration(fast.wait_p95) if fast else "", style="dim"),
            Text(units.format_duration(fast.run_p95) if fast else "", style="dim"),
        )
    return table


def _workers(seen: Glance, most: int) -> RenderableType:
    if not seen.workers:
        return Text.assemble(("no worker is running", "yellow"), ("  → treadle worker app:td", "dim"))
    table = output.table("WORKER", "BUSY", "DOING", "HEARTBEAT", right=("BUSY",))
    for worker in sorted(seen.workers, key=lambda worker: is_alive(worker, seen.now))[:most]:
        alive, quiet = is_alive(worker, seen.now), units.format_duration(silence(worker, seen.now))
        table.add_row(
            Text.assemble(("● ", "green") if alive else ("◌ ", "red"), output.clean(worker.name)),
            Text(f"{worker.leases}/{worker.concurrency}"),
            Text(_doing(worker.doing, seen.now)),
            Text(f"{quiet} ago", style="dim") if alive else Text(f"{quiet} ago: lost", style="red"),
        )
    return table


def _doing(doing: Sequence[tuple[str, int, int]], now: int) -> str:
    told = [
        f"{output.clean(type)} x{count} {units.format_duration((now - since) / clock.SECOND)}"
        for type, count, since in doing
    ]
    return ", ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "") or "idle"


def _failures(seen: Glance, most: int) -> Table:
    table = output.table("FAILED", "TYPE", "JOBS", "LAST", right=("JOBS",))
    now = clock.to_datetime(seen.now)
    for group in seen.failures[:most]:
        error = output.clean(group.error)[:60]
        last = Text(units.format_relative(group.last_at, now), style="dim")
        table.add_row(Text(error, style="red"), output.clean(group.type), output.number(group.count), last)
    return table
