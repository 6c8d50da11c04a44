"""Pauses: a queue, a type or a tenant from which nothing is claimed, with who, why and until when. Pure."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta
from typing import Any

import msgspec

from treadle import clock
from treadle.errors import BadOption
from treadle.settings import checked_name, is_storable
from treadle.units import format_duration, format_utc

MOST_REASON = 1_000
"""Characters of a reason."""
KINDS = ("queue", "type", "tenant")
"""What can be paused."""


class Target(msgspec.Struct, frozen=True):
    """What is paused: one of the three has a name, the others are ''."""

    queue: str = ""
    type: str = ""
    tenant: str = ""

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind))

    @property
    def name(self) -> str:
        return self.queue or self.type or self.tenant

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"

    def holds(self, queue: str, type: str, tenant: str) -> bool:
        """Whether a job with these names is one of it."""
        return queue == self.queue if self.queue else type == self.type if self.type else tenant == self.tenant

    @property
    def resume_command(self) -> str:
        what = shlex.quote(self.name)
        if self.queue:
            return f"treadle queues resume {what}"
        return f"treadle queues resume --type {what}" if self.type else f"treadle queues resume --tenant {what}"


class Pause(Target, frozen=True, kw_only=True):
    """One pause. Exactly one of `queue`, `type` and `tenant` has a name, the others are ''."""

    by: str = ""
    """Who paused it."""
    reason: str = ""
    since: datetime
    until: datetime | None = None
    """When it ends by itself. None: when somebody resumes it."""
    draining: bool = False
    """Whether it began as a drain."""

    @property
    def target(self) -> Target:
        return Target(self.queue, self.type, self.tenant)

    def __str__(self) -> str:
        """`queue 'mail' is paused by ann since 2026-11-01 08:30:00 UTC until …: provider down`"""
        until = f" until {format_utc(self.until)}" if self.until else ""
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.target} is paused by {self.by or 'somebody'} since {format_utc(self.since)}{until}{reason}"


class NewPause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause to be stored."""

    target: Target
    by: str
    reason: str = ""
    until: int | None = None
    """Microseconds since 1970."""
    draining: bool = False


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """How far a drain is. `done`: nothing of what is paused runs any more."""

    pause: Pause
    running: int
    done: bool


def checked_target(queue: Any, type: Any, tenant: Any) -> Target:
    given = {kind: name for kind, name in zip(KINDS, (queue, type, tenant), strict=True) if name is not None}
    if len(given) != 1:
        raise BadOption("pause", given, "name exactly one of queue=, type= and tenant=")
    [(kind, name)] = given.items()
    if not checked_name(kind, name):
        raise BadOption(kind, name, "it cannot be empty: jobs without a tenant are paused by queue or type")
    return Target(**{kind: name})


def checked_until(until: Any, now: int) -> int | None:
    """When it ends, in microseconds. A timedelta counts from now, by the database's time."""
    if until is None:
        return None
    if not isinstance(until, datetime | timedelta):
        raise BadOption("until", until, "a datetime, or a timedelta from now; leave it out to pause until resumed")
    try:
        at = clock.from_datetime(until) if isinstance(until, datetime) else now + clock.seconds(until.total_seconds())
    except OverflowError:
        at = clock.LAST + 1
    if not now < at <= clock.LAST:
        raise BadOption("until", until, "a moment in the future")
    return at


def checked_text(option: str, text: Any) -> str:
    if not isinstance(text, str) or len(text) > MOST_REASON or not is_storable(text):
        way_out = f"use a string of at most {MOST_REASON:,} characters, without NUL or half of a surrogate pair"
        raise BadOption(option, text, way_out)
    return text


def age(pause: Pause, now: int) -> float:
    """Seconds since it began."""
    return max(0.0, (now - clock.from_datetime(pause.since)) / clock.SECOND)


# What is wrong with pauses

FORGOTTEN = 86_400.0
"""Seconds after which a pause may have been forgotten."""
ABANDONED = 3_600.0
"""Seconds after which a drain should be over: it is part of a deployment."""


def is_forgotten(pause: Pause, now: int) -> bool:
    return age(pause, now) > (ABANDONED if pause.draining else FORGOTTEN)


def forgotten_text(pause: Pause, now: int) -> str:
    what = "drained" if pause.draining else "paused"
    reason = f" ({pause.reason})" if pause.reason else ""
    return f"{pause.target} has been {what} for {format_duration(age(pause, now))} by {pause.by or 'somebody'}{reason}"
