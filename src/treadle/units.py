"""Times, durations and sizes as text."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")


def parse_duration(text: str) -> float | None:
    """A duration in seconds, or None if the text is not a duration."""
    text = text.strip().lower()
    try:
        seconds = float(text)
        return seconds if 0 <= seconds < float("inf") else None
    except ValueError:
        pass
    if not re.fullmatch(rf"(?:{_PART.pattern}\s*)+", text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def format_duration(seconds: float) -> str:
    """A duration in at most two units."""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for unit, next_unit, size, next_size in (("d", "h", 86_400, 3600), ("h", "m", 3600, 60), ("m", "s", 60, 1)):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size}{unit} {rest}{next_unit}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def format_microseconds(microseconds: int) -> str:
    return format_duration(microseconds / 1e6)


def format_relative(moment: datetime, now: datetime | None = None) -> str:
    """`12s ago`, `in 5m`, `now`."""
    seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    if abs(seconds) < 0.5:
        return "now"
    return f"in {format_duration(seconds)}" if seconds > 0 else f"{format_duration(-seconds)} ago"


def format_utc(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def format_local(moment: datetime) -> str:
    """The local date and time, to the millisecond."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def format_bytes(number: float) -> str:
    """A size in B, kB, MB or GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if number >= 10 or unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError
