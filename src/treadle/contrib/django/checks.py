"""System checks: what is wrong with the settings, before a job is lost to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TypeVar

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from treadle.app import Treadle
from treadle.contrib.django.app import DjangoTreadle, project_app
from treadle.contrib.django.conf import TASK_OPTIONS, BadSetting, url_of
from treadle.settings import database_url
from treadle.stores import open_store
from treadle.stores.sqlite.checkpoint import wal_reset_race

T = TypeVar("T")
OF_BACKENDS = {"BACKEND", "QUEUES", "OPTIONS", "ENQUEUE_ON_COMMIT"}
"""What Django reads of each of `TASKS`."""
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
    of_sqlite = _check_sqlite(connection) if connection.vendor == "sqlite" else []
    return [*of_sqlite, *_check_other_apps(), *_check_tasks()]


def _error(error: BadSetting) -> Error:
    return Error(error.problem, hint=error.way_out, id=error.id)


def _check_other_apps() -> Iterator[Warning]:
    """A `td = Treadle()`, as other pages have it, has a database of its own that no worker of the project knows."""
    default = open_store(database_url(None)).where
    for module, name, found in _values(Treadle):
        if not isinstance(found, DjangoTreadle) and found.store.where == default:
            problem = f"{module}.{name} = Treadle() keeps its jobs in {default}, and not in the project's database."
            hint = "Write: from treadle.contrib.django import td. If you want two, pass a URL: Treadle('sqlite:///…')."
            yield Warning(problem, hint=hint, id="treadle.W003")


def _check_tasks() -> Iterator[Warning]:
    """TASKS. A project with jobs of treadle alone needs none."""
    if not settings.is_overridden("TASKS"):
        yield from _check_without_tasks()
        return
    for alias, one in settings.TASKS.items():
        if not str(one.get("BACKEND", "")).startswith("treadle.contrib.django."):
            continue
        for key in one.keys() - OF_BACKENDS:
            problem = f"TASKS[{alias!r}] has {key!r}, which nothing reads."
            hint = f'Move it into OPTIONS: "OPTIONS": {{{key!r}: …}}, which may have {", ".join(TASK_OPTIONS)}.'
            yield Warning(problem, hint=hint, id="treadle.W004")


def _check_without_tasks() -> Iterator[Warning]:
    of_django = [sys.modules.get(name) for name in ("django.tasks.base", "django_tasks.base")]
    for kind in [module.Task for module in of_django if module is not None]:
        if found := sorted(task.module_path for _, _, task in _values(kind)):
            problem = f"There is no setting TASKS, so that Django runs {found[0]} at once, where it is enqueued."
            hint = 'Write: TASKS = {"default": {"BACKEND": "treadle.contrib.django.Backend"}}'
            yield Warning(problem, hint=hint, id="treadle.W005")


def _values(kind: type[T]) -> Iterator[tuple[str, str, T]]:
    """The module, the name and the value of all that modules have of this class, each value once."""
    seen: set[int] = set()
    for module_name, module in sorted(sys.modules.items()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if issubclass(type(value), kind) and id(value) not in seen:  # isinstance would evaluate lazy objects
                seen.add(id(value))
                yield module_name, name, value


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
