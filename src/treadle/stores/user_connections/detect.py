"""Which kind of connection a user has passed, and how it is borrowed."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from treadle.errors import BadConnection
from treadle.stores.user_connections import async_drivers, sync_drivers
from treadle.stores.user_connections.base import Borrowed, Driver

T = TypeVar("T")
D = TypeVar("D")

DIRECT: dict[tuple[str, str], type[Driver]] = {
    ("psycopg", "Connection"): sync_drivers.Psycopg,
    ("psycopg2.extensions", "connection"): sync_drivers.Psycopg2,
    ("sqlalchemy", "Connection"): sync_drivers.SQLAlchemy,
    ("sqlalchemy.orm", "Session"): sync_drivers.SQLAlchemy,
    ("sqlalchemy.orm", "scoped_session"): sync_drivers.SQLAlchemy,
    ("django.db.backends.base.base", "BaseDatabaseWrapper"): sync_drivers.Django,
    ("django.utils.connection", "ConnectionProxy"): sync_drivers.Django,
}
LOOPED: dict[tuple[str, str], type[async_drivers.Looped]] = {
    ("psycopg", "AsyncConnection"): async_drivers.AsyncPsycopg,
    ("asyncpg", "Connection"): async_drivers.Asyncpg,  # also says yes to one that is from a pool
    ("sqlalchemy.ext.asyncio", "AsyncConnection"): async_drivers.AsyncSQLAlchemy,
    ("sqlalchemy.ext.asyncio", "AsyncSession"): async_drivers.AsyncSQLAlchemy,
    ("sqlalchemy.ext.asyncio", "async_scoped_session"): async_drivers.AsyncScopedSession,
}


def is_async(connection: Any) -> bool:
    """Whether its statements have to be awaited."""
    return _kind(connection, LOOPED) is not None


def borrow(connection: Any) -> Borrowed:
    """A connection that blocks. What is borrowed already stays as it is."""
    if isinstance(connection, Driver):
        return connection
    if (kind := _kind(connection, DIRECT)) is not None:
        return kind(connection)
    if is_async(connection):
        raise BadConnection(connection, "it is async", "await …aenqueue(…) with it, or pass one that is not")
    raise _unknown(connection)


def aborrow(connection: Any, loop: asyncio.AbstractEventLoop) -> async_drivers.Looped:
    """A connection that is awaited: to be used in another thread than the loop's, which must be free meanwhile."""
    kind = _kind(connection, LOOPED)
    if kind is None:
        raise _unknown(connection)
    return kind(connection, loop)


async def lend(connection: Any, work: Callable[[Borrowed], T]) -> T:
    """Let sync code work on an async connection: it runs in a thread, its statements on this loop.

    When the caller is cancelled, the thread is not left behind: its next statement would come after the user's
    rollback, and into whatever they do next. It is stopped, undoes what it did, and only then the caller goes on.
    """
    borrowed = aborrow(connection, asyncio.get_running_loop())
    thread = asyncio.create_task(asyncio.to_thread(work, borrowed))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        borrowed.stop()
        while not thread.done():
            with suppress(asyncio.CancelledError):  # impatience changes nothing: the connection is in use
                await asyncio.wait({thread})
        if not thread.cancelled():
            thread.exception()  # or asyncio complains that nobody has looked
        raise


def unwrap(connection: Any) -> Any:
    """The sqlite3 connection inside one of SQLAlchemy's or Django's, with their transaction begun.

    What holds none is given back as it is.
    """
    kind = _kind(connection, DIRECT)
    if kind is sync_drivers.SQLAlchemy:
        return _sqlite_of_sqlalchemy(connection)
    if kind is sync_drivers.Django and getattr(connection, "vendor", None) == "sqlite":
        return _sqlite_of_django(connection)
    return connection


def _sqlite_of_sqlalchemy(connection: Any) -> Any:
    try:
        inner = sync_drivers.connection_of(connection)
        if inner.dialect.name != "sqlite":
            return connection
        if not inner.in_transaction():
            inner.begin()  # else its commit() would find nothing to commit
        return inner.connection.dbapi_connection
    except sys.modules["sqlalchemy.exc"].InvalidRequestError as error:
        raise sync_drivers.unusable(connection, error) from error


def _sqlite_of_django(connection: Any) -> Any:
    if connection.get_autocommit() and not connection.in_atomic_block:
        raise BadConnection(connection, "no transaction is open on it", sync_drivers.Django.begin)
    return connection.connection


def _kind(connection: Any, kinds: dict[tuple[str, str], D]) -> D | None:
    for (module, name), kind in kinds.items():
        if isinstance(connection, getattr(sys.modules.get(module), name, ())):
            return kind
    return None


def _unknown(connection: Any) -> BadConnection:
    way_out = "pass one of psycopg, psycopg2, asyncpg, SQLAlchemy (or its Session) or Django"
    if re.search(r"Pool|[Ee]ngine|session_?maker", type(connection).__name__):
        way_out = "pass a connection of it, the one that your transaction is on"
    return BadConnection(connection, "it is no connection that treadle knows", way_out)
