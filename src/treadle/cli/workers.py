"""`treadle workers`: list workers and what they run; let one claim nothing more, and claim again."""

from __future__ import annotations

import click

from treadle import clock, units, views
from treadle.app import Treadle
from treadle.cli import output
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, shared_options
from treadle.errors import NoSuchWorker
from treadle.stores.base import WorkerRow

QUIET = """Let a worker claim nothing more: it finishes what runs, and stays until it is stopped or resumed.

Name it by its id, the start of its id, or its name."""


@command("ls", help="List workers: their heartbeat, and what they run.")
def ls(shared: Shared) -> None:
    _list(shared)


def _list(shared: Shared) -> None:
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
@click.argument("worker")
def quiet(shared: Shared, worker: str) -> None:
    app = database(shared)
    found = _find(app, worker)
    app.quiet(found.id)
    shared.audit(app.store, "quiet", found.name)
    _report(shared, app, found, "is quiet: it finishes what runs, and claims nothing more")
    shared.note(("→ ", "dim"), f"treadle workers resume {found.id}")


@command("resume", help="Let a quiet worker claim again.")
@click.argument("worker")
def resume(shared: Shared, worker: str) -> None:
    app = database(shared)
    found = _find(app, worker)
    app.unquiet(found.id)
    shared.audit(app.store, "unquiet", found.name)
    _report(shared, app, found, "claims again")


def _report(shared: Shared, app: Treadle, found: WorkerRow, text: str) -> None:
    now = app.store.now()
    [row] = [views.worker(row, now) for row in app.workers() if row.id == found.id] or [views.worker(found, now)]
    if not shared.printed_json(row):
        shared.print(f"worker {output.clean(found.name)} {text}")


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


@click.pass_context
def _without_a_command(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Shared))


workers = click.Group(
    "workers",
    help="List workers and what they run; let one be quiet.",
    commands=[ls, quiet, resume],
    params=shared_options(),
    callback=_without_a_command,
    invoke_without_command=True,
)
