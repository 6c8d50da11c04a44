"""`treadle workers`: list workers and what they run; let one claim nothing more, and claim again."""

from __future__ import annotations

from collections.abc import Callable

import click

from treadle import clock, units, views
from treadle.app import Treadle
from treadle.cli import completion, output
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, group
from treadle.errors import NoSuchWorker
from treadle.stores.base import WorkerRow

QUIET = """Let a worker claim nothing more: it finishes what runs, and stays until it is stopped or resumed.

Name it by its id, the start of its id, or its name."""


@command("ls", help="List workers: their heartbeat, and what they run.")
def ls(shared: Shared) -> None:
    app = database(shared)
    now = app.store.now()
    rows = [views.worker(row, now) for row in app.workers()]
    if shared.printed_json({"items": rows}):
        return
    more = {
        "QUEUES": [", ".join(row.queues) or "all" for row in rows],
        "TYPES": [", ".join(row.types) for row in rows],
        "VERSION": [row.version for row in rows],
        "UP": [units.format_duration((clock.to_datetime(now) - row.started_at).total_seconds()) for row in rows],
    }
    columns = output.workers(rows, now, more, most=1000, idle="-")
    empty = "no worker is running on this database\n→ treadle worker app:td"
    output.show(shared, columns, right=("BUSY", "UP"), clip="TYPES", empty=empty)


@command("quiet", help=QUIET)
@click.argument("worker", shell_complete=completion.workers)
def quiet(shared: Shared, worker: str) -> None:
    found = _change(shared, worker, Treadle.quiet, "is quiet: it finishes what runs, and claims nothing more")
    shared.note(("→ ", "dim"), shared.hint(f"treadle workers resume {found.id}"))


@command("resume", help="Let a quiet worker claim again.")
@click.argument("worker", shell_complete=completion.workers)
def resume(shared: Shared, worker: str) -> None:
    _change(shared, worker, Treadle.unquiet, "claims again")


def _change(shared: Shared, worker: str, change: Callable[[Treadle, str], None], text: str) -> WorkerRow:
    app = database(shared)
    found = _find(app, worker)
    change(app, found.id)
    shared.audit(app.store, change.__name__, found.name)
    row = next((row for row in app.workers() if row.id == found.id), found)
    if not shared.printed_json(views.worker(row, app.store.now())):
        shared.print(f"worker {output.clean(found.name)} {text}")
    return found


def _find(app: Treadle, text: str) -> WorkerRow:
    """By its id, its name, or the start of its id, if that is the only one. Raises NoSuchWorker."""
    rows = app.workers()
    for found in (
        [row for row in rows if row.id == text],
        [row for row in rows if row.name == text],
        [row for row in rows if text and row.id.startswith(text)],
    ):
        if len(found) == 1:
            return found[0]
    raise NoSuchWorker(text)


workers = group("workers", "List workers and what they run; let one be quiet.", [ls, quiet, resume], default=ls)
