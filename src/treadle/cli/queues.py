"""`treadle queues`: what waits and what runs, by queue and type."""

from __future__ import annotations

import click
from rich.text import Text

from treadle import clock, units, views
from treadle.cli import output
from treadle.cli.app_loader import database
from treadle.cli.base import Group, Shared, command, pass_shared
from treadle.job import STATE_NAMES
from treadle.stores.rows import QueueStats


@click.group("queues", cls=Group, help="What waits and what runs, by queue and type.")
def queues() -> None:
    pass


@command("ls", help="Each queue and type: what is due, what is for later, what runs, and since when the oldest waits.")
@pass_shared
def ls(shared: Shared) -> None:
    app = database(shared)
    lanes, now = app.queue_stats(), app.store.now()
    if shared.json:
        shared.data({"items": [views.queue(lane) for lane in lanes]})
    elif lanes:
        output.show(shared, _table(lanes, now))
    else:
        shared.note("no jobs")


def _table(lanes: list[QueueStats], now: int) -> output.Grid:
    names = [name.upper() for name in STATE_NAMES]
    table = output.table("QUEUE", "TYPE", *names, "LIMIT", "OLDEST", "NEXT", right=(*names, "LIMIT", "OLDEST", "NEXT"))
    for lane in lanes:
        counts = [output.number(n, output.style(state)) for state, n in lane.counts.items()]
        places = [output.clean(lane.queue), output.clean(lane.type)]
        limit = "-" if lane.limit is None else f"{lane.limit:,}"
        times = [limit, oldest(lane.oldest_due, now), _next(lane.next_due, now)]
        table.add_row(*map(Text, places), *counts, *map(Text, times))
    return table


def oldest(due: int | None, now: int) -> str:
    """How long what is due has waited."""
    return "-" if due is None else units.format_duration((now - due) / clock.SECOND)


def _next(due: int | None, now: int) -> str:
    return "-" if due is None else f"in {units.format_duration((due - now) / clock.SECOND)}"


queues.add_command(ls)
