"""`treadle jobs`: list, show, ask why, clone, retry, run now, cancel and delete."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from treadle import filters, units, views
from treadle.cli import output, reveal
from treadle.cli.app_loader import database
from treadle.cli.base import Group, Shared, command, pass_shared
from treadle.cli.clone import clone
from treadle.cli.errors import Problem
from treadle.cli.job_page import print_job
from treadle.cli.verbs import verbs
from treadle.cli.why import why
from treadle.errors import JobNotFound
from treadle.filters import EVERYTHING, NAMED, Filter
from treadle.job import Job, Status

if TYPE_CHECKING:
    pass

FILTERS = "FILTER: 'status:failed,retrying type:send_* payload.user_id:42 attempt:>3 error:refused since:1h'."


@click.group("jobs", cls=Group, help="List, show, ask why, clone, retry, run now, cancel and delete jobs.")
def jobs() -> None:
    pass


@command("ls", help=f"Jobs, newest first. What is given must all hold.\n\n{FILTERS}")
@click.argument("words", metavar="[FILTER]", nargs=-1)
@click.option(
    "-s",
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([status.value for status in Status]),
    help="A status; may be repeated.",
)
@click.option("-t", "--type", help="The type.")
@click.option("--queue", help="The queue.")
@click.option("--tenant", help="Whose job it is.")
@click.option("--subject", help="What it is about.")
@click.option("-n", "--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="How many.")
@click.option("--cursor", help="Go on after this job: the cursor that the page before ended with.")
@reveal.reveals
@pass_shared
def ls(
    shared: Shared,
    /,
    words: tuple[str, ...],
    statuses: tuple[str, ...],
    limit: int,
    cursor: str | None,
    **named: str | None,
) -> None:
    app = database(shared)
    given = {"status": statuses or None, **named}
    filter = both(filters.parse(" ".join(words)), {name: value for name, value in given.items() if value is not None})
    page = app.jobs(filter, limit=limit, cursor=cursor)
    items = [reveal.job(shared, job) for job in page]
    if shared.json:
        shared.data(views.job_page(items, page, filter, app.count(filter)))
        return
    if not items:
        shared.note("no jobs" if filter == EVERYTHING else "no jobs match")
    else:
        output.show(shared, _table(items))
    if page.searched:
        shared.note((f"searched the newest {page.searched:,} jobs; there are older ones", "dim"))
    if page.next:
        shared.note(("more: ", "dim"), _next_page(filter, limit, page.next))


def both(filter: Filter, given: Mapping[str, Any]) -> Filter:
    """The filter, and what the options say beside it."""
    fields = {NAMED[name]: value if isinstance(value, tuple) else (value,) for name, value in given.items()}
    for name in given:
        if getattr(filter, NAMED[name]):
            raise Problem(f"{name} stands in the filter, and --{name} is given", "Say it once.")
    return filter.replace(**fields)


def _table(page: list[Job]) -> output.Grid:
    """The columns that say something: a queue that is everybody's, or errors that nobody had, are left out."""
    queues = any(job.queue != "default" for job in page)
    columns = {
        "QUEUE": [job.queue for job in page] if queues else [],
        "TENANT": [job.tenant for job in page],
        "SUBJECT": [job.subject for job in page],
    }
    extra = {name: values for name, values in columns.items() if any(values)}
    errors = ["ERROR"] if any(job.error for job in page) else []
    names = ("ID", "TYPE", "STATUS", *extra, "TRIES", "WHEN", *errors)
    table = output.table(*names, right=("TRIES",), clip="ERROR" if errors else None)
    now = datetime.now(UTC)
    for index, job in enumerate(page):
        cells = [Text(job.id), Text(output.clean(job.type)), output.status(job.status)]
        cells += [Text(output.clean(values[index])) for values in extra.values()]
        cells += [Text(f"{job.attempts}/{job.max_attempts}"), Text(_when(job, now))]
        style = "red" if job.status is Status.FAILED else "dim"
        table.add_row(*cells, *(Text(output.clean(job.error or "")[:200], style=style) for _ in errors))
    return table


def _when(job: Job, now: datetime) -> str:
    """The moment that matters in its status."""
    if job.status is Status.PROCESSING:
        done = f" {job.progress.fraction:.0%}" if job.progress else ""
        return f"for {units.format_duration((now - (job.started_at or now)).total_seconds())}{done}"
    if job.status is Status.PENDING:
        late = (now - job.run_at).total_seconds()
        return f"due for {units.format_duration(late)}" if late > 0 else units.format_relative(job.run_at, now)
    return units.format_relative(job.completed_at or job.updated_at, now)


def _next_page(filter: Filter, limit: int, cursor: str) -> str:
    words = ["treadle", "jobs", "ls", *([str(filter)] if filter != EVERYTHING else [])]
    words += ["--limit", str(limit)] if limit != 50 else []
    return shlex.join([*words, "--cursor", cursor])


@command("show", help="All there is to know of a job: payload, timeline, attempts with tracebacks, result.")
@click.argument("id")
@reveal.reveals
@pass_shared
def show(shared: Shared, id: str) -> None:
    app = database(shared)
    found = app.get(id)
    if found is None:
        raise JobNotFound(id)
    job = reveal.job(shared, found)
    history = [reveal.attempt(shared, attempt) for attempt in app.attempts(id)]
    if shared.json:
        shared.data({**msgspec.structs.asdict(job), "history": history})
    else:
        print_job(shared, job, history, {worker.id: worker.name for worker in app.workers()})


for each in (ls, show, why, clone, *verbs()):
    jobs.add_command(each)
