"""System checks: what is wrong with the settings, before a job is lost to it."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from treadle.contrib.django.app import project_app
from treadle.contrib.django.conf import BadSetting, url_of
from treadle.stores.sqlite.checkpoint import wal_reset_race

IMMEDIATE = '"OPTIONS": {"transaction_mode": "IMMEDIATE"}'
NO_CHECKPOINTS = '"OPTIONS": {"init_command": "PRAGMA wal_autocheckpoint = 0"}'


def check_settings(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """TREADLE, and the database that it names."""
    app = project_app()
    if app.problem is not None:
        return [_error(app.problem)]
    if app.alias is None or app.in_test:
        return []
    try:
        url_of(app.alias)
    except BadSetting as error:
        return [_error(error)]
    connection = connections[app.alias]
    return _check_sqlite(connection) if connection.vendor == "sqlite" else []


def _error(error: BadSetting) -> Error:
    return Error(error.problem, hint=error.way_out, id=error.id)


def _check_sqlite(connection: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    name, alias = str(connection.settings_dict["NAME"]), connection.alias
    if ":memory:" in name or "mode=memory" in name:
        problem = f"The database {alias!r} is in memory, where jobs are not durable."
        found.append(Error(problem, hint="Name a file.", id="treadle.E003"))
    if connection.settings_dict["OPTIONS"].get("transaction_mode") != "IMMEDIATE":
        problem = f"Transactions of the database {alias!r} take the lock when they first write."
        hint = f"With workers beside them, some fail with 'database is locked'. Set {IMMEDIATE} in DATABASES."
        found.append(Warning(problem, hint=hint, id="treadle.W001"))
    first = connection.settings_dict["OPTIONS"].get("init_command") or ""
    if "wal_autocheckpoint" not in first and wal_reset_race(connection.Database.sqlite_version_info):
        problem = f"SQLite {connection.Database.sqlite_version} can corrupt the database {alias!r}."
        hint = f"Leave checkpoints to treadle: set {NO_CHECKPOINTS} in DATABASES. SQLite 3.51.3 needs no such setting."
        found.append(Warning(problem, hint=hint, id="treadle.W002"))
    return found
