"""The Django app: it creates the tables with `migrate`, and imports every `tasks.py`."""

# Django has no types, and what pyright infers from its code is wrong here.
# pyright: reportAssignmentType=false

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from django import get_version
from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from treadle.contrib.django.app import project_app
from treadle.contrib.django.checks import check_settings
from treadle.contrib.django.conf import url_of
from treadle.errors import TreadleError
from treadle.program import Program, use_program
from treadle.stores import open_store

NAME, APP = "python manage.py treadle", "treadle.contrib.django:td"


class TreadleConfig(AppConfig):
    name = "treadle.contrib.django"
    label = "treadle"
    verbose_name = "treadle"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        use_program(_program())
        checks.register(check_settings)
        post_migrate.connect(upgrade, sender=self)
        try:
            autodiscover_modules("tasks")
        except ModuleNotFoundError as error:  # before the checks, which can therefore not say it
            if error.name not in ("django.tasks", "django_tasks"):
                raise
            raise _without_tasks(error.name) from error


def _program() -> Program:
    """What the texts of treadle recommend in this project."""
    alias = project_app().alias
    if alias is None:
        return Program(NAME, APP)
    options = settings.DATABASES.get(alias, {})
    database, role = (_sql_name(options.get(key)) for key in ("NAME", "USER"))
    grant = f"GRANT CREATE ON DATABASE {database} TO {role}"
    checkpointed = str(options.get("NAME", "")) if _leaves(options) else ""
    return Program(NAME, APP, "python manage.py migrate", grant, checkpointed)


def _leaves(options: Mapping[str, Any]) -> bool:
    """Whether the connections of Django to SQLite leave checkpoints to treadle."""
    return "wal_autocheckpoint" in str((options.get("OPTIONS") or {}).get("init_command"))


def _sql_name(name: Any) -> str:
    text = str(name or "…")
    return text if text == text.lower() and (text.isidentifier() or not name) else f'"{text}"'


def _without_tasks(missing: str) -> ImproperlyConfigured:
    """What to do if a `tasks.py` imports the tasks of another Django, or a package that is not installed."""
    django = f"Django {get_version()}"
    if missing == "django_tasks" and find_spec("django.tasks"):
        return ImproperlyConfigured(f"{django} has tasks of its own; write: from django.tasks import task")
    if missing == "django.tasks" and find_spec("django_tasks"):
        return ImproperlyConfigured(f"{django} has no django.tasks; write: from django_tasks import task")
    problem = f"{django} has no tasks of its own, and the package django-tasks is not installed"
    return ImproperlyConfigured(f"{problem}; install it: pip install django-tasks")


def upgrade(using: str, verbosity: int = 1, stdout: Any = None, plan: Any = None, **_: Any) -> None:
    """After `migrate`: create or upgrade the tables. The `flush` that ends a TransactionTestCase sends this signal,
    too, without a plan: then delete all jobs."""
    app = project_app()
    if using != app.alias:
        return
    if app.in_test:
        assert app.joined is not None
        app.joined.upgrade()
        if plan is None:
            app.joined.empty()
        return
    store = open_store(url_of(using))
    try:
        before, now = store.schema(), store.upgrade()
    except TreadleError as error:
        raise CommandError(str(error)) from error
    finally:
        store.close()
    if verbosity and before != now:
        done = f"upgraded from schema {before} to {now}" if before else f"created, with schema {now}"
        print(f"  The tables of treadle are {done}.", file=stdout)
