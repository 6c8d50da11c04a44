"""`windlass jobs`: list, show, ask why, retry, cancel and delete."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from windlass import shown, units
from windlass.cli import output
from windlass.cli.base import Group, Shared, command, pass_shared
from windlass.cli.errors import PROBLEMS, Problem, explained
from windlass.cli.job_page import print_job
from windlass.cli.target import database
from windlass.cli.why import why
from windlass.errors import JobNotFound, WindlassError
from windlass.job import Job, Status

if TYPE_CHECKING:
    from windlass.app import Windlass


@click.group("jobs", cls=Group, help="List, show, ask why, retry, cancel and delete jobs.")
def jobs() -> None:
    pass


@command("ls", help="Jobs, newest first. What is given must all hold.")
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
@pass_shared
def ls(shared: Shared, /, statuses: tuple[Status, ...], limit: int, cursor: str | None, **wanted: str | None) -> None:
    page = database(shared).jobs(status=statuses or None, limit=limit, cursor=cursor, **wanted)
    found = [shown.job(job) for job in page]
    if shared.json:
        shared.data({"items": found, "next_cursor": page.next})
        return
    if not page.jobs:
        shared.note("no jobs" if not statuses and not any(wanted.values()) else "no jobs match")
        return
    output.show(shared, _table(found))
    if page.next:
        shared.note(("more: ", "dim"), _next_page(statuses, wanted, limit, page.next))


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
        return f"for {units.span((now - (job.started_at or now)).total_seconds())}{done}"
    if job.status is Status.PENDING:
        late = (now - job.run_at).total_seconds()
        return f"due for {units.span(late)}" if late > 0 else units.relative(job.run_at, now)
    return units.relative(job.completed_at or job.updated_at, now)


def _next_page(statuses: tuple[Status, ...], wanted: dict[str, str | None], limit: int, cursor: str) -> str:
    words = ["windlass", "jobs", "ls"]
    for status in statuses:
        words += ["--status", status]
    for name, value in wanted.items():
        words += [f"--{name}", value] if value is not None else []
    words += ["--limit", str(limit)] if limit != 50 else []
    return shlex.join([*words, "--cursor", cursor])


@command("show", help="All there is to know of a job: payload, timeline, attempts with tracebacks, result.")
@click.argument("id")
@pass_shared
def show(shared: Shared, id: str) -> None:
    app = database(shared)
    found = app.get(id)
    if found is None:
        raise JobNotFound(id)
    job, history = shown.job(found), [shown.attempt(attempt) for attempt in app.attempts(id)]
    if shared.json:
        shared.data({**msgspec.structs.asdict(job), "history": history})
    else:
        print_job(shared, job, history, {worker.id: worker.name for worker in app.workers()})


def _verb(name: str, help: str, done: Callable[[Job], str], *, asks: bool = False) -> None:
    """A command that does one thing to each of several jobs, and says of each how it went."""

    def run(shared: Shared, ids: tuple[str, ...], yes: bool = False) -> None:
        app = database(shared)
        if asks and not yes:
            _confirm(name, ids)
        results = [_each(app, name, id) for id in dict.fromkeys(ids)]
        if shared.json:
            shared.data({"items": [_as_json(id, result) for id, result in results]})
        for id, result in results:
            if isinstance(result, Problem):
                result.show()
            elif not shared.json:
                shared.print(id, ("  ", ""), (done(result), "dim"))
        codes = {result.exit_code for _, result in results if isinstance(result, Problem)}
        if codes:
            click.get_current_context().exit(codes.pop() if len(codes) == 1 else PROBLEMS)

    made: Callable[..., Any] = click.argument("ids", metavar="ID...", nargs=-1, required=True)(pass_shared(run))
    if asks:
        made = click.option("-y", "--yes", is_flag=True, help="Do not ask.")(made)
    jobs.add_command(command(name, help=help)(made))


def _each(app: Windlass, verb: str, id: str) -> tuple[str, Job | Problem]:
    try:
        changed: Job = getattr(app, verb)(id)
        return id, changed
    except WindlassError as error:
        return id, explained(error)


def _as_json(id: str, result: Job | Problem) -> dict[str, Any]:
    if isinstance(result, Problem):
        return {"id": id, "ok": False, "error": result.message, "exit_code": result.exit_code}
    return {"id": id, "ok": True, "job": shown.job(result)}


def _confirm(verb: str, ids: Sequence[str]) -> None:
    what = f"{len(ids)} jobs" if len(ids) > 1 else f"job {ids[-1]}"
    if not sys.stdin.isatty():
        raise Problem(f"will not {verb} {what} unasked", "There is no terminal to ask on.", next="add --yes")
    if not click.confirm(f"{verb.capitalize()} {what} for ever?", err=True):
        raise Problem("nothing was changed", code=PROBLEMS)


def _cancelled(job: Job) -> str:
    return "its worker is told to stop it" if job.status is Status.PROCESSING else "cancelled"


jobs.add_command(ls)
jobs.add_command(show)
jobs.add_command(why)
_verb("retry", "Let jobs that have ended run again now, with all of their attempts.", lambda job: "pending again")
_verb("cancel", "End waiting jobs, and stop running ones.", _cancelled)
_verb("delete", "Erase jobs that are not running, with their history.", lambda job: "deleted", asks=True)
