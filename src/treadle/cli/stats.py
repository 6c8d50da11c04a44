"""`treadle stats` and `treadle queues`: how many jobs there are, how long they wait, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from treadle import clock, units, views
from treadle.cli import output
from treadle.cli.app_loader import database
from treadle.cli.base import Group, Shared, command, pass_shared
from treadle.diagnosis import Problem, alive, handles, unhandled
from treadle.job import STATE_NAMES, Latency, Status
from treadle.management import COUNTED_BY
from treadle.stores.rows import QueueStats

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.stores.base import WorkerRow

BY = f"Count by some of {', '.join(COUNTED_BY)} instead: --by tenant,status."


@command("stats", help="Count jobs by type, and show how long they wait, who works on them, and what is wrong.")
@click.option("--by", metavar="NAMES", help=BY)
@pass_shared
def stats(shared: Shared, by: str | None) -> None:
    app = database(shared)
    if by is not None:
        _grouped(shared, app.counts(names := [name.strip() for name in by.split(",")]), names)
    elif shared.json:
        shared.data(_as_json(app))
    else:
        _print(shared, app)


def _grouped(shared: Shared, rows: list[dict[str, Any]], names: list[str]) -> None:
    if shared.json:
        shared.data({"items": rows, "as_of": datetime.now(UTC)})
        return
    table = output.table(*(name.upper() for name in names), "COUNT", right=("COUNT",))
    for row in rows:
        cells = [output.status(row[n]) if n == "status" else output.named(row[n]) for n in names]
        table.add_row(*cells, output.number(row["count"]))
    if rows:
        output.show(shared, table)
    else:
        shared.note("no jobs")


def _as_json(app: Treadle) -> dict[str, Any]:
    counts, workers = app.counts(("status", "type", "queue")), app.workers()
    living = alive(workers, app.store.now())
    totals = Counter({status.value: 0 for status in Status})
    for row in counts:
        totals[row["status"]] += row["count"]
    return {
        "items": counts,
        "totals": totals,
        "workers": {"live": len(living), "lost": len(workers) - len(living)},
        "unhandled": [row._asdict() for row in unhandled(counts, living)],
        "queues": [views.queue(row) for row in app.queue_stats()],
        "latency": app.latency(),
        "problems": app.problems(),
        "database": app.store.status(),
        "as_of": datetime.now(UTC),
    }


def _print(shared: Shared, app: Treadle) -> None:
    rows, workers, now = app.queue_stats(), app.workers(), app.store.now()
    living = alive(workers, now)
    if rows:
        output.show(shared, _by_type(rows, app.latency(), living, now, bars=shared.out.is_terminal))
        shared.print()
    _print_problems(shared, app.problems())
    text = _summary(rows, len(living), len(workers) - len(living), app.store.status())
    shared.print((text, "dim" if shared.out.is_terminal else ""))


def _print_problems(shared: Shared, problems: Sequence[Problem]) -> None:
    """The table already names the types that no worker handles."""
    others = [problem for problem in problems if problem.code != "unhandled"]
    for problem in others:
        shared.print(("⚠ ", "yellow"), output.clean(problem.text))
        shared.print(("  → ", "dim"), output.clean(problem.next))
    if others:
        shared.print()


def _summary(rows: Sequence[QueueStats], living: int, lost: int, place: Mapping[str, Any]) -> str:
    parts = [f"{sum(row.counts[state] for row in rows):,} {state}" for state in ("queued", "processing")]
    parts.append(units.plural(living, "worker") + (f" ({lost} lost)" if lost else ""))
    size = f" ({units.format_bytes(place['bytes'])})" if "bytes" in place else ""
    parts.append(f"{place['store']} {place['where']}{size}")
    return " · ".join(parts)


class _Type:
    """All queues that jobs of one type are in, added up."""

    def __init__(self, name: str, rows: Sequence[QueueStats], living: Sequence[WorkerRow]) -> None:
        self.name = name
        self.counts = {state: sum(row.counts[state] for row in rows) for state in STATE_NAMES}
        self.oldest_due = min((row.oldest_due for row in rows if row.oldest_due is not None), default=None)
        self.warning = _warning(rows, living)


def _by_type(
    rows: Sequence[QueueStats], latency: Mapping[str, Latency], living: Sequence[WorkerRow], now: int, *, bars: bool
) -> output.Grid:
    """One line per type, those with the most waiting first; only the columns that say something."""
    names = {row.type for row in rows}
    types = [_Type(name, [row for row in rows if row.type == name], living) for name in names]
    types.sort(key=lambda type: (-type.counts["queued"], type.name))
    most = types[0].counts["queued"] if bars else 0
    shown = [s for s in STATE_NAMES if s != Status.CANCELLED or any(type.counts[s] for type in types)]
    warned = any(type.warning for type in types)
    table = _empty(shown, bars=most > 0, warned=warned)
    for type in types:
        cells = [output.number(type.counts[state], output.style(state)) for state in shown]
        if most:  # a bar as long as the type's share of the longest queue
            cells.insert(1, Text(output.bar(type.counts["queued"], most), style="cyan"))
        speed = units.format_duration(latency[type.name].run_p95) if type.name in latency else "-"
        cells += [Text(_oldest(type.oldest_due, now)), Text(speed)]
        table.add_row(output.named(type.name), *cells, *([Text(type.warning, style="yellow")] if warned else []))
    return table


def _empty(shown: Sequence[str], *, bars: bool, warned: bool) -> output.Grid:
    names = [name.upper() for name in shown]
    heads = ["TYPE", names[0], *([""] if bars else []), *names[1:], "OLDEST", "P95 RUN", *([" "] if warned else [])]
    return output.table(*heads, right=(*names, "OLDEST", "P95 RUN"))


def _warning(rows: Sequence[QueueStats], living: Sequence[WorkerRow]) -> str:
    """If no worker runs at all, a line below the table says so."""
    for row in rows if living else ():
        if row.counts["queued"] and not any(handles(worker, row.queue, row.type) for worker in living):
            queue = "" if row.queue == "default" else f" in queue {output.clean(row.queue)}"
            return f"⚠ no worker handles it{queue}"
    return ""


@click.group("queues", cls=Group, help="List what waits and what runs, by queue and type.")
def queues() -> None:
    pass


@queues.command(
    "ls", help="List queues and types: what is due, what is for later, what runs, how long the oldest waits."
)
@pass_shared
def ls(shared: Shared) -> None:
    app = database(shared)
    rows, now = app.queue_stats(), app.store.now()
    if shared.json:
        shared.data({"items": [views.queue(row) for row in rows]})
    elif rows:
        output.show(shared, _by_queue(rows, now))
    else:
        shared.note("no jobs")


def _by_queue(rows: list[QueueStats], now: int) -> output.Grid:
    numbers = (*(name.upper() for name in STATE_NAMES), "LIMIT", "OLDEST", "NEXT")
    table = output.table("QUEUE", "TYPE", *numbers, right=numbers)
    for row in rows:
        counts = [output.number(n, output.style(state)) for state, n in row.counts.items()]
        limit = "-" if row.limit is None else f"{row.limit:,}"
        times = [limit, _oldest(row.oldest_due, now), _next(row.next_due, now)]
        table.add_row(output.named(row.queue), output.named(row.type), *counts, *map(Text, times))
    return table


def _oldest(due: int | None, now: int) -> str:
    """How long the oldest due job has waited."""
    return "-" if due is None else units.format_duration((now - due) / clock.SECOND)


def _next(due: int | None, now: int) -> str:
    return "-" if due is None else f"in {units.format_duration((due - now) / clock.SECOND)}"
