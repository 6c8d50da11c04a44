"""A caller that is cancelled while a thread uses its connection."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tests.eventually import eventually
from tests.user_connections.kinds import ASYNC, KINDS, done
from tests.user_connections.test_drivers import INSERT, on_a_loop, orders
from treadle.stores.user_connections import run_on_async, savepoint

KEPT_TO_A_TASK = "async_scoped_session, asyncpg"
"""Each task has its own session."""
LENT = [name for name in ASYNC if name != KEPT_TO_A_TASK]
NATIVE = ["async psycopg", "asyncpg", "asyncpg, pool"]


class Slow:
    """Work that writes a row and then waits for a lock. It runs in another thread, so that a test can wait for it."""

    def __init__(self) -> None:
        self.writing, self.ended = asyncio.Event(), False
        self._loop = asyncio.get_running_loop()

    def __call__(self, connection):
        try:
            with savepoint(connection):
                connection.execute(INSERT, {"id": 2, "note": "ours"})
                self._loop.call_soon_threadsafe(self.writing.set)
                connection.execute("SELECT pg_advisory_xact_lock(1)", {})
        finally:
            self.ended = True


@pytest.fixture
def locked(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(1)")
        yield


def wait_for_the_lock(url):
    """Until the statement waits for the lock: there is no event for that."""
    with psycopg.connect(url, autocommit=True) as connection:
        eventually(lambda: connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone())


async def cancel_within(user, url):
    slow = Slow()
    task = asyncio.create_task(run_on_async(user.connection, slow))
    await slow.writing.wait()
    await asyncio.to_thread(wait_for_the_lock, url)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slow.ended


@pytest.mark.parametrize("kind", NATIVE)
@on_a_loop
async def test_a_cancelled_call_leaves_nothing_and_the_transaction_stays_usable(kind, postgres_url, locked):
    async with KINDS[kind](postgres_url) as user:
        await user.execute("INSERT INTO orders VALUES (1, 'theirs')")
        await cancel_within(user, postgres_url)
        await user.execute("INSERT INTO orders VALUES (3, 'theirs')")
        await done(user.commit())

    assert [(1, "theirs"), (3, "theirs")] == orders(postgres_url)


@pytest.mark.parametrize("kind", [name for name in LENT if name not in NATIVE])
@on_a_loop
async def test_sqlalchemy_discards_a_connection_whose_statement_was_cancelled(kind, postgres_url, locked):
    """SQLAlchemy does the same for the user's own statements."""
    async with KINDS[kind](postgres_url) as user:
        await user.execute("INSERT INTO orders VALUES (1, 'theirs')")
        await cancel_within(user, postgres_url)
        await done(user.rollback())
        await user.execute("INSERT INTO orders VALUES (3, 'theirs')")
        await done(user.commit())

    assert [(3, "theirs")] == orders(postgres_url)


@pytest.mark.parametrize("kind", LENT)
@on_a_loop
async def test_after_a_cancel_the_next_statement_is_not_sent(kind, postgres_url):
    """The thread is between two statements when the caller is cancelled."""
    loop, between, cancelled = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def work(connection):
        with savepoint(connection):
            connection.execute(INSERT, {"id": 2, "note": "ours"})
            loop.call_soon_threadsafe(between.set)
            asyncio.run_coroutine_threadsafe(cancelled.wait(), loop).result()

    async with KINDS[kind](postgres_url) as user:
        await user.execute("INSERT INTO orders VALUES (1, 'theirs')")
        task = asyncio.create_task(run_on_async(user.connection, work))
        await between.wait()
        task.cancel()
        loop.call_later(0.05, cancelled.set)
        task_again = loop.call_later(0.01, task.cancel)  # and again, while it waits for the thread
        with pytest.raises(asyncio.CancelledError):
            await task
        task_again.cancel()
        await user.execute("INSERT INTO orders VALUES (3, 'theirs')")
        await done(user.commit())

    assert [(1, "theirs"), (3, "theirs")] == orders(postgres_url)
