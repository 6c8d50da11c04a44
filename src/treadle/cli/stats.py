"""`treadle stats`: how many jobs there are, how long they wait, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from treadle import units, views
from treadle.cli import output
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, pass_shared
from treadle.cli.stats_table import by_type
from treadle.diagnosis import Problem, alive, unhandled
from treadle.job import Status

if TYPE_CHECKING:
    from treadle.app import Treadle


@command("stats", help="How many jobs there are by type, how long they wait, who works on them, and what is wrong.")
@click.option(
    "--by", metavar="NAMES", help="Group by some of status, type, queue, tenant, subject instead: --by tenant,status."
)
@pass_shared
def stats(shared: Shared, by: str | None) -> None:
    app = database(shared)
    if by is not None:
        _grouped(shared, app.counts(names := [name.strip() for name in by.split(",")]), names)
    elif shared.json:
        shared.data(_as_json(app))
    else:
        _print(shared, app)


def _as_json(app: Treadle) -> dict[str, Any]:
    counts, workers = app.counts(("status", "type", "queue")), app.workers()
    living = alive(workers, app.store.now())
    return {
        "items": counts,
        "totals": {status.value: 0 for status in Status} | _sums(counts),
        "workers": {"live": len(living), "lost": len(workers) - len(living)},
        "unhandled": [lane._asdict() for lane in unhandled(counts, living)],
        "queues": [views.queue(lane) for lane in app.queue_stats()],
        "latency": app.latency(),
        "problems": app.problems(),
        "database": app.store.status(),
        "as_of": datetime.now(UTC),
    }


def _print(shared: Shared, app: Treadle) -> None:
    lanes, workers, now = app.queue_stats(), app.workers(), app.store.now()
    living = alive(workers, now)
    if lanes:
        output.show(shared, by_type(lanes, app.latency(), living, now, bars=shared.out.is_terminal))
        shared.print()
    _print_problems(shared, app.problems())
    totals = Counter({name: sum(lane.counts[name] for lane in lanes) for name in ("queued", "processing")})
    text = _summary(totals, len(living), len(workers) - len(living), app.store.status())
    shared.print((text, "dim" if shared.out.is_terminal else ""))


def _print_problems(shared: Shared, problems: Sequence[Problem]) -> None:
    """What nobody handles stands beside its type already."""
    told = [problem for problem in problems if problem.code != "unhandled"]
    for problem in told:
        shared.print(("⚠ ", "yellow"), output.clean(problem.text))
        shared.print(("  → ", "dim"), output.clean(problem.next))
    if told:
        shared.print()


def _summary(totals: Mapping[str, int], living: int, lost: int, place: Mapping[str, Any]) -> str:
    parts = [f"{totals[state]:,} {state}" for state in ("queued", "processing")]
    parts.append(units.plural(living, "worker") + (f" ({lost} lost)" if lost else ""))
    size = f" ({units.format_bytes(place['bytes'])})" if "bytes" in place else ""
    parts.append(f"{place['store']} {place['where']}{size}")
    return " · ".join(parts)


def _sums(counts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for row in counts:
        total[row["status"]] += row["count"]
    return dict(total)


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
