"""Finds the database and the app that a command works on."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
import traceback
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import click

from treadle.app import Treadle
from treadle.cli.base import Shared
from treadle.cli.errors import DATABASE, CommandError
from treadle.errors import TreadleError
from treadle.program import program
from treadle.redact import Redactor, merged
from treadle.settings import DEFAULT_URL, URL_VARIABLE, database_url
from treadle.stores import open_store
from treadle.stores.base import Store

APP_VARIABLE = "TREADLE_APP"
NO_DATABASE = "Each working directory has its own, unless an app or a database is named."
NAME_IT = """cd to the folder of your app, or name it: --app app:td, $TREADLE_APP, or `app` in pyproject.toml
name its database: --db URL, $TREADLE_URL, or `db` in pyproject.toml"""
CORRECT_IT = """cd to the folder of your app, or correct the path: sqlite:///jobs.db is relative to the working\
 directory, sqlite:////srv/jobs.db is absolute"""
CREATES_IT = "     (creates it, as `treadle worker` and `treadle enqueue` do)"
IN_DJANGO = "in a Django project: python manage.py treadle_worker, and python manage.py treadle … for other commands"


def configured(key: str) -> str | None:
    """What `[tool.treadle]` in ./pyproject.toml says."""
    path = Path("pyproject.toml")
    try:
        tool = tomllib.loads(path.read_text("utf-8")).get("tool", {})
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        what = f"{path.absolute()} cannot be read: {error}"
        raise CommandError(what, "treadle looks there for [tool.treadle].") from None
    value = tool.get("treadle", {}).get(key)
    if value is not None and not isinstance(value, str):
        raise CommandError(f"{path.absolute()}: [tool.treadle] {key} is {value!r}", "It must be a string.")
    return value


def named_app(shared: Shared) -> Treadle:
    """What the command line names, else the environment, else pyproject.toml, else a file here. In each of them a URL
    wins over an app: with a URL, none of the user's code is imported."""
    url, name = shared.db, shared.app
    if not (url or name):
        url, name = os.environ.get(URL_VARIABLE), os.environ.get(APP_VARIABLE)
    if not (url or name):
        url, name = configured("db"), configured("app")
    return load_app(shared, name) if name and not url else Treadle(database_url(url or DEFAULT_URL))


def database(shared: Shared, *, create: bool = False) -> Treadle:
    """The database that is named. Only commands that store something may create it."""
    app = named_app(shared)
    if not create:
        must_be_ready(shared, app.store)
    app.store.open()
    app.redactor = published_redactor(app)
    return app


def published_redactor(app: Treadle) -> Redactor:
    """The redactor of the app, if it has any code, and of those whose workers use this database, without theirs."""
    own = [app.redactor.published] if app.registry.types else []
    return merged([*own, *(policy.redact for policy in app.store.policies().values())])


def must_be_ready(shared: Shared, store: Store) -> None:
    """A command that only reads neither creates nor upgrades a database."""
    found, newest = store.schema(), store.newest_schema()
    upgrade = f"treadle db upgrade --db {url_to_show(store)}"
    if found is None:
        what, cause, next = f"there is no database at {store.where}", *_where_else(store, upgrade)
    elif found < newest:
        lacks = f"has schema {found}, and this treadle needs {newest}" if found else "has no treadle tables"
        what, cause, next = f"{store.where} {lacks}", "", upgrade
    else:
        return
    if program().upgrade and not shared.db:  # this program knows its database
        cause, next = "", program().upgrade
    raise CommandError(what, cause, next=next, code=DATABASE)


def _where_else(store: Store, upgrade: str) -> tuple[str, str]:
    """Most likely a missing database is looked for in the wrong place. So creating it is the last way out."""
    if store.where != open_store(DEFAULT_URL).where:
        return "", f"{CORRECT_IT}\n{upgrade}{CREATES_IT}"
    return NO_DATABASE, IN_DJANGO if Path("manage.py").is_file() else f"{NAME_IT}\n{upgrade}{CREATES_IT}"


def url_to_show(store: Store) -> str:
    """A URL to copy, without its password."""
    return store.where if "://" in store.where else store.url


def app_name(shared: Shared) -> str:
    """The app named by APP, else by --app, else in $TREADLE_APP, else in pyproject.toml."""
    name = shared.target or shared.app or os.environ.get(APP_VARIABLE) or configured("app")
    if name:
        return name
    here = Path.cwd() / "pyproject.toml"
    tried = f"Tried the command line, ${APP_VARIABLE}, and `app` under [tool.treadle] in {here}."
    raise CommandError("name an app", tried, next="treadle worker app:td     (for `td = Treadle()` in app.py)")


def load_app(shared: Shared, name: str) -> Treadle:
    """Import the user's app. If it names no database, it gets the one named for this call."""
    module_name, _, attribute = name.partition(":")
    if (url := shared.db or os.environ.get(URL_VARIABLE) or configured("db")) is not None:
        os.environ[URL_VARIABLE] = database_url(url)
    app = _app_in(_module(module_name, name), attribute)
    if shared.db is not None and app.store.where != (named := open_store(database_url(shared.db)).where):
        what = f"{name} keeps its jobs in {app.store.where}, not in {named}"
        cause = "The app names its database, and --db cannot change that."
        raise CommandError(what, cause, next="leave --db out, or write `td = Treadle()` without a URL")
    return app


def _module(module_name: str, name: str) -> ModuleType:
    if module_name.endswith(".py") or "/" in module_name:
        module = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise CommandError(f"{name} names a file", "An app is named by its module.", next=f"try {module}:td")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except TreadleError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise _not_found(missing, name) from None
        raise _broken(module_name, error) from None


def _not_found(missing: str, name: str) -> CommandError:
    places = [Path(place or ".").absolute() for place in sys.path]
    tried = [str(place / missing.replace(".", "/")) + ".py" for place in places if place.is_dir()]
    what, cause = f"cannot import {name}: there is no module {missing!r}", ["Tried, in this order:", *tried]
    return CommandError(what, "\n  ".join(cause), next="cd to the folder that holds it, or put that on $PYTHONPATH")


def _broken(module_name: str, error: BaseException) -> CommandError:
    """The user's module raised: show the traceback, from the first line of their code on."""
    trace = error.__traceback__
    while trace and ("importlib" in trace.tb_frame.f_code.co_filename or trace.tb_frame.f_globals is globals()):
        trace = trace.tb_next
    lines = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    next = IN_DJANGO if type(error).__module__ == "django.core.exceptions" else ""
    return CommandError(f"cannot import {module_name}: it raised {type(error).__name__}", lines, next=next)


def _app_in(module: ModuleType, attribute: str) -> Treadle:
    """The app of that name; without a name, the only one in the module."""
    apps = {name: value for name, value in vars(module).items() if isinstance(value, Treadle)}
    found: Any = None
    if attribute:
        try:
            found = attrgetter(attribute)(module)
            what = f"{module.__name__}:{attribute} is a {type(found).__name__}, not a Treadle"
        except AttributeError:
            what = f"{module.__name__} has no {attribute!r}"
    else:
        what = f"{module.__name__} has {'more than one' if apps else 'no'} Treadle"
        found = next(iter(apps.values())) if len({id(app) for app in apps.values()}) == 1 else None
    return found if isinstance(found, Treadle) else _not_an_app(module, what, list(apps))


def _not_an_app(module: ModuleType, what: str, apps: Sequence[str]) -> NoReturn:
    if apps:
        raise CommandError(what, f"It has: {', '.join(apps)}.", next=f"try {module.__name__}:{apps[0]}")
    file = click.format_filename(module.__file__ or "?")
    raise CommandError(what, f"{file} defines none at its top level: td = Treadle().")
