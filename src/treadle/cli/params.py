"""Times and durations as options of commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from treadle.units import parse_duration

_LONGEST = 10**10


class Duration(click.ParamType):  # type: ignore[type-arg]
    """`90`, `5m`, `1h30m`, `7d`: seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        seconds = parse_duration(value)
        if seconds is None or seconds > _LONGEST:
            self.fail(f"{value!r} is no duration; write 90 (seconds), 5m, 1h30m or 7d", param, ctx)
        return seconds


class Moment(click.ParamType):  # type: ignore[type-arg]
    """An ISO time. Without a zone it is local time."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(value).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time; write 2026-11-01T08:30, with +01:00 or Z for a zone", param, ctx)
