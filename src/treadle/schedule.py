"""Schedules: at which moments they fire, and what becomes of moments that were missed or that overlap. Pure.

A moment is a time in whole microseconds, as everywhere. Only `next_after` knows how cron and time zones work; all else
follows from it, so that looking back and looking ahead find the same moments.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from treadle import clock
from treadle.declarations import spec_of
from treadle.errors import BadOption
from treadle.settings import checked_moment, checked_seconds

Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip", "queue_one", "cancel_running"]
MISSED: tuple[str, ...] = get_args(Missed)
OVERLAP: tuple[str, ...] = get_args(Overlap)

LATE = 60 * clock.SECOND
"""A moment that is fired within this time is not missed: no worker is always punctual."""
WITHIN = 3600 * clock.SECOND
MOST_MISSED = 100
"""What `missed="all"` fires of an outage: moments of the last hour, and at most this many."""
FIVE_FIELDS = "minute hour day month weekday, as in '30 8 * * 1-5'; for seconds: job.schedule('name', every=60)"
LONGEST = 366 * 86_400.0


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The moments of a schedule: by cron in a time zone, or every so many microseconds from an anchor on."""

    cron: str = ""
    zone: str = "UTC"
    every: int = 0
    anchor: int = 0


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A checked schedule, ready to be stored. What is None is as the type has it when it fires."""

    name: str
    type: str
    rule: Rule
    tenant: str = ""
    payload: str = "{}"
    subject: str = ""
    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    missed: str = "once"
    overlap: str = "skip"

    @property
    def spec(self) -> str:
        return spec_of(self)


class SchedulePause(msgspec.Struct, frozen=True, kw_only=True):
    """Who paused a schedule, and why."""

    at: datetime
    by: str
    reason: str
    until: datetime | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring rule that stores jobs, as read at one moment."""

    name: str
    tenant: str
    type: str
    payload: dict[str, Any]
    cron: str | None
    zone: str | None
    every: float | None
    """Seconds."""
    anchor: datetime | None
    queue: str | None
    """What is None is as the type has it when it fires."""
    priority: int | None
    max_attempts: int | None
    subject: str
    missed: str
    overlap: str
    source: Literal["code", "runtime"]
    revision: int
    next_at: datetime | None
    """The next moment. None while it is paused without an end."""
    upcoming: tuple[datetime, ...]
    """The next ten moments."""
    pause: SchedulePause | None
    last_job: str | None
    last_fired_at: datetime | None
    """The last moment that was fired."""
    skipped_at: datetime | None
    """The last moment without a job of its own, and why it has none."""
    skipped_why: str | None
    orphaned: bool
    """Code declared it, and no live worker does."""
    created_at: datetime
    updated_at: datetime


# Checks


def checked_rule(cron: Any, every: Any, zone: Any, anchor: Any) -> Rule:
    if (cron is None) == (every is None):
        way_out = "pass either cron='30 8 * * *' or every=seconds"
        raise BadOption("cron, every", (cron, every), way_out)
    if every is None:
        if anchor is not None:
            raise BadOption("anchor", anchor, "it belongs to every=; a cron expression says by itself when it fires")
        rule = Rule(cron=_checked_cron(cron), zone=_checked_zone("UTC" if zone is None else zone))
        if next_after(rule, 0) is None:
            raise BadOption("cron", cron, "it has no moment in the next 50 years")
        return rule
    if zone is not None:
        way_out = "every= counts seconds, which are the same in all zones; use cron= for local time"
        raise BadOption("zone", zone, way_out)
    start = 0 if anchor is None else clock.from_datetime(checked_moment("anchor", anchor))
    way_out = "seconds or a timedelta, from 1 second to 366 days"
    return Rule(every=clock.seconds(checked_seconds("every", every, way_out, least=1, most=LONGEST)), anchor=start)


def _checked_cron(cron: Any) -> str:
    if not isinstance(cron, str) or len(cron) > 200 or len(cron.split()) != 5:
        raise BadOption("cron", cron, FIVE_FIELDS)
    text = " ".join(cron.split())
    try:
        CronSim(text, datetime(2026, 1, 1))
    except (CronSimError, AssertionError, ValueError, IndexError) as error:
        problem = str(error)[:1].lower() + str(error)[1:]
        raise BadOption("cron", cron, f"{problem or 'it cannot be read'}; {FIVE_FIELDS}") from None
    return text


def _checked_zone(zone: Any) -> str:
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, TypeError, OSError):  # a folder of zones is an OSError
        way_out = "the name of an IANA time zone, such as Europe/Berlin (if this system has none: pip install tzdata)"
        raise BadOption("zone", zone, way_out) from None
    return str(zone)


def checked_choice(option: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise BadOption(option, value, f"choose from {', '.join(choices)}")
    return str(value)


# Moments


def next_after(rule: Rule, at: int) -> int | None:
    """The first moment after a time; None if there is none any more."""
    if rule.every > 0:
        return rule.anchor + ((at - rule.anchor) // rule.every + 1) * rule.every
    try:
        moments = CronSim(rule.cron, clock.to_datetime(at).astimezone(_zone(rule.zone)))
        # In the hour that a clock repeats, cronsim counts from the first of the two: that may be before `at`.
        while (found := clock.from_datetime(next(moments).astimezone(UTC))) <= at:
            pass
    except (StopIteration, OverflowError):
        return None
    return found


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _moments_after(rule: Rule, at: int) -> Iterator[int]:
    moment = next_after(rule, at)
    while moment is not None:
        yield moment
        moment = next_after(rule, moment)


def next_moments(rule: Rule, at: int, n: int = 10) -> list[int]:
    return list(islice(_moments_after(rule, at), n))


def moments_between(rule: Rule, start: int, end: int, most: int) -> list[int]:
    """The moments from `start` on and before `end`; no more than the first `most`."""
    return list(islice(takewhile(lambda moment: moment < end, _moments_after(rule, start - 1)), most))


def latest(rule: Rule, first: int, now: int) -> int:
    """The last moment that is not after `now`. `first` is one of them. After an outage of a year this takes about 50
    steps, and not one per moment."""
    low, high = first, now  # a moment; and a time after which there is none until now
    while (following := next_after(rule, low)) is not None and following <= now:
        low = following
        middle = (low + high) // 2
        later = next_after(rule, middle)
        if later is not None and later <= now:
            low = max(low, later)
        else:
            high = middle
    return low


def due_moments(rule: Rule, missed: str, first: int, last: int, now: int) -> list[int]:
    """The moments to fire now, oldest first, of all that are due: from `first` to `last`."""
    if missed == "skip":
        return [last] if now - last <= LATE else []
    if missed == "once" or last == first:
        return [last]
    start = max(first, now - WITHIN)
    if rule.every > 0:
        start = max(start, last - (MOST_MISSED - 1) * rule.every)
    found = moments_between(rule, start, now + 1, WITHIN // clock.MINUTE + MOST_MISSED)[-MOST_MISSED:]
    return found or [last]


class Admitted(NamedTuple):
    """The moments whose jobs are stored, and whether those that have not ended are cancelled first."""

    moments: list[int]
    cancels: bool = False


def admitted(overlap: str, moments: list[int], waiting: int, running: int) -> Admitted:
    """What the jobs of earlier moments that have not ended let through."""
    if overlap == "allow" or not moments:
        return Admitted(moments)
    if overlap == "cancel_running":
        return Admitted(moments[-1:], cancels=waiting + running > 0)
    if overlap == "queue_one":
        return Admitted([] if waiting else moments[:1])
    return Admitted([] if waiting or running else moments[:1])
