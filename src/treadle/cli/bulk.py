"""One thing done to all jobs that match a filter: counted, asked, carried out, summed up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from treadle import filters
from treadle.bulk import Bulk
from treadle.cli.app_loader import database
from treadle.cli.base import Shared
from treadle.cli.errors import CONFLICT, PROBLEMS, Problem
from treadle.job import Count
from treadle.units import plural


class Verb(NamedTuple):
    """What is done, and how people say it."""

    action: str
    doing: str
    done: str
    for_ever: bool = False


def bulk(shared: Shared, verb: Verb, text: str, *, yes: bool, expected: int | None) -> None:
    work = database(shared).bulk(verb.action, filters.parse(text), expected=expected)
    if work.total and not yes:
        confirm(verb, _matching(work), "them" if work.total > 1 else "it")
    _carry_out(shared, verb, work)
    _sum_up(shared, verb, work)
    if work.skipped and not work.done:
        click.get_current_context().exit(CONFLICT)


def confirm(verb: Verb, what: str, whom: str) -> None:
    """Ask, where somebody can answer."""
    say = verb.action.replace("_", " ")
    if not sys.stdin.isatty():
        raise Problem(f"will not {say} unasked: {what}", "There is no terminal to ask on.", next="add --yes")
    end = " for ever" if verb.for_ever else ""
    if not click.confirm(f"{what}. {say.capitalize()} {whom}{end}?", err=True):
        raise Problem("nothing was changed", code=PROBLEMS)


def _matching(work: Bulk) -> str:
    return f"{Count(work.total, work.exact)} job{' matches' if work.total == 1 else 's match'}"


def _carry_out(shared: Shared, verb: Verb, work: Bulk) -> None:
    try:
        with _bar(shared, verb, work) as advance:
            for _ in work:
                advance()
    except KeyboardInterrupt:
        shared.note(f"stopped: {verb.done} {work.done:,}; the others are as they were")
        raise


@contextmanager
def _bar(shared: Shared, verb: Verb, work: Bulk) -> Iterator[Callable[[], None]]:
    """How far it is, on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = shared.quiet or not shared.err.is_terminal or not work.total
    with Progress(*columns, console=shared.err, disable=hidden) as progress:
        task = progress.add_task(verb.doing, total=work.total)
        yield lambda: progress.update(task, completed=work.done + work.skipped)


def _sum_up(shared: Shared, verb: Verb, work: Bulk) -> None:
    if shared.json:
        told = {"action": work.action, "filter": str(work.wanted), "total": work.total}
        shared.data({**told, "done": work.done, "skipped": work.skipped})
        return
    if not work.total:
        shared.note("no jobs match")
        return
    skipped = f", skipped {work.skipped:,}: that cannot be done to them as they are now" if work.skipped else ""
    shared.print(f"{verb.done} {plural(work.done, 'job')}{skipped}")
