"""What a shell completes: ids, types, queues, schedules and workers of the database that the command would use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout

import click
from click.shell_completion import CompletionItem

from treadle.app import Treadle
from treadle.cli.app_loader import database
from treadle.cli.base import Shared
from treadle.cli.output import clean, status_name
from treadle.filters import EVERYTHING
from treadle.ids import ids_from

MOST = 50
"""Values that are offered at once."""
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


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
    range = ids_from(start)
    found = app.store.ids_between(*range, MOST) if range else []
    page = app.jobs(EVERYTHING.replace(ids=tuple(found)), limit=MOST) if found or not start else ()
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
