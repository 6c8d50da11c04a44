"""`ctx.complete(result, connection=…)` with every kind of connection: the completion commits with the user's rows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from contextlib import AsyncExitStack, asynccontextmanager, closing

import aiosqlite
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tests.eventually import eventually
from tests.user_connections.kinds import KINDS, aclosing, async_scoped, done, of, run_of
from tests.user_connections.test_drivers import every_kind, on_a_loop, orders
from treadle import Context, Dedupe, Limit, Treadle
from treadle.errors import BadConnection, LeaseLost, TransactionOver
from treadle.job import Status
from treadle.testing import adrain

pytestmark = pytest.mark.filterwarnings("ignore::treadle.errors.BlocksTheLoop")  # nothing else runs when they look
some_kinds = pytest.mark.parametrize("kind", ["psycopg", "psycopg2", "Django", "asyncpg", "AsyncSession, psycopg"])
ORDER = "INSERT INTO orders VALUES (1, 'theirs')"


@pytest.fixture
def td(jobs_url):
    app = Treadle(jobs_url)
    yield app
    app.close()


def declare(td, opened, end):
    """A type whose handler writes an order and completes with it, as `end` says."""

    @td.job
    def notify(order: int) -> None: ...

    @td.job(limits=[Limit("carrier", concurrency=5, per="tenant")], max_attempts=2)
    async def ship(ctx: Context, order: int) -> None:
        async with opened() as user:
            await user.execute(ORDER)
            notify.using(dedupe=Dedupe("n"), delay=60).enqueue(order)
            td.signal(f"shipped:{order}", {"by": "ann"})
            ctx.log("shipped %d", order)
            await end(ctx, user)

    return ship


async def commit(ctx, user):
    await ctx.acomplete({"order": 1}, connection=user.connection)
    assert ctx._run.store.get(ctx.id).status is Status.PROCESSING
    await done(user.commit())


async def roll_back(ctx, user):
    await ctx.acomplete({"order": 1}, connection=user.connection)
    await done(user.rollback())


async def fail_after_the_commit(ctx, user):
    await commit(ctx, user)
    raise ZeroDivisionError


async def complete_twice(ctx, user):
    await ctx.acomplete(connection=user.connection)
    with pytest.raises(TransactionOver, match="completed already"):
        await ctx.acomplete(connection=user.connection)
    with pytest.raises(TransactionOver), ctx.transaction():
        pass
    await done(user.commit())


async def forget_to_await(ctx, user):
    ctx.acomplete({"order": 1}, connection=user.connection)
    await done(user.commit())


async def forget_the_name(ctx, user):
    with pytest.raises(
        BadConnection, match=r"passed as the result; name it: await ctx\.acomplete\(result, connection=…\)"
    ):
        await ctx.acomplete(user.connection)
    with pytest.raises(BadConnection, match=r"without its name; name it: ctx\.complete\(result, connection=…\)"):
        ctx.complete({"order": 1}, user.connection)
    await commit(ctx, user)


async def lose_the_lease(ctx, user):
    ctx._run.store.complete([ctx.id])
    with pytest.raises(LeaseLost):
        await ctx.acomplete({"order": 1}, connection=user.connection)
    with contextlib.suppress(Exception):  # most drivers do not say that the server has rolled back
        await done(user.commit())


async def run(td, kind, jobs_url, end):
    ship = declare(td, lambda: KINDS[kind](jobs_url), end)
    async with td.batch("b") as batch:
        request = batch.add(ship.using(dedupe="s").request(1))
    report = await adrain(td, raising=False)
    return td.get(request.id), report


@every_kind
@on_a_loop
async def test_the_completion_commits_with_the_users_rows_and_the_follow_ups(kind, td, jobs_url):
    job, report = await run(td, kind, jobs_url, commit)

    assert (Status.COMPLETED, {"order": 1}, 1) == (job.status, job.result, report.completed)
    assert [(1, "theirs")] == orders(jobs_url)
    assert ["notify"] == [other.type for other in td.jobs(status="pending")]
    assert {"by": "ann"} == td.signal("shipped:1", {"by": "bob"}).value
    assert ["shipped 1"] == [line.message for line in td.logs(job.id)]
    assert 1.0 == td.batches.get("b").progress


@some_kinds
@on_a_loop
async def test_a_transaction_that_was_rolled_back_is_a_failed_attempt(kind, td, jobs_url):
    job, _ = await run(td, kind, jobs_url, roll_back)

    assert (Status.PENDING, 1, []) == (job.status, job.attempts, orders(jobs_url))
    problem = (
        "its transaction did not commit; after ctx.complete(…, connection=…), commit it before the handler returns"
    )
    assert [problem] == [attempt.error for attempt in td.attempts(job.id)]
    assert ["ship"] == [other.type for other in td.jobs()]


@some_kinds
@on_a_loop
async def test_a_lost_lease_leaves_nothing_to_commit(kind, td, jobs_url):
    job, _ = await run(td, kind, jobs_url, lose_the_lease)

    assert (Status.COMPLETED, None, []) == (job.status, job.result, orders(jobs_url))


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg"])
@on_a_loop
async def test_an_error_after_the_commit_changes_nothing(kind, td, jobs_url, caplog):
    with caplog.at_level(logging.WARNING, "treadle"):
        job, _ = await run(td, kind, jobs_url, fail_after_the_commit)

    assert (Status.COMPLETED, []) == (job.status, td.attempts(job.id))
    warned = [f"job {job.id} raised after its transaction had completed it: ZeroDivisionError"]
    assert warned == [record.getMessage() for record in caplog.records]


@some_kinds
@on_a_loop
async def test_a_completion_that_is_not_awaited_fails_the_job(kind, td, jobs_url, recwarn):
    job, _ = await run(td, kind, jobs_url, forget_to_await)

    assert (Status.FAILED, 1) == (job.status, job.attempts)
    assert "ctx.acomplete() was not awaited, so that nothing has completed the job" in job.error
    assert [] == [warning for warning in recwarn if "never awaited" in str(warning.message)]


@every_kind
@on_a_loop
async def test_a_connection_without_its_name_is_refused(kind, td, jobs_url):
    job, _ = await run(td, kind, jobs_url, forget_the_name)

    assert (Status.COMPLETED, {"order": 1}) == (job.status, job.result)


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg"])
@on_a_loop
async def test_a_job_completes_once(kind, td, jobs_url):
    job, _ = await run(td, kind, jobs_url, complete_twice)

    assert Status.COMPLETED is job.status


@on_a_loop
async def test_the_job_waits_for_a_transaction_that_is_open_after_its_handler(td, jobs_url, caplog, monkeypatch):
    """It holds up no other job, and is logged once."""
    monkeypatch.setattr("treadle.worker.settler.PAUSE", 0.01)
    looks = count_calls(monkeypatch, td.store, "settle")

    @td.job
    def other() -> None: ...

    async with AsyncExitStack() as stack:
        user = await stack.enter_async_context(KINDS["psycopg"](jobs_url))

        async def leave_open(ctx, _):
            ctx.complete("late", connection=user.connection)

        ship = declare(td, lambda: KINDS["psycopg"](jobs_url), leave_open)
        async with td.worker():
            late, quick = await ship.aenqueue(1), await other.aenqueue()
            await td.aresult(quick.id)
            await asyncio.to_thread(eventually, lambda: looks() > 5)
            assert Status.PROCESSING is td.get(late.id).status
            user.connection.commit()
            assert "late" == await td.aresult(late.id)
        assert [] == td.attempts(late.id)
    problem = "the transaction that was passed to ctx.complete() is still open; commit it or close it"
    assert [f"job {late.id} (ship): {problem}"] == [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]


def count_calls(monkeypatch, of, name):
    """A function that returns how often this method was called."""
    method, calls = getattr(of, name), []
    monkeypatch.setattr(of, name, lambda *args: calls.append(args) or method(*args))
    return lambda: len(calls)


# SQLite


@asynccontextmanager
async def with_sqlite3(path):
    with closing(sqlite3.connect(path)) as connection:
        yield of(connection, connection.execute)


def with_sync(holder):
    @asynccontextmanager
    async def with_it(path):
        engine = sqlalchemy.create_engine(f"sqlite:///{path}")
        with closing(holder(engine)) as connection:
            yield of(connection, run_of(connection))
        engine.dispose()

    return with_it


def with_async(holder):
    @asynccontextmanager
    async def with_it(path):
        engine = sqlalchemy_asyncio.create_async_engine(f"sqlite+aiosqlite:///{path}")
        connection = await done(holder(engine))
        async with aclosing(engine.dispose), aclosing(connection.close):
            yield of(connection, run_of(connection))

    return with_it


@asynccontextmanager
async def with_aiosqlite(path):
    async with aiosqlite.connect(path) as connection:
        yield of(connection, connection.execute)


SQLITE_KINDS = {
    "sqlite3": with_sqlite3,
    "Session": with_sync(orm.Session),
    "aiosqlite": with_aiosqlite,
    "AsyncConnection": with_async(lambda engine: engine.connect().start()),
    "AsyncSession": with_async(sqlalchemy_asyncio.AsyncSession),
    "async_scoped_session": with_async(async_scoped),
}
on_every_sqlite_kind = pytest.mark.parametrize("kind", SQLITE_KINDS)


@pytest.fixture
def path(tmp_path):
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    return tmp_path / "jobs.db"


@pytest.fixture
def lite(path):
    app = Treadle(f"sqlite+aiosqlite:///{path}")
    yield app
    app.close()


def orders_in(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM orders").fetchall()


@on_every_sqlite_kind
@pytest.mark.parametrize(
    ("end", "status", "written"),
    [(commit, Status.COMPLETED, [(1, "theirs")]), (roll_back, Status.PENDING, []), (lose_the_lease, None, [])],
)
@on_a_loop
async def test_a_job_on_sqlite_ends_with_the_users_transaction(kind, end, status, written, lite, path):
    if end is lose_the_lease:  # the writer is the user's, so the lease goes before

        async def end(ctx, user):
            await done(user.rollback())
            ctx._run.store.complete([ctx.id])
            await user.execute(ORDER)
            with pytest.raises(LeaseLost):
                await ctx.acomplete(connection=user.connection)
            await done(user.commit())

    job = await declare(lite, lambda: SQLITE_KINDS[kind](path), end).aenqueue(1)
    await adrain(lite, raising=False)

    assert (status or Status.COMPLETED, written) == (lite.get(job.id).status, orders_in(path))


@on_every_sqlite_kind
@on_a_loop
async def test_a_job_on_sqlite_is_enqueued_in_the_users_transaction(kind, lite, path):
    @lite.job
    def ship(order: int) -> None: ...

    async with SQLITE_KINDS[kind](path) as user:
        await user.execute(ORDER)
        kept = await ship.using(connection=user.connection).aenqueue(1)
        await done(user.commit())
        dropped = await ship.using(connection=user.connection).aenqueue(2)
        await done(user.rollback())

    assert (kept.id, None) == (lite.get(kept.id).id, lite.get(dropped.id))
    assert [(1, "theirs")] == orders_in(path)


@on_a_loop
async def test_an_async_session_is_refused_where_nothing_is_awaited(lite, path):
    @lite.job
    def ship(order: int) -> None: ...

    async with SQLITE_KINDS["AsyncSession"](path) as user:
        with pytest.raises(BadConnection, match="it is async; await aenqueue"):
            ship.using(connection=user.connection).enqueue(1)


def test_an_engine_is_refused_with_the_fix_on_sqlite(lite, path):
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    for wrong in (engine, orm.sessionmaker(engine)):
        with pytest.raises(BadConnection, match="pass the Session, or the `conn` of `with engine"):
            lite.enqueue("ship", {"order": 1}, connection=wrong)
    engine.dispose()


def test_an_async_engine_is_refused_with_the_fix_on_sqlite(lite, path):
    engine = sqlalchemy_asyncio.create_async_engine(f"sqlite+aiosqlite:///{path}")
    way_out = "pass the AsyncSession, or the `conn` of `async with engine.*await aenqueue"
    for wrong in (engine, sqlalchemy_asyncio.async_sessionmaker(engine)):
        with pytest.raises(BadConnection, match=way_out):
            lite.enqueue("ship", {"order": 1}, connection=wrong)
        with pytest.raises(BadConnection, match=way_out):
            asyncio.run(lite.aenqueue("ship", {"order": 1}, connection=wrong))
