"""The database URL, and checks of the values that options may have."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from treadle import clock
from treadle.errors import BadOption, BadURL, JobNotFound
from treadle.redact import DEFAULT, OFF, Redactor

DEFAULT_URL = "sqlite:///treadle.db"
URL_VARIABLE = "TREADLE_URL"
SHORTEST = 1e-6
"""Seconds: no clock here counts finer, so that this is the least that is more than 0."""
SCHEMES = ("sqlite", "postgresql", "postgres", "libsql", "libsql+http", "libsql+https")
POSTGRES_DRIVERS = ("psycopg", "psycopg_async", "psycopg2", "psycopg2cffi", "asyncpg", "pg8000")
DRIVERS = {"sqlite": ("pysqlite", "aiosqlite", "pysqlcipher"), **dict.fromkeys(SCHEMES[1:3], POSTGRES_DRIVERS)}
"""SQLAlchemy writes a driver behind these: `postgresql+psycopg://`. treadle has its own."""
OF_DRIVERS = {"timeout", "command_timeout", "statement_cache_size", "prepared_statement_cache_size"}
OF_DRIVERS |= {"max_cached_statement_lifetime", "max_cacheable_statement_size"}
"""Parameters of asyncpg and pg8000 that say nothing of where the database is."""


def database_url(url: str | None) -> str:
    """The given URL, else $TREADLE_URL, else a file in the working directory. Its scheme is checked, and names no
    driver afterwards."""
    chosen: Any = url if url is not None else os.environ.get(URL_VARIABLE) or DEFAULT_URL
    if not isinstance(chosen, str):
        raise BadURL(chosen, f"pass a text such as {DEFAULT_URL}; of SQLAlchemy, engine.url.render_as_string(False)")
    scheme, separator, rest = chosen.partition("://")
    base, plus, driver = scheme.partition("+")
    if ":***@" in rest:
        way_out = "its password is ***, as str(engine.url) has it; pass engine.url.render_as_string(False)"
        raise BadURL(chosen, way_out)
    if base in DRIVERS and separator:
        return f"{base}://{_without_driver(chosen, base, driver, rest) if plus else rest}"
    if not separator:
        of_file = f"sqlite:///{chosen.removeprefix('sqlite:') or 'jobs.db'}"
        raise BadURL(chosen, f"write it as a URL: {f'postgresql://{chosen}' if _names_host(chosen) else of_file}")
    if scheme not in SCHEMES:
        problem = f"its scheme {scheme!r} is not one of {', '.join(SCHEMES)}"
        raise BadURL(chosen, f"{problem}; for a file write sqlite:///jobs.db")
    return chosen


def _names_host(text: str) -> bool:
    """Whether it begins with `host:5432` or `joe@host/`: a server, whose scheme was left out."""
    host, slash, _ = text.partition("/")
    _, colon, port = host.rpartition(":")
    return bool(colon and port.isdigit()) or bool("@" in host and slash)


def _without_driver(url: str, base: str, driver: str, rest: str) -> str:
    """What follows the scheme, as libpq and sqlite3 read it."""
    if driver not in DRIVERS[base]:
        problem = f"its driver {driver!r} is not one of {', '.join(DRIVERS[base])}"
        raise BadURL(url, f"{problem}; treadle needs none: {base}://…")
    place, _, query = rest.partition("?")
    if base == "sqlite" or not query:
        return rest
    kept = [p for p in query.split("&") if p.partition("=")[0] not in OF_DRIVERS]
    query = "&".join(f"sslmode={p[4:]}" if p.startswith("ssl=") else p for p in kept)  # as asyncpg has it
    return f"{place}?{query}" if query else place


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


def checked_names(option: str, names: Any) -> tuple[str, ...]:
    """Names of queues or types. A text would be taken for its letters."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise BadOption(option, names, "a list of names, such as ['mail']")
    return tuple(checked_name(option, name) for name in names)


def wanted_name(option: str, name: Any) -> str:
    """The name of what is looked for. A text that nothing has finds nothing; anything else is a mistake."""
    if not isinstance(name, str):
        raise BadOption(option, name, "pass its name, a text")
    return name


def checked_id(id: Any) -> str:
    """The id of a job. A text that is no id finds none; anything else would, too, and hide that a Job was passed."""
    if not isinstance(id, str):
        raise JobNotFound(id)
    return id


def redactor_for(redact: Any) -> Redactor:
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


def checked_seconds(option: str, given: Any, way_out: str, *, least: float = 0, most: float = 10**10) -> float:
    """Seconds of a duration, which is a number of them or a timedelta."""
    seconds = clock.in_seconds(given)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not least <= seconds <= most:
        raise BadOption(option, given, way_out)
    return float(seconds)


def checked_level(option: str, level: Any) -> int:
    """A level of `logging`, as a number."""
    number = logging.getLevelNamesMapping().get(level) if isinstance(level, str) else level
    if not isinstance(number, int) or isinstance(number, bool):
        raise BadOption(option, level, "a level of logging: 'DEBUG', 'INFO', 'WARNING', 'ERROR', or a number")
    return number


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
