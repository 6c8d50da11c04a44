"""What a shell completes, of the database that the command would use; and ids, of which the start is enough."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout

import click
from click.shell_completion import CompletionItem

from treadle.app import Treadle
from treadle.cli.app_loader import database
from treadle.cli.base import Shared
from treadle.cli.errors import CommandError
from treadle.cli.output import clean, status_name
from treadle.errors import JobNotFound
from treadle.filters import EVERYTHING
from treadle.ids import ids_from, is_id
from treadle.job import Job

MOST = 50
"""Values that are offered at once."""
MOST_SHOWN = 10
"""Candidates that are listed if several ids begin so."""
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def find_id(app: Treadle, text: str) -> str:
    """The id that this text is, or begins. A whole id is not looked up: what needs its job says if there is none."""
    if is_id(text):
        return text
    found = _ids_from(app, text, MOST_SHOWN + 1)
    if not found:
        raise JobNotFound(text)
    if len(found) == 1:
        return found[0]
    lines = [f"  {job.id}  {clean(job.type)}  {status_name(job)}" for job in _newest(app, found, MOST_SHOWN)]
    lines += ["  and others"] if len(found) > MOST_SHOWN else []
    cause = "\n".join(["The newest of them:", *lines])
    raise CommandError(f"{text} is the start of several job ids", cause, next="write more of the id")


def find_job(app: Treadle, text: str) -> Job:
    id = find_id(app, text)
    if (job := app.get(id)) is None:
        raise JobNotFound(id)
    return job


def _ids_from(app: Treadle, start: str, most: int) -> list[str]:
    range = ids_from(start)
    return app.store.ids_between(*range, most) if range else []


def _newest(app: Treadle, ids: list[str], most: int) -> Iterable[Job]:
    return app.jobs(EVERYTHING.replace(ids=tuple(ids[:most])), limit=most)


def _completes(find: Callable[[Treadle, str], Iterable[tuple[str, str]]]) -> Complete:
    """A completion from values and what they are. Without a database there is nothing to offer."""

    def complete(ctx: click.Context, param: click.Parameter, start: str) -> list[CompletionItem]:
        try:
            with redirect_stdout(sys.stderr):  # an app may print when it is imported, and the shell would offer that
                found = find(database(ctx.ensure_object(Shared)), start)
                return [CompletionItem(value, help=help) for value, help in found if value.startswith(start)][:MOST]
        except Exception:  # the user is typing a command, and has not run it: that will say what is wrong
            return []

    return complete


def _ids(app: Treadle, start: str) -> Iterable[tuple[str, str]]:
    """The newest that begin so."""
    found = _ids_from(app, start, MOST)
    page = _newest(app, found, MOST) if found or not start else ()
    return [(job.id, f"{clean(job.type)}, {status_name(job)}") for job in page]


def _types(app: Treadle, start: str) -> Iterable[tuple[str, str]]:
    names = {*app.registry.types, *app.store.policies(), *(row.type for row in app.queue_stats())}
    return [(name, "") for name in sorted(filter(None, names))]


def _queues(app: Treadle, start: str) -> Iterable[tuple[str, str]]:
    names = {policy.queue for policy in app.store.policies().values()} | {row.queue for row in app.queue_stats()}
    return [(name, "") for name in sorted(filter(None, names))]


def _workers(app: Treadle, start: str) -> Iterable[tuple[str, str]]:
    return [(row.name, f"{len(row.types)} types") for row in app.workers()]


def _schedules(app: Treadle, start: str) -> Iterable[tuple[str, str]]:
    return [(one.name, one.type) for one in app.schedules.list(None, limit=200)]


ids, types, queues, workers, schedules = map(_completes, (_ids, _types, _queues, _workers, _schedules))
