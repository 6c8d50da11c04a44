"""`treadle queues`: what waits and what runs, and what is paused: by queue, type or tenant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import click
from rich.text import Text

from treadle import views
from treadle.app import Treadle
from treadle.cli import completion, output
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, duration, group, moment, user
from treadle.cli.errors import TIMED_OUT
from treadle.error_text import nearest
from treadle.job import STATE_NAMES
from treadle.pauses import Drained, Pause, Target, age, checked_target
from treadle.stores.rows import QueueStats
from treadle.units import format_duration, parse_duration, plural

PAUSE = """Start no more jobs of a queue, a type or a tenant. What runs goes on; new jobs are stored, and wait.

    treadle queues pause mail --reason 'provider down' --until 2h"""
DRAIN = """Pause, and wait until nothing of it runs. The pause stays: end it with treadle queues resume.

If --timeout passes first, the exit code is 124."""
SOME = 20
"""Known names that a warning shows."""
UNTIL = "When it ends by itself: 2h (from now), or 2026-11-01T08:30."


@command("ls", help="List queues and types: what is due, what is for later, what runs, what is paused.")
def ls(shared: Shared) -> None:
    app = database(shared)
    rows, pauses, now = app.queue_stats(), app.pauses(), app.store.now()
    if shared.printed_json({"items": [views.queue(row) for row in rows], "pauses": pauses}):
        return
    columns: dict[str, list[Text | str]] = {"QUEUE": [row.queue or "-" for row in rows]}
    columns["TYPE"] = [output.type_of(row) for row in rows]
    for state in STATE_NAMES:
        columns[state.upper()] = [output.number(row.counts[state], output.style(state)) for row in rows]
    columns["LIMIT"] = ["-" if row.limit is None else f"{row.limit:,}" for row in rows]
    columns["OLDEST"] = [output.age(row.oldest_due, now) or "-" for row in rows]
    columns["NEXT"] = ["-" if row.next_due is None else f"in {output.age(now, row.next_due)}" for row in rows]
    right = columns.keys() - {"QUEUE", "TYPE"}
    if any(marks := [_mark(row, pauses) for row in rows]):
        columns[" "] = [Text(mark, style="yellow") for mark in marks]
    output.show(shared, columns, right=right, empty="no jobs")
    _print_pauses(shared, pauses, now)


def _mark(row: QueueStats, pauses: Sequence[Pause]) -> str:
    """A tenant's pause is about jobs in every row: it has a line of its own."""
    held = (not pause.tenant and pause.holds(row.queue, row.type, "") for pause in pauses)
    return "⏸ paused" if not row.others and any(held) else ""


def _print_pauses(shared: Shared, pauses: Sequence[Pause], now: int) -> None:
    for pause in pauses:
        text = f"{pause}, for {format_duration(age(pause, now))}"
        shared.print(("⏸ ", "yellow"), output.clean(text), ("\n  → ", "dim"), _resume(shared, pause.target))


def _resume(shared: Shared, target: Target) -> str:
    """The command that ends its pause."""
    return output.clean(shared.hint(target.resume_command))


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """A queue as an argument, or a type or a tenant as an option."""
    type = "A type instead of a queue."
    function = click.option("--tenant", metavar="NAME", help="A tenant instead of a queue.")(function)
    function = click.option("--type", metavar="NAME", shell_complete=completion.types, help=type)(function)
    return click.argument("queue", required=False, shell_complete=completion.queues)(function)


def pause_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--until", type=moment_or_duration, metavar="TIME", help=UNTIL)(function)
    function = click.option("--reason", default="", metavar="TEXT", help="Why, for the others.")(function)
    return target_options(function)


def moment_or_duration(value: str) -> datetime | timedelta:
    seconds = parse_duration(value)
    return moment(value) if seconds is None else timedelta(seconds=duration(value))


def _target(queue: str | None, type: str | None, tenant: str | None) -> Target:
    if [queue, type, tenant].count(None) != 2:
        raise click.UsageError("name one thing: a QUEUE, or --type NAME, or --tenant NAME")
    return checked_target(queue, type, tenant)


def _warn_if_unknown(shared: Shared, app: Treadle, target: Target) -> None:
    """It is paused all the same: its first job may be yet to come. A tenant is known by its jobs alone."""
    known = {"type": _known_types, "queue": _known_queues}.get(target.kind, lambda _: {target.name})(app)
    if target.name not in known and not app.jobs(**{target.kind: target.name}, limit=1).jobs:
        near = nearest(target.name, known)
        some = f"known: {', '.join(sorted(known)[:SOME])}" if known else "there are none yet"
        way_out = f"did you mean {near}? To undo this: {target.resume_command}" if near else some
        shared.warn(f"no app, worker or job has the {output.clean(target)}", output.clean(way_out))


def _known_types(app: Treadle) -> set[str]:
    """Those of the app, of workers, of what workers have published, and of jobs."""
    served = (type for worker in app.workers() for type in worker.types)
    return {*app.registry.types, *app.store.policies(), *served, *(row.type for row in app.queue_stats() if row.type)}


def _known_queues(app: Treadle) -> set[str]:
    policies = [*(one.policy for one in app.registry.types.values()), *app.store.policies().values()]
    served = (queue for worker in app.workers() for queue in worker.queues)
    return {*(one.queue for one in policies), *served, *(row.queue for row in app.queue_stats() if row.queue)}


@command("pause", help=PAUSE)
@pause_options
def pause(shared: Shared, reason: str, until: datetime | timedelta | None, **names: str | None) -> None:
    app, target = database(shared), _target(**names)
    made = app.pause(**{target.kind: target.name}, reason=reason, until=until, by=user())
    _warn_if_unknown(shared, app, target)
    shared.audit(app.store, "pause", f"{target}: {reason}" if reason else str(target))
    if not shared.printed_json(made):
        _print_pauses(shared, [made], app.store.now())


@command("resume", help="End a pause. If there is none, nothing is changed.")
@target_options
def resume(shared: Shared, **names: str | None) -> None:
    app, target = database(shared), _target(**names)
    ended = app.resume(**{target.kind: target.name})
    if ended is not None:
        shared.audit(app.store, "resume", str(target))
    if shared.printed_json({"resumed": ended}):
        return
    if ended is None:
        shared.note(f"{output.clean(target)} was not paused")
    else:
        lasted = format_duration(age(ended, app.store.now()))
        shared.print(f"{output.clean(target)} is resumed: it was paused for {lasted}")


@command("drain", help=DRAIN)
@pause_options
@click.option("--timeout", type=duration, metavar="DURATION", help="Wait no longer than this.")
def drain(
    shared: Shared, reason: str, until: datetime | timedelta | None, timeout: float | None, **names: str | None
) -> None:
    app, target = database(shared), _target(**names)
    looks = app.draining(target, reason=reason, until=until, timeout=timeout, by=user())
    last = next(looks)
    _warn_if_unknown(shared, app, target)
    shared.audit(app.store, "drain", f"{target}: {reason}" if reason else str(target))
    with output.progress(shared, f"Draining {output.clean(target)}", last.running) as advance:
        total = last.running
        for last in looks:
            advance(max(0, total - last.running))
    _sum_up(shared, last)


def _sum_up(shared: Shared, last: Drained) -> None:
    target = last.pause.target
    if not shared.printed_json(last):
        text = "nothing of it runs" if last.done else f"{plural(last.running, 'job')} still running"
        shared.print(f"{output.clean(target)} is paused, and {text}")
        shared.note(("→ ", "dim"), _resume(shared, target))
    if not last.done:
        click.get_current_context().exit(TIMED_OUT)


HELP = "List what waits and what runs, by queue and type; pause, resume and drain."
queues = group("queues", HELP, [ls, pause, resume, drain])
