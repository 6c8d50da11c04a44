"""Time, as whole microseconds since 1970: exact, sortable, and the same in every store."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], int]
Duration = float | timedelta
"""Seconds, or a timedelta."""

SECOND = 1_000_000
MINUTE = 60 * SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
FIRST, LAST = (
    (moment.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
    for moment in (datetime.min + timedelta(days=1), datetime.max - timedelta(days=1))
)
"""The moments that a datetime can represent in every time zone."""


def now() -> int:
    """The host's wall clock."""
    return time.time_ns() // 1_000


def to_datetime(at: int) -> datetime:
    """`at` as a datetime in UTC. Raises OverflowError beyond all dates."""
    return _EPOCH + timedelta(microseconds=at)


def moment(at: int) -> datetime:
    """A stored time as a datetime. One that was set by hand to beyond all dates is the first or the last of them."""
    return to_datetime(min(max(at, FIRST), LAST))


def optional_moment(at: int | None) -> datetime | None:
    return None if at is None else moment(at)


def from_datetime(moment: datetime) -> int:
    """A datetime as microseconds. A naive one is local time, as for `datetime.timestamp`."""
    return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND


def in_seconds(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def seconds(duration: Duration) -> int:
    """A duration as microseconds. A float becomes the nearest one: 8.2 * SECOND is 8199999.999999999."""
    if isinstance(duration, timedelta):
        return duration // _MICROSECOND
    return round(duration * SECOND)
