"""Every kind of connection that a user may pass, and how to use it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import django
import psycopg
import psycopg2
import psycopg2.extras
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from django.utils.connection import ConnectionProxy
from psycopg.rows import dict_row
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from treadle.stores.user_connections import is_async, run_on_async, wrap

os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # all tests run on an event loop
if not settings.configured:
    settings.configure(DATABASES={}, USE_TZ=True)
    django.setup()


@dataclass
class User:
    """A user with a transaction. For async kinds, the calls return awaitables."""

    connection: Any
    run: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    close: Callable[[], Any]

    async def execute(self, sql: str) -> None:
        await done(self.run(sql))

    async def work(self, work: Callable[[Any], Any]) -> Any:
        """Run `work` in the transaction, as `enqueue` and `aenqueue` do."""
        if is_async(self.connection):
            return await run_on_async(self.connection, work)
        return work(wrap(self.connection))


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def of(connection: Any, run: Callable[[str], Any]) -> User:
    return User(connection, run, connection.commit, connection.rollback, connection.close)


@asynccontextmanager
async def aclosing(close: Callable[[], Any]) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await close()


# psycopg


@asynccontextmanager
async def with_psycopg(url, **options):
    with contextlib.closing(psycopg.connect(url, **options)) as connection:
        yield of(connection, lambda sql: psycopg.Cursor(connection).execute(sql))


@asynccontextmanager
async def with_psycopg_dicts(url, **options):
    """Rows are dicts, and the cursors do not support `%(name)s`."""
    async with with_psycopg(url, row_factory=dict_row, cursor_factory=psycopg.RawCursor, **options) as user:
        yield user


@asynccontextmanager
async def with_psycopg_async(url, **options):
    connection = await psycopg.AsyncConnection.connect(url, row_factory=dict_row, **options)
    async with aclosing(connection.close):
        yield of(connection, connection.execute)


@asynccontextmanager
async def with_psycopg2(url, autocommit=False, **options):
    with contextlib.closing(psycopg2.connect(url, **options)) as connection:
        connection.autocommit = autocommit
        yield of(connection, lambda sql: connection.cursor().execute(sql))


@asynccontextmanager
async def with_psycopg2_dicts(url, **options):
    async with with_psycopg2(url, cursor_factory=psycopg2.extras.RealDictCursor, **options) as user:
        yield user


# asyncpg


def of_asyncpg(connection, close, autocommit):
    """asyncpg has no transaction unless you begin one."""
    theirs = connection.transaction()
    begun = []

    async def run(sql):
        if not autocommit and not begun:
            begun.append(await theirs.start())
        await connection.execute(sql)

    return User(connection, run, theirs.commit, theirs.rollback, close)


@asynccontextmanager
async def with_asyncpg(url, autocommit=False):
    connection = await asyncpg.connect(url)
    async with aclosing(connection.close):
        yield of_asyncpg(connection, connection.close, autocommit)


@asynccontextmanager
async def with_asyncpg_pool(url, autocommit=False):
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        connection = await pool.acquire()
        release = functools.partial(pool.release, connection)
        async with aclosing(release):
            yield of_asyncpg(connection, release, autocommit)


# SQLAlchemy


def engine_url(url, driver):
    return url.replace("postgresql:", f"postgresql+{driver}:")


def level(autocommit):
    return {"isolation_level": "AUTOCOMMIT"} if autocommit else {}


def run_of(connection):
    """Run a statement without streaming, even on a connection that streams by default."""
    whole = {"stream_results": False, "yield_per": None}
    return lambda sql: connection.execute(sqlalchemy.text(sql), execution_options=whole)


def with_sqlalchemy(driver, holder):
    @asynccontextmanager
    async def with_it(url, autocommit=False):
        engine = sqlalchemy.create_engine(engine_url(url, driver), **level(autocommit))
        with ExitStack() as stack:
            connection = holder(engine)
            stack.callback(engine.dispose)
            stack.callback(connection.close)
            yield of(connection, run_of(connection))

    return with_it


def streaming(engine):
    return engine.connect().execution_options(stream_results=True, yield_per=10)


def scoped(engine):
    return orm.scoped_session(orm.sessionmaker(engine))


def with_sqlalchemy_async(driver, holder):
    @asynccontextmanager
    async def with_it(url, autocommit=False):
        engine = sqlalchemy_asyncio.create_async_engine(engine_url(url, driver), **level(autocommit))
        connection = await done(holder(engine))
        async with aclosing(engine.dispose), aclosing(connection.close):
            yield of(connection, run_of(connection))

    return with_it


def async_connection(engine):
    return engine.connect().start()


def async_scoped(engine):
    return sqlalchemy_asyncio.async_scoped_session(
        sqlalchemy_asyncio.async_sessionmaker(engine), scopefunc=asyncio.current_task
    )


# Django


@asynccontextmanager
async def with_django(url, autocommit=False, proxy=False):
    parts = psycopg.conninfo.conninfo_to_dict(url)
    alias = parts["dbname"]
    connections.settings[alias] = {
        "ENGINE": "django.db.backends.postgresql", "NAME": alias, "USER": parts["user"], "PASSWORD": "",
        "HOST": parts["host"], "PORT": parts["port"], "OPTIONS": {}, "TIME_ZONE": None, "ATOMIC_REQUESTS": False,
        "AUTOCOMMIT": True, "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False, "TEST": {},
    }  # fmt: skip
    connection = connections[alias]
    atomic = transaction.atomic(using=alias)
    if not autocommit:
        atomic.__enter__()

    def run(sql):
        with connection.cursor() as cursor:
            cursor.execute(sql)

    def rollback():
        transaction.set_rollback(True, using=alias)
        atomic.__exit__(None, None, None)

    shown = ConnectionProxy(connections, alias) if proxy else connection
    with ExitStack() as stack:
        stack.callback(connection.close)
        yield User(shown, run, lambda: atomic.__exit__(None, None, None), rollback, connection.close)


@asynccontextmanager
async def with_django_proxy(url, autocommit=False):
    """Like `django.db.connection`, which is a proxy."""
    async with with_django(url, autocommit, proxy=True) as user:
        yield user


KINDS = {
    "psycopg": with_psycopg,
    "psycopg, dicts": with_psycopg_dicts,
    "psycopg2": with_psycopg2,
    "psycopg2, dicts": with_psycopg2_dicts,
    "Connection, psycopg": with_sqlalchemy("psycopg", sqlalchemy.Engine.connect),
    "Connection, psycopg2": with_sqlalchemy("psycopg2", sqlalchemy.Engine.connect),
    "Connection, psycopg, streaming": with_sqlalchemy("psycopg", streaming),
    "Connection, psycopg2, streaming": with_sqlalchemy("psycopg2", streaming),
    "Session, psycopg": with_sqlalchemy("psycopg", orm.Session),
    "Session, psycopg2": with_sqlalchemy("psycopg2", orm.Session),
    "scoped_session, psycopg": with_sqlalchemy("psycopg", scoped),
    "Django": with_django,
    "Django, proxy": with_django_proxy,
    "async psycopg": with_psycopg_async,
    "asyncpg": with_asyncpg,
    "asyncpg, pool": with_asyncpg_pool,
    "AsyncConnection, psycopg": with_sqlalchemy_async("psycopg", async_connection),
    "AsyncConnection, asyncpg": with_sqlalchemy_async("asyncpg", async_connection),
    "AsyncSession, psycopg": with_sqlalchemy_async("psycopg", sqlalchemy_asyncio.AsyncSession),
    "AsyncSession, asyncpg": with_sqlalchemy_async("asyncpg", sqlalchemy_asyncio.AsyncSession),
    "async_scoped_session, asyncpg": with_sqlalchemy_async("asyncpg", async_scoped),
}
ASYNC = [name for name in KINDS if "async" in name.lower()]
