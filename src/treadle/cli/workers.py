"""`treadle workers`: who is working."""

from __future__ import annotations

from rich.text import Text

from treadle import clock, units, views
from treadle.cli import output
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, pass_shared
from treadle.diagnosis import is_alive, silence
from treadle.stores.base import WorkerRow

TIMES = " \N{MULTIPLICATION SIGN}{}"


@command("workers", help="Who is working: their heartbeat, and what they have in hand.")
@pass_shared
def workers(shared: Shared) -> None:
    app = database(shared)
    rows, now = app.workers(), app.store.now()
    if shared.json:
        shared.data({"items": [views.worker(worker, now) for worker in rows]})
        return
    if not rows:
        shared.note("no worker is running on this database")
        shared.note(("→ ", "dim"), "treadle worker app:td")
        return
    table = output.table(
        "WORKER", "BUSY", "DOING", "QUEUES", "TYPES", "VERSION", "UP", "HEARTBEAT", right=("BUSY", "UP"), clip="TYPES"
    )
    for worker in rows:
        table.add_row(*_cells(worker, now))
    output.show(shared, table)


def _cells(worker: WorkerRow, now: int) -> list[Text]:
    alive, quiet = is_alive(worker, now), units.format_duration(silence(worker, now))
    up = units.format_duration((now - worker.started_at) / clock.SECOND)
    return [
        Text.assemble(("● ", "green") if alive else ("◌ ", "red"), output.clean(worker.name)),
        Text(f"{worker.leases}/{worker.concurrency}"),
        Text(_doing(worker, now) or "-", style="" if worker.doing else "dim"),
        Text(output.clean(", ".join(worker.queues)) or "all"),
        Text(output.clean(", ".join(worker.types))),
        Text(worker.version),
        Text(up),
        Text(f"{quiet} ago") if alive else Text(f"{quiet} ago: lost", style="red"),
    ]


def _doing(worker: WorkerRow, now: int) -> str:
    """Each type that it has in hand, how many of it, and for how long the first."""
    parts = (
        f"{output.clean(type)}{TIMES.format(count) if count > 1 else ''}"
        f" for {units.format_duration((now - since) / clock.SECOND)}"
        for type, count, since in worker.doing
    )
    return ", ".join(parts)
