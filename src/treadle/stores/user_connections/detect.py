"""Which kind of connection a user has passed, and how it is used."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from treadle.errors import BadConnection
from treadle.stores.user_connections import async_drivers, drivers
from treadle.stores.user_connections.drivers import Driver

T = TypeVar("T")
D = TypeVar("D")

ASYNC = "it is async", "await aenqueue(…) or acomplete(…) with it"

SYNC_DRIVERS: dict[tuple[str, str], type[Driver]] = {
    ("psycopg", "Connection"): drivers.Psycopg,
    ("psycopg2.extensions", "connection"): drivers.Psycopg2,
    ("sqlalchemy", "Connection"): drivers.SQLAlchemy,
    ("sqlalchemy.orm", "Session"): drivers.SQLAlchemy,
    ("sqlalchemy.orm", "scoped_session"): drivers.SQLAlchemy,
    ("django.db.backends.base.base", "BaseDatabaseWrapper"): drivers.Django,
    ("django.utils.connection", "ConnectionProxy"): drivers.Django,
}
ASYNC_DRIVERS: dict[tuple[str, str], type[async_drivers.AsyncDriver]] = {
    ("psycopg", "AsyncConnection"): async_drivers.AsyncPsycopg,
    ("asyncpg", "Connection"): async_drivers.Asyncpg,  # also one that comes from a pool
    ("sqlalchemy.ext.asyncio", "AsyncConnection"): async_drivers.AsyncSQLAlchemy,
    ("sqlalchemy.ext.asyncio", "AsyncSession"): async_drivers.AsyncSQLAlchemy,
    ("sqlalchemy.ext.asyncio", "async_scoped_session"): async_drivers.AsyncScopedSession,
}

AWAITED = "and await aenqueue(…) or acomplete(…) with it"
INSTEAD = {
    r"^sqlalchemy\.ext\.asyncio\..*([Ee]ngine|session_?maker)$": (
        f"pass the AsyncSession, or the `conn` of `async with engine.begin() as conn`, {AWAITED}"
    ),
    r"^sqlalchemy\..*(Pool|[Ee]ngine|session_?maker)$": (
        "pass the Session, or the `conn` of `with engine.begin() as conn`"
    ),
    r"^flask_sqlalchemy\..*\.SQLAlchemy$": "pass db.session",
    r"^psycopg_pool\..*\.Async\w*Pool$": (
        f"pass a connection of it: the `conn` of `async with pool.connection() as conn`, {AWAITED}"
    ),
    r"^psycopg_pool\..*Pool$": "pass a connection of it: the `conn` of `with pool.connection() as conn`",
    r"^asyncpg\..*Pool$": (
        f"pass a connection of it: the `conn` of `async with pool.acquire() as conn, conn.transaction()`, {AWAITED}"
    ),
    r"(Pool|[Ee]ngine|session_?maker)\w*$": "pass a connection of it, the one that your transaction is on",
    r"Transaction$": "pass the session or connection that it is on",
    r"^django\..*\.(Atomic|ConnectionHandler)$": 'pass django.db.connection, or connections["…"]',
    r"[Cc]ursor$": "pass its connection",
    r"ContextManager$": "enter it, and pass what it yields: with … as conn",
    r"^builtins\.(async_)?generator$": "pass what it yields; in FastAPI, Depends(…) does that",
    r"^builtins\.coroutine$": "await it, and pass what it returns",
}
"""What to pass instead, by the class of what looks like a connection. The first pattern that fits counts."""


def is_async(connection: Any) -> bool:
    """Whether its statements have to be awaited."""
    return _kind(connection, ASYNC_DRIVERS) is not None or _is_aiosqlite(connection)


def is_connection(value: Any) -> bool:
    """Whether a user may pass it as `connection=`."""
    blocks = isinstance(value, sqlite3.Connection | Driver) or _kind(value, SYNC_DRIVERS) is not None
    return blocks or is_async(value)


def wrap(connection: Any) -> Driver:
    """A connection that blocks. A Driver is returned as it is."""
    if isinstance(connection, Driver):
        return connection
    if (kind := _kind(connection, SYNC_DRIVERS)) is not None:
        return kind(connection)
    if is_async(connection):
        raise BadConnection(connection, *ASYNC)
    raise _unknown(connection)


def async_driver(connection: Any, loop: asyncio.AbstractEventLoop) -> async_drivers.AsyncDriver:
    """A connection that is awaited. Use it outside the loop's thread, which must be free to serve it."""
    kind = _kind(connection, ASYNC_DRIVERS)
    if kind is None:
        raise _unknown(connection)
    return kind(connection, loop)


async def run_on_async(connection: Any, work: Callable[[Any], T]) -> T:
    """Run sync code on an async connection: the code runs in a thread, its statements on this loop. (One of aiosqlite
    has a thread of its own, in which all of it runs.)

    When the caller is cancelled, the thread is not left behind: its next statement would come after the user's
    rollback, and into whatever they do next. It is stopped, undoes what it did, and only then does the caller go on.
    """
    driver = None
    if (lite := await aiosqlite_of(connection)) is not None:
        thread = asyncio.create_task(lite._execute(work, lite._conn))  # it has no public way to its thread
    else:
        driver = async_driver(connection, asyncio.get_running_loop())
        thread = asyncio.create_task(asyncio.to_thread(work, driver))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        if driver is not None:
            driver.stop()
        while not thread.done():
            with suppress(asyncio.CancelledError):  # a second cancel changes nothing: the connection is in use
                await asyncio.wait({thread})
        if not thread.cancelled():
            thread.exception()  # or asyncio warns that it was never retrieved
        raise


async def aiosqlite_of(connection: Any) -> Any:
    """The connection of aiosqlite inside one of SQLAlchemy's, with its transaction begun; None if there is none."""
    if _is_aiosqlite(connection):
        return connection
    kind = _kind(connection, ASYNC_DRIVERS)
    if kind is None or not issubclass(kind, async_drivers.AsyncSQLAlchemy):
        return None
    theirs = connection.registry() if kind is async_drivers.AsyncScopedSession else connection
    with drivers.sqlalchemy_errors(connection):
        found = await theirs.run_sync(_sqlite_of_sqlalchemy)
    return getattr(found, "driver_connection", None)


def unwrap(connection: Any) -> Any:
    """The sqlite3 connection inside one of SQLAlchemy's or Django's, with their transaction begun.

    Any other connection is returned as it is.
    """
    kind = _kind(connection, SYNC_DRIVERS)
    if kind is drivers.SQLAlchemy:
        return _sqlite_of_sqlalchemy(connection)
    if kind is drivers.Django and getattr(connection, "vendor", None) == "sqlite":
        return _sqlite_of_django(connection)
    return connection


def _sqlite_of_sqlalchemy(connection: Any) -> Any:
    with drivers.sqlalchemy_errors(connection):
        inner = drivers.connection_of(connection)
        if inner.dialect.name != "sqlite":
            return connection
        if not inner.in_transaction():
            inner.begin()  # else its commit() would find nothing to commit
        return inner.connection.dbapi_connection


def _sqlite_of_django(connection: Any) -> Any:
    if connection.get_autocommit() and not connection.in_atomic_block:
        raise BadConnection(connection, "no transaction is open on it", drivers.Django.begin)
    return connection.connection


def _is_aiosqlite(connection: Any) -> bool:
    return isinstance(connection, getattr(sys.modules.get("aiosqlite"), "Connection", ()))


def _kind(connection: Any, kinds: dict[tuple[str, str], D]) -> D | None:
    for (module, name), kind in kinds.items():
        if isinstance(connection, getattr(sys.modules.get(module), name, ())):
            return kind
    return None


def way_out_of_factory(connection: Any) -> str | None:
    """What to pass instead of an engine, a pool, a sessionmaker, a transaction, or a context manager."""
    kind = type(connection)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return next((way_out for pattern, way_out in INSTEAD.items() if re.search(pattern, name)), None)


def _unknown(connection: Any) -> BadConnection:
    way_out = "pass one of psycopg, psycopg2, asyncpg, SQLAlchemy (or its Session) or Django"
    way_out = way_out_of_factory(connection) or way_out
    return BadConnection(connection, "treadle does not know this kind of connection", way_out)
