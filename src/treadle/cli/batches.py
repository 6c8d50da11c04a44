"""`treadle batches`: ls and show."""

from __future__ import annotations

import shlex

import click

from treadle import views
from treadle.batch import Batch
from treadle.cli import output
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, group
from treadle.cli.output import clean, section
from treadle.errors import BatchNotFound
from treadle.filters import Filter
from treadle.job import STATE_OF
from treadle.units import format_relative


@command("ls", help="List batches, newest first: how many of their members have ended, and how.")
@click.option("--tenant", help="Only of this tenant.")
@click.option("-n", "--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="Batches per page.")
@click.option("--cursor", help="Start after this one: the cursor that the previous page ended with.")
def ls(shared: Shared, tenant: str | None, limit: int, cursor: str | None) -> None:
    page = database(shared).batches.list(tenant, limit=limit, cursor=cursor)
    if shared.printed_json(views.BatchesOut(items=page.batches, next_cursor=page.next)):
        return
    output.show(shared, _columns(page.batches), right={"PROGRESS"}, empty="no batches")
    if page.next:
        shared.note(("more: ", "dim"), shared.hint(f"treadle batches ls --cursor {shlex.quote(page.next)}"))


def _columns(page: list[Batch]) -> output.Columns:
    columns: output.Columns = {
        "NAME": [one.name for one in page],
        "TENANT": [one.tenant for one in page],
        "STATE": [_state(one) for one in page],
        "PROGRESS": [f"{one.progress:.0%}" for one in page],
        "MEMBERS": [str(one) for one in page],
        "CREATED": [format_relative(one.created_at) for one in page],
    }
    return {head: cells for head, cells in columns.items() if any(map(str, cells))}


def _state(batch: Batch) -> str:
    return "open" if batch.is_open else "closed"


@command("show", help="Show a batch: its progress, what it enqueues, and which members hold it up.")
@click.argument("name")
@click.option("--tenant", default="", help="Whose batch it is.")
def show(shared: Shared, name: str, tenant: str) -> None:
    app = database(shared)
    found = app.batches.get(name, tenant=tenant)
    if found is None:
        raise BatchNotFound(name, tenant)
    out = views.batch_out(found, app.counts_by_state(Filter(**views.members(found))))
    if not shared.printed_json(out):
        _print(shared, out)


def _print(shared: Shared, out: views.BatchOut) -> None:
    one = out.batch
    shared.print((clean(one.name), "bold"), "  ", _state(one), "  ", str(one))
    whose = [f"tenant {clean(one.tenant)}"] if one.tenant else []
    closings = [("then", one.then), ("on failure", one.on_failure), ("enqueued", one.last_job)]
    parts = [
        *whose,
        f"created {format_relative(one.created_at)}",
        *(f"{word} {what}" for word, what in closings if what),
    ]
    shared.print((clean(" · ".join(parts)), "dim"))
    states = {state: total for state, total in out.states.items() if total.value}
    lines = [f"{_count(total):>9} {STATE_OF[state].label.lower()}" for state, total in states.items()]
    section(shared, "Members", lines or ["none are stored"])
    if "failed" in states:
        failed = shlex.quote(f"{Filter(**views.members(one))} status:failed")
        shared.note(("see: ", "dim"), shared.hint(f"treadle jobs ls {failed}"))


def _count(total: views.Total) -> str:
    return f"{total.value:,}{'+' if total.relation == 'gte' else ''}"


batches = group("batches", "List batches, and show what holds one up.", [ls, show])
