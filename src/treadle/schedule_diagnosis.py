"""What keeps schedules from firing: why one did not fire, and which need somebody's attention. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from treadle import clock
from treadle.clock import optional_moment
from treadle.codec import decode_as
from treadle.diagnosis import alive
from treadle.problems import Problem
from treadle.program import as_called
from treadle.schedule import LATE, Schedule, SchedulePause, latest, next_after, next_moments
from treadle.units import format_microseconds, format_utc, plural

if TYPE_CHECKING:
    from treadle.stores.base import WorkerRow
    from treadle.stores.rows import ScheduleRow

SHOWN = 10
"""How many moments are shown."""
MOST_PROBLEMS = 5


def to_schedule(row: ScheduleRow, workers: Sequence[WorkerRow], now: int, shown: int = SHOWN) -> Schedule:
    """A row, as people see it. `shown`: how many of its next moments."""
    paused = is_paused(row, now)
    pause = SchedulePause(
        at=clock.moment(row.paused_at or 0),
        by=row.paused_by or "",
        reason=row.paused_reason or "",
        until=optional_moment(row.paused_until),
    )
    return Schedule(
        name=row.name,
        tenant=row.tenant,
        type=row.type,
        payload=decode_as(row.payload, dict[str, Any]) or {},
        cron=row.cron or None,
        zone=None if row.every else row.zone,
        every=row.every / clock.SECOND if row.every else None,
        anchor=clock.moment(row.anchor) if row.every else None,
        queue=row.queue,
        priority=row.priority,
        max_attempts=row.max_attempts,
        subject=row.subject,
        missed=row.missed,
        overlap=row.overlap,
        source="code" if row.source == "code" else "runtime",
        revision=row.revision,
        next_at=optional_moment(row.next_at),
        upcoming=_upcoming(row, shown),
        pause=pause if paused else None,
        last_job=row.last_job,
        last_fired_at=optional_moment(row.last_moment),
        skipped_at=optional_moment(row.skipped_at),
        skipped_why=row.skipped_why,
        orphaned=is_orphaned(row, workers, now),
        created_at=clock.moment(row.created_at),
        updated_at=clock.moment(row.updated_at),
    )


def _upcoming(row: ScheduleRow, shown: int) -> tuple[datetime, ...]:
    if row.next_at is None or not shown:
        return ()
    try:
        return tuple(map(clock.moment, [row.next_at, *next_moments(row.rule, row.next_at, shown - 1)]))
    except Exception:  # its rule was broken by hand
        return (clock.moment(row.next_at),)


def is_paused(row: ScheduleRow, now: int) -> bool:
    return row.paused_at is not None and (row.paused_until is None or row.paused_until > now)


def is_orphaned(row: ScheduleRow, workers: Iterable[WorkerRow], now: int) -> bool:
    """Code declared it, workers are alive, and none of them declares it. Ticks leave no worker behind."""
    living = alive(workers, now)
    return row.source == "code" and bool(living) and not any(row.name in worker.schedules for worker in living)


def is_overdue(row: ScheduleRow, now: int) -> bool:
    return row.next_at is not None and now - row.next_at > LATE


# Why it did not fire


class ScheduleReason(msgspec.Struct, frozen=True):
    """One thing that holds: as data, and as a sentence with the next step."""

    code: str
    """paused, overdue, skipped, broken, orphaned, no_worker, no_worker_for_type or waits."""
    text: str
    way_out: str
    at: datetime | None = None
    """The moment that it is about."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "way_out", as_called(self.way_out))


class ScheduleWhy(msgspec.Struct, frozen=True, kw_only=True):
    """Why a schedule did not fire, or when it will. `reasons[0]` decides."""

    name: str
    tenant: str
    reasons: tuple[ScheduleReason, ...]

    def __str__(self) -> str:
        return "\n".join(f"{reason.text}; {reason.way_out}" for reason in self.reasons)


def explain_schedule(row: ScheduleRow, workers: Sequence[WorkerRow] | None, now: int) -> ScheduleWhy:
    """Every reason that holds, the deciding one first. `workers`: None if the reader does not see them."""
    found = [*_paused(row, now), *_broken(row, now), *_overdue(row, now), *_skipped(row)]
    if workers is not None:
        found += [*_orphaned(row, workers, now), *_unserved(row, workers, now)]
    if not is_paused(row, now) and row.next_at is not None and not is_overdue(row, now):
        found.append(_waits(row, now))
    return ScheduleWhy(name=row.name, tenant=row.tenant, reasons=tuple(found))


def _paused(row: ScheduleRow, now: int) -> Iterator[ScheduleReason]:
    if not is_paused(row, now):
        return
    since = row.paused_at or 0
    first = next_after(row.rule, since)
    at = latest(row.rule, first, now) if first is not None and first <= now else None
    what = f"did not fire at {_at(at)}" if at is not None else "does not fire"
    by = f" by {row.paused_by}" if row.paused_by else ""
    reason = f": {row.paused_reason}" if row.paused_reason else ""
    until = "" if row.paused_until is None else f", until {_at(row.paused_until)}"
    text = f"{what}: paused{by} at {_at(since)}{until}{reason}"
    yield ScheduleReason("paused", text, f"to go on: treadle schedules resume {_named(row)}", optional_moment(at))


def _broken(row: ScheduleRow, now: int) -> Iterator[ScheduleReason]:
    if row.next_at is None and not is_paused(row, now):
        text = f"fires no more: {row.skipped_why or 'its rule has no moment left'}"
        way_out = f"put it again, or resume it: treadle schedules resume {_named(row)}"
        yield ScheduleReason("broken", text, way_out, optional_moment(row.skipped_at))


def _overdue(row: ScheduleRow, now: int) -> Iterator[ScheduleReason]:
    if is_overdue(row, now) and row.next_at is not None:
        late = format_microseconds(now - row.next_at)
        text = f"did not fire at {_at(row.next_at)}: it has been due for {late}, and no worker or tick fires it"
        yield ScheduleReason("overdue", text, "start a worker: treadle worker app:td", optional_moment(row.next_at))


def _skipped(row: ScheduleRow) -> Iterator[ScheduleReason]:
    if row.skipped_at is not None and row.skipped_at > (row.last_moment or 0) and row.next_at is not None:
        text = f"did not fire at {_at(row.skipped_at)}: {row.skipped_why}"
        way_out = "it fires again at its next moment; choose another policy if each moment needs a job"
        yield ScheduleReason("skipped", text, way_out, optional_moment(row.skipped_at))


def _orphaned(row: ScheduleRow, workers: Sequence[WorkerRow], now: int) -> Iterator[ScheduleReason]:
    if is_orphaned(row, workers, now):
        text = "is orphaned: code declared it, and no live worker does any more"
        way_out = f"if its code is gone, delete it: treadle schedules delete {_named(row)}"
        yield ScheduleReason("orphaned", text, way_out)


def _unserved(row: ScheduleRow, workers: Sequence[WorkerRow], now: int) -> Iterator[ScheduleReason]:
    living = alive(workers, now)
    if not living:
        text = "no worker is running on this database: it is fired by a tick, or late"
        yield ScheduleReason("no_worker", text, "start one: treadle worker app:td")
    elif not any(row.type in worker.types for worker in living):
        text = f"no live worker knows type {row.type!r}: its jobs will wait"
        yield ScheduleReason("no_worker_for_type", text, "add it to the app, and restart the workers")


def _waits(row: ScheduleRow, now: int) -> ScheduleReason:
    assert row.next_at is not None
    due = format_microseconds(row.next_at - now)
    text = f"fires next at {_at(row.next_at)}, in {due}"
    way_out = f"to run it now: treadle schedules run {_named(row)}"
    return ScheduleReason("waits", text, way_out, clock.moment(row.next_at))


# What is wrong


def schedule_problems(rows: Sequence[ScheduleRow], workers: Sequence[WorkerRow], now: int) -> Iterator[Problem]:
    """Schedules that nobody fires, and those that nobody declares any more."""
    if late := [row for row in rows if is_overdue(row, now)]:
        longest = format_microseconds(max(now - (row.next_at or now) for row in late))
        text = f"{_are(late, 'overdue')}: nobody has fired {_them(late)} for up to {longest}: {_names(late)}"
        yield Problem("overdue_schedules", text, "start a worker, or call a tick: treadle worker app:td")
    if orphans := [row for row in rows if is_orphaned(row, workers, now)]:
        text = f"{_are(orphans, 'orphaned')}: no live worker declares {_them(orphans)} any more: {_names(orphans)}"
        next = f"if its code is gone, delete it: treadle schedules delete {_named(orphans[0])}"
        yield Problem("orphaned_schedules", text, next)


def _are(rows: Sequence[ScheduleRow], what: str) -> str:
    return f"{plural(len(rows), 'schedule')} {'is' if len(rows) == 1 else 'are'} {what}"


def _them(rows: Sequence[ScheduleRow]) -> str:
    return "it" if len(rows) == 1 else "them"


def _names(rows: Sequence[ScheduleRow]) -> str:
    more = len(rows) - MOST_PROBLEMS
    shown = ", ".join(row.name for row in rows[:MOST_PROBLEMS])
    return shown if more <= 0 else f"{shown} and {more} more"


def _named(row: ScheduleRow) -> str:
    """A schedule as an argument of a command."""
    return shlex.quote(row.name) + (f" --tenant {shlex.quote(row.tenant)}" if row.tenant else "")


def _at(at: int) -> str:
    return format_utc(clock.moment(at))
