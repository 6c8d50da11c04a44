"""Claims of an idle worker, on its event loop.

Two threads that wait for each other wake up once more for each claim and once more for each answer, which is a seventh
of the time of a pickup. While handlers run, a thread claims beside them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.waiting import Ready, Wait

from treadle.stores.base import ClaimRequest
from treadle.stores.postgres import at_once, connection, sql
from treadle.stores.postgres.placeholders import numbered
from treadle.stores.postgres.sockets import readable
from treadle.stores.rows import Claim

if TYPE_CHECKING:
    from treadle.stores.postgres.store import PostgresStore

PAUSE = 10.0
"""Seconds after a failure in which threads claim."""


class LoopConnection(AsyncConnection[tuple[Any, ...]]):
    """A connection on which an answer takes no longer than that of a `Connection`."""

    async def execute_prepared(self, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        text, names = numbered(statement)
        values = [parameters[name] for name in names]
        rows = await AsyncRawCursor(self).execute(text, values, prepare=True, binary=True)
        return await rows.fetchall()

    def __del__(self, *_: Any) -> None:
        """As that of `Connection`."""

    async def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """psycopg's own makes a task, and wakes up every tenth of a second."""
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send(await self._ready(wanted))
        except StopIteration as end:
            return end.value

    async def _ready(self, wanted: Wait) -> Ready:
        loop, socket, limit = asyncio.get_running_loop(), self.pgconn.socket, connection.ANSWER_SECONDS
        answer: asyncio.Future[Ready] = loop.create_future()

        def ready(state: Ready) -> None:
            if not answer.done():
                answer.set_result(state)

        timer = loop.call_later(limit, ready, Ready.NONE)
        if wanted & Wait.R:
            loop.add_reader(socket, ready, Ready.R)
        if wanted & Wait.W:
            loop.add_writer(socket, ready, Ready.W)
        try:
            state = await answer
        finally:
            timer.cancel()
            loop.remove_reader(socket)
            loop.remove_writer(socket)
        if state is Ready.NONE:
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no answer within {limit:g} s")
        return state


class LoopClaims:
    """One worker's. What has arrived is matched by its `thread`."""

    def __init__(self, store: PostgresStore, thread: Executor) -> None:
        self._store, self._thread = store, thread
        self._connection: LoopConnection | None = None
        self._not_before = 0.0

    async def claim(self, worker: str, request: ClaimRequest) -> Claim | None:
        """`store.claim`; or None, and nothing has happened: a thread has to do it."""
        database = self._store.database
        if not at_once.may_claim(database, request) or (session := await self._connected()) is None:
            return None
        statement, parameters = database.at_this_moment(*at_once.claim_statement(database, worker, request))
        try:
            with database.committing(session):
                found = await session.execute_prepared(statement, parameters)
        except psycopg.Error:  # rolled back: the thread finds out what is wrong
            self.close()
            return None
        except BaseException:
            self.close()
            raise
        claimed = at_once.read_claim(database, request, found)
        if claimed is not None and claimed.arrived:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._store.claim_more, worker, request, claimed)
        return claimed

    async def _connected(self) -> LoopConnection | None:
        """A connection that has not ended, as far as is known. None behind a pooler, whose sessions have not our
        settings."""
        if self._connection is not None:
            if not readable((self._connection.fileno(),), 0):
                return self._connection
            self.close()
        if time.monotonic() < self._not_before:
            return None
        self._not_before = time.monotonic() + PAUSE
        try:
            self._connection = found = await LoopConnection.connect(self._store.database.conninfo, autocommit=True)
            ((pid,),) = await found.execute_prepared(sql.BACKEND_PID, {})
            await found.execute_prepared(sql.SET_UP_SESSION, {})
            if pid == found.info.backend_pid:
                return found
            self._not_before = float("inf")
        except psycopg.Error:
            pass  # the thread finds out what is wrong
        self.close()
        return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.pgconn.finish()
            self._connection = None
