"""`treadle stats`: how many jobs there are, how long they wait, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.text import Text

from treadle import units, views
from treadle.app import Treadle
from treadle.cli import output
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command
from treadle.diagnosis import alive, handles
from treadle.job import STATE_NAMES, Status
from treadle.management import COUNTED_BY
from treadle.problems import Problem, unhandled
from treadle.stores.base import WorkerRow
from treadle.stores.rows import QueueStats


@command("stats", help="Count jobs by type, and show how long they wait, who works on them, and what is wrong.")
@click.option("--by", metavar="NAMES", help=f"Count by some of {', '.join(COUNTED_BY)} instead: --by tenant,status.")
def stats(shared: Shared, by: str | None) -> None:
    app = database(shared)
    if by is not None:
        _grouped(shared, app.counts(names := [name.strip() for name in by.split(",")]), names)
    elif shared.json:
        shared.printed_json(_as_json(app))
    else:
        _print(shared, app)


def _grouped(shared: Shared, rows: list[dict[str, Any]], names: list[str]) -> None:
    if shared.printed_json({"items": rows, "as_of": datetime.now(UTC)}):
        return
    columns: dict[str, list[Text | str]] = {name.upper(): [row[name] or "-" for row in rows] for name in names}
    if "STATUS" in columns:
        columns["STATUS"] = [output.status(row["status"]) for row in rows]
    columns["COUNT"] = [output.number(row["count"]) for row in rows]
    output.show(shared, columns, right=("COUNT",), empty="no jobs")


def _as_json(app: Treadle) -> views.Statistics:
    counts, workers = app.counts(("status", "type", "queue")), app.workers()
    living = alive(workers, app.store.now())
    return views.Statistics(
        items=counts,
        totals={status: sum(row["count"] for row in counts if row["status"] == status) for status in Status},
        workers={"live": len(living), "lost": len(workers) - len(living)},
        unhandled=unhandled(counts, living),
        queues=[views.queue(row) for row in app.queue_stats()],
        latency=app.latency(),
        problems=app.problems(),
        database=app.store.status(),
        as_of=datetime.now(UTC),
    )


def _print(shared: Shared, app: Treadle) -> None:
    rows, workers = app.queue_stats(), app.workers()
    living = alive(workers, app.store.now())
    if rows:
        _print_types(shared, app, rows, living)
        shared.print()
    _print_problems(shared, app.problems())
    text = _summary(rows, len(living), len(workers) - len(living), app.store.status())
    shared.print((text, "dim" if shared.out.is_terminal else ""))


def _print_problems(shared: Shared, problems: Sequence[Problem]) -> None:
    """The table already names the types that no worker handles."""
    others = [problem for problem in problems if problem.code != "unhandled"]
    for problem in others:
        shared.print(
            ("⚠ ", "yellow"), output.clean(problem.text), ("\n  → ", "dim"), shared.hint(output.clean(problem.next))
        )
    if others:
        shared.print()


def _summary(rows: Sequence[QueueStats], living: int, lost: int, database: Mapping[str, Any]) -> str:
    counts = " · ".join(f"{_count(rows, state):,} {state}" for state in ("queued", "processing"))
    workers = units.plural(living, "worker") + (f" ({lost} lost)" if lost else "")
    size = f" ({units.format_bytes(database['bytes'])})" if "bytes" in database else ""
    return f"{counts} · {workers} · {database['store']} {database['where']}{size}"


def _count(rows: Sequence[QueueStats], state: str) -> int:
    return sum(row.counts[state] for row in rows)


def _print_types(shared: Shared, app: Treadle, rows: Sequence[QueueStats], living: Sequence[WorkerRow]) -> None:
    """One line per type, those with the most waiting first; only the columns that have values."""
    groups = [[row for row in rows if row.type == name] for name in sorted({row.type for row in rows})]
    groups.sort(key=lambda group: -_count(group, "queued"))
    columns: dict[str, list[Text | str]] = {"TYPE": [output.type_of(group[0]) for group in groups]}
    for state in STATE_NAMES:
        counts = [_count(group, state) for group in groups]
        if state != Status.CANCELLED or any(counts):
            columns[state.upper()] = [output.number(count, output.style(state)) for count in counts]
        if state == "queued" and any(counts) and shared.out.is_terminal:
            columns[""] = [Text(output.bar(count, max(counts)), style="cyan") for count in counts]
    oldest = [min((row.oldest_due for row in group if row.oldest_due is not None), default=None) for group in groups]
    columns["OLDEST"] = [output.age(due, app.store.now()) or "-" for due in oldest]
    speed = {name: units.format_duration(measured.run_p95) for name, measured in app.latency().items()}
    columns["P95 RUN"] = [speed.get(group[0].type, "-") for group in groups]
    right = columns.keys() - {"TYPE", ""}
    if any(warnings := [_warning(group, living) for group in groups]):
        columns[" "] = [Text(warning, style="yellow") for warning in warnings]
    output.show(shared, columns, right)


def _warning(rows: Sequence[QueueStats], living: Sequence[WorkerRow]) -> str:
    """If no worker runs at all, a line below the table says so."""
    waiting = [row for row in rows if row.counts["queued"] and not row.others] if living else []
    for row in waiting:
        if not any(handles(worker, row.queue, row.type) for worker in living):
            queue = "" if row.queue == "default" else f" in queue {output.clean(row.queue)}"
            return f"⚠ no worker handles it{queue}"
    return ""
