"""`treadle schedules`: ls, show, pause, resume, run, backfill and delete."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.text import Text

from treadle import units, views
from treadle.app import Treadle
from treadle.backfill import Backfill
from treadle.cli import completion, output
from treadle.cli.app_loader import database
from treadle.cli.base import Shared, command, duration, group, moment, reveals, user
from treadle.cli.errors import confirm
from treadle.cli.output import clean, section
from treadle.cli.queues import UNTIL, moment_or_duration
from treadle.errors import ScheduleNotFound
from treadle.schedule import Schedule
from treadle.schedules import newest_jobs

SHOW = "Show a schedule: why it did not fire or when it will, its next ten moments, and its newest jobs."
PAUSE = "Pause a schedule: its moments are skipped, not missed. A deployment does not end a pause."
BACKFILL = """Store the jobs of all moments from START on and before END.

START and END are times such as 2026-11-01T08:30, or durations ago such as 7d. Moments that have a job are left out, so
you can repeat the command."""


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command about one schedule."""
    option = click.option("--tenant", default="", help="Whose schedule it is.")
    return click.argument("name", shell_complete=completion.schedules)(option(function))


@command("ls", help="List schedules: when they fire next, what they fired last, and which are paused or orphaned.")
@click.option("--tenant", help="Only of this tenant.")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=200, show_default=True, help="Schedules per page.")
@click.option("--cursor", help="Start after this one: the cursor that the previous page ended with.")
@reveals
def ls(shared: Shared, tenant: str | None, limit: int, cursor: str | None) -> None:
    app = database(shared)
    page = app.schedules.list(tenant, limit=limit, cursor=cursor)
    items = [views.schedule(one, shared.redactor(app)) for one in page]
    if shared.printed_json(views.SchedulesOut(items=items, next_cursor=page.next)):
        return
    output.show(shared, _columns(items), empty="no schedules")
    if page.next:
        shared.note(("more: ", "dim"), shared.hint(f"treadle schedules ls --cursor {shlex.quote(page.next)}"))


def _columns(page: list[Schedule]) -> output.Columns:
    now = datetime.now(UTC)
    columns: output.Columns = {
        "NAME": [one.name for one in page],
        "TENANT": [one.tenant for one in page],
        "TYPE": [one.type for one in page],
        "WHEN": [rule(one) for one in page],
        "NEXT": ["-" if one.next_at is None else units.format_relative(one.next_at, now) for one in page],
        "LAST": ["-" if one.last_fired_at is None else units.format_relative(one.last_fired_at, now) for one in page],
        "STATE": [_state(one) for one in page],
    }
    return {head: cells for head, cells in columns.items() if any(map(str, cells))}


def rule(schedule: Schedule) -> str:
    """With its zone, which an interval does not have."""
    return f"{views.schedule_rule(schedule)} {schedule.zone or ''}".rstrip()


def _state(schedule: Schedule) -> Text:
    parts: list[tuple[str, str]] = []
    if schedule.pause is not None:
        by = f" by {schedule.pause.by}" if schedule.pause.by else ""
        reason = f": {schedule.pause.reason}" if schedule.pause.reason else ""
        until = "" if schedule.pause.until is None else f", until {units.format_utc(schedule.pause.until)}"
        parts.append((clean(f"paused{by}{until}{reason}"), "yellow"))
    if schedule.orphaned:
        parts.append(("orphaned", "red"))
    return Text(" · ").join(Text(*part) for part in parts)


@command("show", help=SHOW)
@named
@reveals
def show(shared: Shared, name: str, tenant: str) -> None:
    app, found = database(shared), _get(shared, name, tenant)
    jobs, why = newest_jobs(app, found), app.schedules.why(name, tenant=tenant)
    out = views.schedule_out(found, why, jobs, shared.redactor(app))
    if not shared.printed_json(out):
        _print(shared, out)


def _get(shared: Shared, name: str, tenant: str) -> Schedule:
    found = database(shared).schedules.get(name, tenant=tenant)
    if found is None:
        raise ScheduleNotFound(name, tenant)
    return found


def _print(shared: Shared, out: views.ScheduleOut) -> None:
    one = out.schedule
    shared.print((clean(one.name), "bold"), "  ", clean(one.type), "  ", (rule(one), "dim"))
    whose = f" · tenant {clean(one.tenant)}" if one.tenant else ""
    source = "declared in code" if one.source == "code" else "put at run time"
    shared.print((f"missed {one.missed} · overlap {one.overlap} · {source}{whose}", "dim"))
    output.reasons(shared, out.why.reasons)
    if one.payload:
        section(shared, "Payload", output.pretty(one.payload).splitlines())
    section(shared, "Next moments", [views.schedule_moment(one, at) for at in one.upcoming] or ["none"])
    section(shared, "Newest jobs", [_job(job) for job in out.jobs] or ["none"])


def _job(job: views.JobOut) -> str:
    fired = "" if job.fired_at is None else job.fired_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{fired}  {job.id}  {output.job_status(job)}"


@command("pause", help=PAUSE)
@named
@click.option("--reason", default="", help="Why; `show` and the dashboard show it.")
@click.option("--until", type=moment_or_duration, metavar="TIME", help=UNTIL)
@reveals
def pause(shared: Shared, name: str, tenant: str, reason: str, until: datetime | timedelta | None) -> None:
    app = database(shared)
    found = app.schedules.pause(name, reason=reason, until=until, by=user(), tenant=tenant)
    _changed(shared, app, "pause_schedule", found, "is paused")


@command("resume", help="Resume a schedule. It fires again from its next moment on.")
@named
@reveals
def resume(shared: Shared, name: str, tenant: str) -> None:
    app = database(shared)
    found = app.schedules.resume(name, tenant=tenant)
    next = "" if found.next_at is None else f", and fires next {units.format_relative(found.next_at)}"
    _changed(shared, app, "resume_schedule", found, f"is resumed{next}")


@command("run", help="Store a job of a schedule now, even if it is paused, and print the job's id.")
@named
@reveals
def run(shared: Shared, name: str, tenant: str) -> None:
    app = database(shared)
    job = app.schedules.run_now(name, tenant=tenant)
    shared.audit(app.store, "run_schedule", name)
    output.stored(shared, job, shared.redactor(app))


@command("delete", help="Delete a schedule. Its jobs stay. One that live workers declare cannot be deleted.")
@named
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@reveals
def delete(shared: Shared, name: str, tenant: str, yes: bool) -> None:
    app = database(shared)
    if not yes:
        rule_to_delete = rule(_get(shared, name, tenant))
        confirm(f"will not delete {name} without asking", f"Delete schedule {name} ({rule_to_delete})?")
    _changed(shared, app, "delete_schedule", app.schedules.delete(name, tenant=tenant), "is deleted")


def _changed(shared: Shared, app: Treadle, action: str, schedule: Schedule, what: str) -> None:
    shared.audit(app.store, action, schedule.name)
    if not shared.printed_json(views.schedule(schedule, shared.redactor(app))):
        shared.note(("✓ ", "green"), f"schedule {clean(schedule.name)} {what}")


def _time(value: str) -> datetime:
    try:
        return datetime.fromtimestamp(datetime.now(UTC).timestamp() - duration(value), UTC)
    except click.BadParameter:
        return moment(value)


@command("backfill", help=BACKFILL)
@named
@click.argument("start", type=_time)
@click.argument("end", type=_time)
def backfill(shared: Shared, name: str, tenant: str, start: datetime, end: datetime) -> None:
    app = database(shared)
    work = Backfill.between(app.store, tenant, name, start, end)
    try:
        with output.progress(shared, "Backfilling", work.total) as advance:
            for _ in work:
                advance(work.done + work.skipped)
    finally:
        if work.done:
            shared.audit(app.store, "backfill_schedule", name, work.done)
    if not shared.printed_json({"name": name, "moments": work.total, "stored": work.done}):
        before = f", {work.skipped:,} had one before" if work.skipped else ""
        shared.print(f"{units.plural(work.done, 'job')} stored for {units.plural(work.total, 'moment')}{before}")


HELP = "List, explain, pause, resume, run, backfill and delete schedules."
schedules = group("schedules", HELP, [ls, show, pause, resume, run, backfill, delete])
