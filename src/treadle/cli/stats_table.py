"""The table of `treadle stats`: one line per type, those with the most waiting first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from treadle import units
from treadle.cli import output
from treadle.cli.queues import oldest
from treadle.diagnosis import handles
from treadle.job import STATE_NAMES, Latency, Status
from treadle.stores.base import WorkerRow
from treadle.stores.rows import QueueStats


def by_type(
    lanes: Sequence[QueueStats], latency: Mapping[str, Latency], living: Sequence[WorkerRow], now: int, *, bars: bool
) -> output.Grid:
    """The columns that say something. A bar is as long as its type's share of the longest queue."""
    types = {lane.type: [other for other in lanes if other.type == lane.type] for lane in lanes}
    counts = {
        type: {name: sum(lane.counts[name] for lane in some) for name in STATE_NAMES} for type, some in types.items()
    }
    most = max(count["queued"] for count in counts.values())
    shown = [name for name in STATE_NAMES if name != Status.CANCELLED or any(count[name] for count in counts.values())]
    warnings = {type: _warning(some, living) for type, some in types.items()}
    table = _empty(shown, bars=bars and most > 0, warned=any(warnings.values()))
    for type, count in sorted(counts.items(), key=lambda item: (-item[1]["queued"], item[0])):
        cells = [output.number(count[name], output.style(name)) for name in shown]
        if bars and most:
            cells.insert(1, Text(output.bar(count["queued"], most), style="cyan"))
        due = min((lane.oldest_due for lane in types[type] if lane.oldest_due is not None), default=None)
        speed = units.format_duration(latency[type].run_p95) if type in latency else "-"
        cells += [Text(oldest(due, now)), Text(speed)]
        cells += [Text(warnings[type], style="yellow")] if any(warnings.values()) else []
        table.add_row(output.named(type), *cells)
    return table


def _empty(shown: Sequence[str], *, bars: bool, warned: bool) -> output.Grid:
    names = [name.upper() for name in shown]
    heads = ["TYPE", names[0], *([""] if bars else []), *names[1:], "OLDEST", "P95 RUN", *([" "] if warned else [])]
    return output.table(*heads, right=(*names, "OLDEST", "P95 RUN"))


def _warning(lanes: Sequence[QueueStats], living: Sequence[WorkerRow]) -> str:
    """Where nobody works at all, that is told once, below."""
    for lane in lanes if living else ():
        if lane.counts["queued"] and not any(handles(worker, lane.queue, lane.type) for worker in living):
            queue = "" if lane.queue == "default" else f" in queue {output.clean(lane.queue)}"
            return f"⚠ no worker handles it{queue}"
    return ""
