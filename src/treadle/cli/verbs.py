"""`treadle jobs retry`, `run-now`, `cancel` and `delete`: to some jobs by their ids, or to all that match a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from treadle.cli import reveal
from treadle.cli.app_loader import database
from treadle.cli.base import Command, Shared, command, pass_shared
from treadle.cli.bulk import Verb, bulk, confirm
from treadle.cli.errors import PROBLEMS, Problem, explained
from treadle.errors import CountMoved, TreadleError
from treadle.job import Job, Status

if TYPE_CHECKING:
    from treadle.app import Treadle

WHICH = "ID... or a filter, such as 'status:failed type:send_* since:1h'. Of a filter the number is told first."


def verbs() -> Iterator[Command]:
    retry = "Let jobs that have ended run again now, with all of their attempts."
    yield _command(Verb("retry", "Retrying", "retried"), retry, lambda job: "pending again")
    yield _command(Verb("run_now", "Letting run", "let run"), "Let waiting jobs wait no longer.", lambda job: "due now")
    yield _command(Verb("cancel", "Cancelling", "cancelled"), "End waiting jobs, and stop running ones.", _cancelled)
    delete = "Erase jobs that are not running, with their history."
    yield _command(Verb("delete", "Deleting", "deleted", for_ever=True), delete, lambda job: "deleted")


def _cancelled(job: Job) -> str:
    return "its worker is told to stop it" if job.status is Status.PROCESSING else "cancelled"


def _command(verb: Verb, help: str, told: Callable[[Job], str]) -> Command:
    @command(verb.action.replace("_", "-"), help=f"{help}\n\nWhich: {WHICH}")
    @click.argument("which", metavar="ID... | FILTER", nargs=-1, required=True)
    @click.option("-y", "--yes", is_flag=True, help="Do not ask.")
    @click.option("--expect", type=click.IntRange(0), metavar="N", help="Do nothing unless just so many match.")
    @reveal.reveals
    @pass_shared
    def run(shared: Shared, which: tuple[str, ...], yes: bool, expect: int | None) -> None:
        if is_filter(which):
            bulk(shared, verb, " ".join(which), yes=yes, expected=expect)
            return
        ids = tuple(dict.fromkeys(which))
        if expect not in (None, len(ids)):
            raise CountMoved(expect or 0, len(ids))
        if verb.for_ever and not yes:
            many = len(ids) > 1
            confirm(verb, f"{len(ids)} jobs are named" if many else f"job {which[0]}", "them" if many else "it")
        _to_each(shared, verb, ids, told)

    return run


def is_filter(words: Sequence[str]) -> bool:
    """A filter has a key and a colon somewhere; an id never."""
    return any(":" in word for word in words)


def _to_each(shared: Shared, verb: Verb, ids: Sequence[str], told: Callable[[Job], str]) -> None:
    """Say of each how it went."""
    app = database(shared)
    results = [_each(app, verb.action, id) for id in ids]
    if shared.json:
        shared.data({"items": [_as_json(shared, id, result) for id, result in results]})
    for id, result in results:
        if isinstance(result, Problem):
            result.show()
        elif not shared.json:
            shared.print(id, ("  ", ""), (told(result), "dim"))
    codes = {result.exit_code for _, result in results if isinstance(result, Problem)}
    if codes:
        click.get_current_context().exit(codes.pop() if len(codes) == 1 else PROBLEMS)


def _each(app: Treadle, action: str, id: str) -> tuple[str, Job | Problem]:
    try:
        changed: Job = getattr(app, action)(id)
        return id, changed
    except TreadleError as error:
        return id, explained(error)


def _as_json(shared: Shared, id: str, result: Job | Problem) -> dict[str, Any]:
    if isinstance(result, Problem):
        return {"id": id, "ok": False, "error": result.message, "exit_code": result.exit_code}
    return {"id": id, "ok": True, "job": reveal.job(shared, result)}
