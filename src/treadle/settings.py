"""The database URL, and checks of the values that options may have."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from treadle import clock
from treadle.errors import BadOption, BadURL
from treadle.redact import DEFAULT, OFF, Redactor

DEFAULT_URL = "sqlite:///treadle.db"
URL_VARIABLE = "TREADLE_URL"
SCHEMES = ("sqlite", "postgresql", "postgres", "libsql", "libsql+http", "libsql+https")


def database_url(url: str | None) -> str:
    """The given URL, else $TREADLE_URL, else a file in the working directory. Its scheme is checked."""
    chosen: Any = url if url is not None else os.environ.get(URL_VARIABLE) or DEFAULT_URL
    if not isinstance(chosen, str):
        raise BadURL(chosen, f"pass a URL as a string, such as {DEFAULT_URL}")
    scheme, separator, _ = chosen.partition("://")
    if not separator:
        raise BadURL(chosen, f"write it as a URL: sqlite:///{chosen.lstrip('/') or 'jobs.db'}")
    if scheme not in SCHEMES:
        problem = f"its scheme {scheme!r} is not one of {', '.join(SCHEMES)}"
        raise BadURL(chosen, f"{problem}; for a file write sqlite:///jobs.db")
    return chosen


def is_storable(text: str) -> bool:
    """Whether every database accepts it."""
    return "\0" not in text and (text.isascii() or text.encode("utf-8", "ignore").decode() == text)


def checked_name(option: str, name: Any) -> str:
    """The name of a type, queue, tenant or subject."""
    if not isinstance(name, str) or len(name) > 200 or not is_storable(name):
        raise BadOption(option, name, "use a string of at most 200 characters, without NUL or half of a surrogate pair")
    if not name and option in ("type", "queue"):
        raise BadOption(option, name, "it cannot be empty")
    return name


def redactor_for(redact: Any) -> Redactor:
    """The redactor that `Treadle(redact=…)` asks for."""
    if isinstance(redact, bool):
        return DEFAULT if redact else OFF
    names = None if isinstance(redact, str) or not isinstance(redact, Iterable) else list(redact)
    if names is None or not all(isinstance(name, str) and any(map(str.isalnum, name)) for name in names):
        raise BadOption("redact", redact, 'a list of names to hide, too, such as ["iban"]; or False to hide nothing')
    return Redactor(names)


def checked_priority(priority: Any) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 32_767:
        raise BadOption("priority", priority, "use a whole number from -32767 to 32767; higher runs first")
    return priority


def at_least_one(option: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
        raise BadOption(option, value, "use a whole number, at least 1")
    return value


def checked_timeout(timeout: Any) -> float | None:
    if timeout is None:
        return None
    seconds = clock.in_seconds(timeout)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= 10**8:
        raise BadOption("timeout", timeout, "use seconds, more than 0, or a timedelta; leave it out for no limit")
    return float(seconds)


def checked_level(option: str, level: Any) -> int:
    """A level of `logging`, as a number."""
    number = logging.getLevelNamesMapping().get(level) if isinstance(level, str) else level
    if not isinstance(number, int) or isinstance(number, bool):
        raise BadOption(option, level, "a level of logging: 'DEBUG', 'INFO', 'WARNING', 'ERROR', or a number")
    return number


def checked_delay(delay: Any) -> float:
    seconds = clock.in_seconds(delay)
    if not isinstance(seconds, int | float) or not 0 <= seconds <= 10**10:
        way_out = "seconds from now, 0 or more, or a timedelta; for a moment use run_at=datetime(…)"
        raise BadOption("delay", delay, way_out)
    return seconds


def duration(option: str, given: Any) -> int:
    """Microseconds of a time from now, which is seconds or a timedelta."""
    seconds = clock.in_seconds(given)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= 10**10:
        raise BadOption(option, given, "seconds, 0 or more, or a timedelta")
    return clock.seconds(seconds)


def microseconds(start_within: Any) -> int:
    """A `start_within`, which is seconds or a timedelta."""
    seconds = clock.in_seconds(start_within)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0.001 <= seconds <= 10**10:
        raise BadOption("start_within", start_within, "seconds after its run_at, more than 0, or a timedelta")
    return clock.seconds(seconds)


A_DATETIME = "a datetime, such as datetime(2026, 11, 1, 8, 30, tzinfo=UTC)"


def checked_moment(option: str, moment: Any, way_out: str = A_DATETIME) -> datetime:
    if not isinstance(moment, datetime):
        raise BadOption(option, moment, way_out)
    try:
        exists = clock.FIRST <= clock.from_datetime(moment) <= clock.LAST
    except OverflowError:
        exists = False
    if not exists:
        raise BadOption(option, moment, "a moment that exists in every time zone: 0001-01-02 to 9999-12-30")
    return moment
