"""`windlass stats`: how many jobs there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import click
from rich.text import Text

from windlass import units
from windlass.cli import output
from windlass.cli.base import Shared, command, pass_shared
from windlass.cli.target import database
from windlass.health import Lane, live, unhandled
from windlass.job import Status


@command("stats", help="How many jobs there are, by type and status, and who works on them.")
@click.option(
    "--by", metavar="NAMES", help="Group by some of status, type, queue, tenant, subject instead: --by tenant,status."
)
@pass_shared
def stats(shared: Shared, by: str | None) -> None:
    app = database(shared)
    if by is not None:
        _grouped(shared, app.counts(names := [name.strip() for name in by.split(",")]), names)
        return
    counts = app.counts(("status", "type", "queue"))
    workers, place = app.workers(), app.store.status()
    living = live(workers, app.store.now())
    nobody = unhandled(counts, living)
    totals = {status.value: 0 for status in Status} | _sums(counts, "status")
    if shared.json:
        shared.data(
            {
                "items": counts,
                "totals": totals,
                "workers": {"live": len(living), "lost": len(workers) - len(living)},
                "unhandled": [lane._asdict() for lane in nobody],
                "database": place,
                "as_of": datetime.now(UTC),
            }
        )
        return
    if counts:
        output.show(shared, _table(counts, nobody, bars=shared.out.is_terminal))
        shared.print()
    shared.print(
        (_summary(totals, len(living), len(workers) - len(living), place), "dim" if shared.out.is_terminal else "")
    )


def _table(counts: Iterable[Mapping[str, Any]], nobody: Iterable[Lane], *, bars: bool) -> output.Grid:
    """One line per type, those with the most waiting first."""
    by_type: dict[str, Counter[str]] = {}
    for row in counts:
        by_type.setdefault(row["type"], Counter())[row["status"]] += row["count"]
    most = max(counter["pending"] for counter in by_type.values())
    bars = bars and most > 0
    shown = [s for s in Status if s is not Status.CANCELLED or any(counter[s] for counter in by_type.values())]
    names = [status.value.upper() for status in shown]
    warned = {lane.type: lane for lane in nobody}
    heads = ["TYPE", names[0], *([""] if bars else []), *names[1:], *([" "] if warned else [])]
    table = output.table(*heads, right=names)
    for type, counter in sorted(by_type.items(), key=lambda item: (-item[1]["pending"], item[0])):
        cells = [output.number(counter[status], output.STYLES[status]) for status in shown]
        if bars:
            cells.insert(1, Text(output.bar(counter["pending"], most), style="cyan"))
        cells += [Text(_warning(warned.get(type)), style="yellow")] if warned else []
        table.add_row(Text(output.clean(type)), *cells)
    return table


def _warning(lane: Lane | None) -> str:
    if lane is None:
        return ""
    queue = "" if lane.queue == "default" else f" in queue {output.clean(lane.queue)}"
    return f"⚠ no worker handles it{queue}"


def _summary(totals: Mapping[str, int], living: int, lost: int, place: Mapping[str, Any]) -> str:
    parts = [f"{totals[status]:,} {status}" for status in ("pending", "processing")]
    parts.append(units.plural(living, "worker") + (f" ({lost} lost)" if lost else ""))
    size = f" ({units.size(place['bytes'])})" if "bytes" in place else ""
    parts.append(f"{place['store']} {place['where']}{size}")
    return " · ".join(parts)


def _sums(counts: Iterable[Mapping[str, Any]], key: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for row in counts:
        total[row[key]] += row["count"]
    return dict(total)


def _grouped(shared: Shared, rows: list[dict[str, Any]], names: list[str]) -> None:
    if shared.json:
        shared.data({"items": rows, "as_of": datetime.now(UTC)})
        return
    table = output.table(*(name.upper() for name in names), "COUNT", right=("COUNT",))
    for row in rows:
        cells = [output.status(row[n]) if n == "status" else Text(output.clean(row[n]) or "-") for n in names]
        table.add_row(*cells, output.number(row["count"]))
    if rows:
        output.show(shared, table)
    else:
        shared.note("no jobs")
