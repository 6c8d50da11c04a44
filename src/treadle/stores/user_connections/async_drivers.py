"""Connections that belong to an event loop, for a synchronous store that runs in a thread."""

from __future__ import annotations

import asyncio
import sys
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from treadle.stores.user_connections.drivers import (
    CLOSED,
    RELEASE,
    ROLLBACK,
    SAVEPOINT,
    Driver,
    Rows,
    in_pipeline,
    numbered,
    run_sqlalchemy,
    sqlalchemy_errors,
)


class AsyncDriver(Driver):
    """Its statements are sent from the loop, while the store's thread waits for them."""

    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(connection)
        self._loop = loop
        self._stopped = False
        self._task: asyncio.Task[Any] | None = None

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        return asyncio.run_coroutine_threadsafe(self._unless_stopped(sql, parameters), self._loop).result()

    async def _unless_stopped(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        if self._stopped and sql not in ROLLBACK:
            raise asyncio.CancelledError
        # These take no time, and one that is cut off leaves a transaction that cannot be undone to a savepoint.
        if sql in (SAVEPOINT, RELEASE, *ROLLBACK):
            return await self.arun(sql, parameters)
        self._task = asyncio.current_task()
        try:
            return await self.arun(sql, parameters)
        finally:
            self._task = None

    def stop(self) -> None:
        """Cancel the statement that runs, and allow no other but those that undo. To be called on the loop."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    @abstractmethod
    async def arun(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """`run`, on the loop."""


class AsyncPsycopg(AsyncDriver):
    begin = "open one: async with connection.transaction(): …"

    async def arun(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        psycopg = sys.modules["psycopg"]
        async with psycopg.AsyncCursor(self.connection, row_factory=psycopg.rows.tuple_row) as cursor:
            async with self.connection.pipeline() if in_pipeline(self.connection) else nullcontext():
                await cursor.execute(sql, parameters)
            return await cursor.fetchall() if cursor.description else []


class Asyncpg(AsyncDriver):
    begin = "open one: async with connection.transaction(): …"

    def problem(self) -> tuple[str, str] | None:
        try:
            return CLOSED if self.connection.is_closed() else None
        except sys.modules["asyncpg"].InterfaceError:  # it went back to its pool
            return CLOSED

    async def arun(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        sql, names = numbered(sql)
        return [tuple(row) for row in await self.connection.fetch(sql, *(parameters[name] for name in names))]


class AsyncSQLAlchemy(AsyncDriver):
    """An AsyncConnection or AsyncSession, by way of the sync one inside."""

    begin = "it is in AUTOCOMMIT: leave that isolation level to another connection"

    def problem(self) -> tuple[str, str] | None:
        return None  # SQLAlchemy raises its own error, see below

    async def arun(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        with sqlalchemy_errors(self.connection):
            rows: Rows = await self.connection.run_sync(run_sqlalchemy, sql, parameters)
            return rows


class AsyncScopedSession(AsyncSQLAlchemy):
    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(connection.registry(), loop)  # now: in the user's task, which is what scopes usually are
