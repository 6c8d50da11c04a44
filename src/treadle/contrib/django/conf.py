"""The setting `TREADLE`, and the database that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from treadle.error_text import shown
from treadle.errors import BadOption, BadURL, MissingExtra, TreadleError

SETTINGS = ("DATABASE", "URL", "RETENTION", "REDACT")
MAY_HAVE = f"may have {', '.join(SETTINGS)}"
TASK_OPTIONS = ("max_attempts", "timeout", "backoff", "concurrency", "limits", "logs")
"""What `OPTIONS` in `TASKS` may have: options of `@td.job`, for all tasks of the backend."""
NOT_LIBPQ = ("assume_role", "isolation_level", "pool", "server_side_binding", "cursor_factory", "context")
"""Options of Django's PostgreSQL backend that are its own."""


class BadSetting(ImproperlyConfigured):
    """What is wrong with the settings, and the way out. `id`: of the system check that says so."""

    def __init__(self, problem: str, way_out: str, id: str = "treadle.E001", *, mark: str = "; ") -> None:
        super().__init__(f"{problem}{mark}{way_out}")
        self.problem, self.way_out, self.id = problem, way_out, id


def given() -> Mapping[str, Any]:
    """The setting as it is, right or wrong, for what Django imports before it can check anything."""
    found = getattr(settings, "TREADLE", {})
    return found if isinstance(found, Mapping) else {}


def conf() -> Mapping[str, Any]:
    """The setting. Raises BadSetting."""
    found = getattr(settings, "TREADLE", {})
    if not isinstance(found, Mapping):
        raise BadSetting(
            f"TREADLE={shown(found, with_password=False)} is not a dict", f"write a dict, which {MAY_HAVE}"
        )
    for name in found:
        if name not in SETTINGS:
            raise BadSetting(f"TREADLE has an unknown key {name!r}", f"it {MAY_HAVE}")
    if "URL" in found and "DATABASE" in found:
        raise BadSetting("TREADLE has both URL and DATABASE", "leave one of them out")
    return found


def bad_setting(error: TreadleError) -> BadSetting:
    """What treadle says of a value in the setting."""
    if isinstance(error, MissingExtra):
        problem, _, way_out = str(error).partition("; ")
        return BadSetting(problem, way_out, "treadle.E002")
    problem, mark, way_out = str(error).partition(": " if isinstance(error, BadOption | BadURL) else "; ")
    return BadSetting(f"TREADLE: {problem}", way_out, mark=mark)


def url_of(alias: str) -> str:
    """The URL of one of `DATABASES`. Raises BadSetting if treadle cannot use it."""
    if alias not in connections:
        known = ", ".join(map(repr, connections))
        raise BadSetting(f"DATABASES has no {alias!r}, where TREADLE keeps its jobs", f"it has {known}")
    connection = connections[alias]
    options = connection.settings_dict
    name = str(options["NAME"] or "")
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    if connection.vendor != "postgresql":
        way_out = "treadle needs SQLite or PostgreSQL: see TREADLE['DATABASE'] and ['URL']"
        raise BadSetting(f"{alias!r} of DATABASES is {connection.vendor}", way_out)
    of_libpq = {key: value for key, value in options["OPTIONS"].items() if key not in NOT_LIBPQ}
    parts = {"host": options["HOST"], "port": options["PORT"], "user": options["USER"], "password": options["PASSWORD"]}
    query = urlencode({**{key: value for key, value in parts.items() if value}, **of_libpq}, quote_via=quote)
    return f"postgresql:///{quote(name)}{'?' if query else ''}{query}"
