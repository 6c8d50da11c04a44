"""`treadle jobs retry`, `run-now`, `reschedule`, `cancel` and `delete`: on jobs by ids, or on all that match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from treadle import filters, views
from treadle.app import Treadle
from treadle.bulk import Bulk, changes_for
from treadle.cli import completion, output
from treadle.cli.app_loader import database
from treadle.cli.base import AT, Shared, command, duration, moment, reveals
from treadle.cli.errors import CONFLICT, PROBLEMS, CommandError, confirm, explained
from treadle.errors import CountMoved, TreadleError
from treadle.job import Count, Job, Status
from treadle.redact import Redactor
from treadle.units import plural

WHICH = """

Name jobs by their ids, or by a filter such as 'status:failed type:send_* since:1h'. With a filter, the command first
says how many jobs match. If the action applies to no job, the exit code is 5."""


class Action(NamedTuple):
    """A method of the app that changes a job, and its words in texts."""

    run: Callable[..., Job]
    help: str
    doing: str
    done: str
    result: str
    permanent: bool = False
    options: Sequence[Callable[[Any], Any]] = ()
    """What it needs to know, besides which jobs."""

    @property
    def name(self) -> str:
        return self.run.__name__.replace("_", " ")


RETRY = "Retry jobs that have ended, now and with all of their attempts."
DELETE = "Delete jobs that are not running, with their history."
RESCHEDULE = "Move waiting jobs to another time, priority or queue. They keep them through retries."
CHANGES = (
    click.option("--delay", "--in", "delay", type=duration, help="Run them after this time: 90, 5m, 1h30m."),
    click.option("--run-at", "--at", "run_at", type=moment, metavar="TIME", help=AT),
    click.option("--priority", type=int, help="Higher runs first."),
    click.option("--queue", shell_complete=completion.queues, help="The queue."),
)
FROM_STEP = click.option("--from-step", metavar="NAME", help="Forget this step and all later ones; by ids only.")
JOB_ACTIONS = (
    Action(Treadle.retry, RETRY, "Retrying", "retried", "pending again", options=(FROM_STEP,)),
    Action(Treadle.run_now, "Make waiting jobs due now.", "Making due", "made due", "due now"),
    Action(Treadle.reschedule, RESCHEDULE, "Rescheduling", "rescheduled", "rescheduled", options=CHANGES),
    Action(Treadle.cancel, "Cancel waiting jobs, and stop running ones.", "Cancelling", "cancelled", "cancelled"),
    Action(Treadle.delete, DELETE, "Deleting", "deleted", "deleted", permanent=True),
)


def _command(action: Action) -> click.Command:
    @command(action.name.replace(" ", "-"), help=action.help + WHICH)
    @click.argument("which", metavar="ID... | FILTER", nargs=-1, required=True, shell_complete=completion.ids)
    @click.option("-y", "--yes", is_flag=True, help="Do not ask.")
    @click.option("--expect", type=click.IntRange(0), metavar="N", help="Do nothing unless exactly N jobs match.")
    @reveals
    def run(shared: Shared, which: tuple[str, ...], yes: bool, expect: int | None, **options: Any) -> None:
        changes = {name: value for name, value in options.items() if value is not None}
        if action.run is Treadle.reschedule and not changes:
            raise CommandError("say what to change", next="add --delay or --run-at, --priority or --queue")
        if any(":" in word for word in which):  # a filter has a key and a colon somewhere; an id never does
            _on_filter(shared, action, " ".join(which), changes, yes=yes, expected=expect)
        else:
            _on_ids(shared, action, which, changes, yes=yes, expected=expect)

    for option in reversed(action.options):
        option(run)
    return run


def _confirm(action: Action, what: str, them: str) -> None:
    question = f"{action.name.capitalize()} {them}{' permanently' if action.permanent else ''}?"
    confirm(f"will not {action.name} without asking: {what}", f"{what}. {question}")


def _on_ids(
    shared: Shared, action: Action, which: Sequence[str], changes: Any, *, yes: bool, expected: int | None
) -> None:
    app = database(shared)
    found = dict(_found(app, text) for text in which)  # a job that is named twice is one
    ids = list(found)
    if expected not in (None, len(ids)):
        raise CountMoved(expected or 0, len(ids))
    if action.permanent and not yes:
        many = len(ids) > 1
        _confirm(action, f"{len(ids)} jobs are named" if many else f"job {ids[0]}", "them" if many else "it")
    if action.run is Treadle.retry:
        noted = f"from_step={changes['from_step']}" if changes else ""
    else:
        noted = str(changes_for(action.run.__name__, changes))  # an error of the options is about no job
    results = [(id, unknown or _on_id(shared, app, action, id, changes, noted)) for id, unknown in found.items()]
    printed = shared.printed_json({"items": [_as_json(id, result, shared.redactor(app)) for id, result in results]})
    for id, result in results:
        if isinstance(result, CommandError):
            result.show()
        elif not printed:
            stopping = action.run is Treadle.cancel and result.status is Status.PROCESSING
            shared.print(id, "  ", ("its worker is asked to stop it" if stopping else action.result, "dim"))
    if codes := {result.exit_code for _, result in results if isinstance(result, CommandError)}:
        click.get_current_context().exit(codes.pop() if len(codes) == 1 else PROBLEMS)


def _found(app: Treadle, text: str) -> tuple[str, CommandError | None]:
    """The whole id. If there is none, the text, and what is wrong with it."""
    try:
        return completion.find_id(app, text), None
    except CommandError as error:
        return text, error
    except TreadleError as error:
        return text, explained(error)


def _on_id(shared: Shared, app: Treadle, action: Action, id: str, changes: Any, noted: str) -> Job | CommandError:
    try:
        changed = action.run(app, id, **changes)
    except TreadleError as error:
        return explained(error)
    shared.audit(app.store, action.run.__name__, f"{id} {noted}".strip())
    return changed


def _as_json(id: str, result: Job | CommandError, hide: Redactor) -> dict[str, Any]:
    if isinstance(result, CommandError):
        return {"id": id, "ok": False, "error": result.message, "exit_code": result.exit_code}
    return {"id": id, "ok": True, "job": views.job(result, hide)}


def _on_filter(shared: Shared, action: Action, text: str, changes: Any, *, yes: bool, expected: int | None) -> None:
    work = database(shared).bulk(action.run.__name__, filters.parse(text), expected=expected, **changes)
    if work.total and not yes:
        matching = f"{Count(work.total, work.exact)} job{' matches' if work.total == 1 else 's match'}"
        _confirm(action, matching, "them" if work.total > 1 else "it")
    try:
        with output.progress(shared, action.doing, work.total) as advance:
            for _ in work:
                advance(work.done + work.skipped)
    except KeyboardInterrupt:
        shared.note(f"stopped: {plural(work.done, 'job')} {action.done}; the others are unchanged")
        raise
    finally:
        if work.done:
            shared.audit(work.store, work.action, f"{work.wanted} {work.changes}".strip(), work.done)
    _sum_up(shared, action, work)
    if work.skipped and not work.done:
        click.get_current_context().exit(CONFLICT)


def _sum_up(shared: Shared, action: Action, work: Bulk) -> None:
    counts = {"total": work.total, "done": work.done, "skipped": work.skipped}
    if shared.printed_json({"action": work.action, "filter": str(work.wanted), **counts}):
        return
    skipped = f", skipped {work.skipped:,} whose status no longer allows it" if work.skipped else ""
    if work.total:
        shared.print(f"{plural(work.done, 'job')} {action.done}{skipped}")
    else:
        shared.note("no jobs match")


ACTION_COMMANDS = [_command(action) for action in JOB_ACTIONS]
