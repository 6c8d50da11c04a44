"""`treadle jobs`: ls, show, why and clone. job_actions.py has the commands that change jobs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import click
from rich.text import Text

from treadle import filters, units, views
from treadle.cli import completion, output
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, choices, command, group, reveals
from treadle.cli.enqueue import parse_payload, texts_explained
from treadle.cli.errors import CommandError
from treadle.cli.job_actions import ACTION_COMMANDS
from treadle.cli.job_logs import logs
from treadle.cli.job_tree import tree
from treadle.cli.output import AFTER_HOLDER, bar, clean, job_status, pretty, section, status, style
from treadle.cli.signals import print_steps, print_waits, signal
from treadle.filters import EVERYTHING, NAMED, Filter
from treadle.ids import worker_name
from treadle.job import Attempt, Job, Status
from treadle.views import JobOut

FILTERS = "FILTER: 'status:failed,retrying type:send_* payload.user_id:42 attempt:>3 error:refused since:1h'."
CLONE = """Store a new job like that one, and print its id.

KEY=VALUE, KEY:=JSON and JSON objects change its payload; everything else stays the same."""
Words = tuple[str, ...]


@command("ls", help=f"List jobs, newest first. All conditions must hold.\n\n{FILTERS}")
@click.argument("words", metavar="[FILTER]", nargs=-1)
@click.option("-s", "--status", "statuses", **choices(Status), help="May be repeated.")
@click.option("-t", "--type", shell_complete=completion.types, help="The type.")
@click.option("--queue", shell_complete=completion.queues, help="The queue.")
@click.option("--tenant", help="Whose job it is.")
@click.option("--subject", help="What it is about.")
@click.option("-n", "--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="Jobs per page.")
@click.option("--cursor", help="Start after this job: the cursor that the previous page ended with.")
@reveals
def ls(shared: Shared, /, words: Words, statuses: Words, limit: int, cursor: str | None, **named: str | None) -> None:
    app = database(shared)
    given = {"status": statuses} if statuses else {}
    given |= {name: (value,) for name, value in named.items() if value is not None}
    filter = both(filters.parse(" ".join(words)), given)
    page = app.jobs(filter, limit=limit, cursor=cursor)
    items = [views.job(job, shared.redactor(app)) for job in page]
    if shared.json:
        shared.printed_json(views.job_page(items, page, filter, app.count(filter)))
        return
    empty = "no jobs" if filter == EVERYTHING else "no jobs match"
    output.show(shared, _columns(items), right=("ATTEMPTS",), clip="ERROR", empty=empty)
    if page.searched:
        shared.note((f"searched the newest {page.searched:,} jobs; there are older ones", "dim"))
    if page.next:
        shared.note(("more: ", "dim"), shared.hint(_next_page(filter, limit, page.next)))


def both(filter: Filter, given: Mapping[str, Words]) -> Filter:
    for name in given:
        if getattr(filter, NAMED[name]):
            raise CommandError(f"the filter names a {name}, and so does --{name}", "Give it once.")
    return filter.replace(**{NAMED[name]: values for name, values in given.items()})


def _columns(page: list[JobOut]) -> output.Columns:
    """Only useful columns: no queue if all jobs have the same, and no errors if there are none."""
    now, queues = datetime.now(UTC), {job.queue for job in page}
    errors = [(clean(job.error or "")[:200], "red" if job.status is Status.FAILED else "dim") for job in page]
    columns: output.Columns = {
        "ID": [job.id for job in page],
        "TYPE": [job.type for job in page],
        "STATUS": [job_status(job) for job in page],
        "QUEUE": [job.queue for job in page] if queues != {"default"} else [],
        "TENANT": [job.tenant for job in page],
        "SUBJECT": [job.subject for job in page],
        "ATTEMPTS": [f"{job.attempts}/{job.max_attempts}" for job in page],
        "WHEN": [_when(job, now) for job in page],
        "ERROR": [Text(error, style=color) for error, color in errors],
    }
    return {head: cells for head, cells in columns.items() if any(cells)}


def _when(job: Job, now: datetime) -> str:
    """The moment that matters in its status."""
    if job.status is Status.PROCESSING:
        done = f" {job.progress.fraction:.0%}" if job.progress else ""
        return f"for {units.format_duration((now - (job.started_at or now)).total_seconds())}{done}"
    if job.status is Status.PENDING and job.waits_for_key:
        return AFTER_HOLDER
    if job.status is Status.PENDING:
        late = (now - job.run_at).total_seconds()
        return f"due for {units.format_duration(late)}" if late > 0 else units.format_relative(job.run_at, now)
    return units.format_relative(job.completed_at or job.updated_at, now)


def _next_page(filter: Filter, limit: int, cursor: str) -> str:
    words = ["treadle", "jobs", "ls", *([str(filter)] if filter != EVERYTHING else [])]
    words += ["--limit", str(limit)] if limit != 50 else []
    return shlex.join([*words, "--cursor", cursor])


@command(
    "show", help="Show everything about a job: payload, timeline, attempts with tracebacks, result, waits and steps."
)
@click.argument("id", shell_complete=completion.ids)
@reveals
def show(shared: Shared, id: str) -> None:
    app = database(shared)
    hide, found = shared.redactor(app), completion.find_job(app, id)
    job, history = views.job(found, hide), [views.attempt(attempt, hide) for attempt in app.attempts(found.id)]
    steps, waits = [views.step(step, hide) for step in app.steps(found.id)], app.waits(found.id)
    if not shared.printed_json(views.job_with_history(job, history, steps, waits)):
        _print_job(shared, job, history)
        print_waits(shared, waits)
        print_steps(shared, steps)


def _print_job(shared: Shared, job: JobOut, history: Sequence[Attempt]) -> None:
    shared.print((clean(job.type), "bold"), "  ", job.id)
    shared.out.print(job_status(job), Text(_summary(job), style="dim"), soft_wrap=True)
    if job.error:
        shared.print((clean(job.error), "red" if job.status is Status.FAILED else ""))
    if job.progress:
        drawn = bar(round(job.progress.fraction * 1000), 1000, 30).ljust(30, "░")
        section(shared, "Progress", [f"{drawn} {job.progress.fraction:.0%} {clean(job.progress.message)}"])
    section(shared, "Payload", pretty(job.payload).splitlines())
    section(shared, "Timeline")
    for moment, text, color in sorted(_timeline(job, history), key=lambda line: line[0]):
        shared.print("  ", (units.format_local(moment), "dim"), "  ", (text, color))
    for attempt in history:
        if trace := clean((attempt.traceback or "").rstrip(), one_line=False):
            section(shared, f"Traceback of attempt {attempt.attempt}", trace.splitlines())
    if job.status is Status.COMPLETED:
        section(shared, "Result", pretty(job.result).splitlines())


def _summary(job: Job) -> str:
    """The queue, and what else sets it apart."""
    parts = [f"queue {clean(job.queue)}", f"priority {job.priority}"]
    names = ("tenant", "subject", "schedule", "batch", "origin")
    parts += [f"{name} {clean(value)}" for name in names if (value := getattr(job, name))]
    parts += [f"{job.attempts} of {job.max_attempts} attempts"]
    parts += [f"dedupe {job.dedupe_mode}"] if job.dedupe_mode else []
    parts += [f"start by {units.format_local(job.start_by)}"] if job.start_by else []
    parts += [f"snoozed {units.plural(job.snoozes, 'time')}"] if job.snoozes else []
    return "".join(f" · {part}" for part in parts)


def _timeline(job: Job, history: Sequence[Attempt]) -> Iterator[tuple[datetime, str, str]]:
    """When, what, and in which style."""
    yield job.created_at, "created", ""
    for attempt in history:
        n, ended = attempt.attempt, views.attempt_outcome(attempt.outcome)
        lasted = units.format_duration((attempt.ended_at - attempt.started_at).total_seconds())
        error = f": {clean(attempt.error)}" if attempt.error else ""
        color = "red" if attempt.outcome == "failed" else "yellow"
        yield attempt.started_at, f"attempt {n} started on {_worker(attempt.worker_id)}", ""
        yield attempt.ended_at, f"attempt {n} {ended} after {lasted}{error}", color
    if job.started_at and job.started_at not in {attempt.started_at for attempt in history}:
        yield job.started_at, f"attempt {job.attempts or 1} started on {_worker(job.worker_id)}", ""
    if job.completed_at:
        lasted = units.format_duration((job.completed_at - (job.started_at or job.completed_at)).total_seconds())
        after = f" after {lasted}" if job.started_at else ""
        yield job.completed_at, f"{status(job.status)}{after}", style(job.status)
    elif job.status is Status.PENDING and job.waits_for_key:
        yield job.updated_at, f"due {AFTER_HOLDER}", style(job.status)
    elif job.status is Status.BLOCKED:
        yield job.updated_at, "blocked until what it waits for has happened", style(job.status)
    elif job.status is Status.PENDING:
        yield job.run_at, f"due ({units.format_relative(job.run_at)})", style(job.status)


def _worker(id: str | None) -> str:
    return f"worker {clean(worker_name(id))}" if id else "no worker (claimed by hand)"


@command("why", help="Explain why a job is not running: every reason that holds, the deciding one first.")
@click.argument("id", shell_complete=completion.ids)
@reveals
def why(shared: Shared, id: str) -> None:
    app = database(shared)
    answer = views.why(app.why(completion.find_id(app, id)), shared.redactor(app))
    if shared.printed_json(answer):
        return
    shared.out.print(status(answer.status), highlight=False)
    output.reasons(shared, answer.reasons)


@command("clone", help=CLONE)
@click.argument("id", shell_complete=completion.ids)
@click.argument("pairs", metavar="[KEY=VALUE | KEY:=JSON | JSON]...", nargs=-1)
@reveals
def clone(shared: Shared, id: str, pairs: Words) -> None:
    app = database(shared)
    old = completion.find_job(app, id)
    with texts_explained():
        new = app.clone(old.id, {**old.payload, **parse_payload(pairs)} if pairs else None)
    shared.audit(app.store, "clone", f"{old.id} → {new.id}")
    output.stored(shared, new, shared.redactor(app), f", like {old.id}")


HELP = (
    "List, show and explain jobs, their logs and relatives; clone, retry, run now, cancel, delete and signal to them."
)
jobs = group("jobs", HELP, [ls, show, why, logs, tree, clone, signal, *ACTION_COMMANDS])
