"""`treadle.testing` for an app that is on PostgreSQL."""

from __future__ import annotations

import asyncio
import re

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.user_connections.kinds import aclosing, engine_url
from treadle import Context, Treadle
from treadle.errors import BadConnection, BadOption
from treadle.testing import assert_enqueued, drain, refute_enqueued, temporary

pytest_plugins = ["pytester"]

td = Treadle("postgresql://nobody@nowhere.invalid/production")


@td.job(max_attempts=2, backoff=60)
def send(ctx: Context, to: str) -> None:
    with ctx.transaction() as connection:
        connection.execute("INSERT INTO sent VALUES (%s)", [to])


@pytest.fixture
def url(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE sent (address text NOT NULL)")
    return postgres_url


def test_an_app_is_tested_on_its_own_kind_of_database(url):
    with temporary(td, url=url) as clock, psycopg.connect(url) as connection:
        with connection.transaction():
            send.using(connection=connection, delay=3600).enqueue(to="ada")
        assert_enqueued(td, send, to="ada")
        assert drain(td).ran == 0
        clock.advance(3600)
        assert drain(td).completed == 1
        assert [("ada",)] == connection.execute("SELECT * FROM sent").fetchall()
    assert "nowhere.invalid" in td.store.where


def test_a_connection_to_the_database_of_the_app_names_the_url_that_is_missing(url):
    """The jobs are in a temporary file, where no transaction of PostgreSQL can store them."""
    engine, async_url = sqlalchemy.create_engine(engine_url(url, "psycopg")), engine_url(url, "psycopg_async")

    async def enqueue_async() -> None:
        connection = await psycopg.AsyncConnection.connect(url)
        async with aclosing(connection.close):
            await send.using(connection=connection).aenqueue(to="ada")

    async def enqueue_in_async_session() -> None:
        engine = create_async_engine(async_url)
        async with aclosing(engine.dispose), AsyncSession(engine) as session:
            await send.using(connection=session).aenqueue(to="ada")

    with temporary(td):
        where = re.escape(f"temporary(td) keeps the jobs in {td.store.where}")
        missing = rf"it is open on another kind of database, and {where}; .*url=…"
        with psycopg.connect(url) as connection, pytest.raises(BadConnection, match=missing):
            send.using(connection=connection).enqueue(to="ada")
        with Session(engine) as session, pytest.raises(BadConnection, match=missing):
            td.signal("go", connection=session)
        for enqueue in (enqueue_async, enqueue_in_async_session):
            with pytest.raises(BadConnection, match=missing):
                asyncio.run(enqueue())
    engine.dispose()


def test_each_test_begins_without_jobs(url):
    for _ in range(2):
        with temporary(td, url=url):
            refute_enqueued(td, send)
            assert [] == td.counts()
            send.using(dedupe="once").enqueue(to="ada")
            assert [{"status": "pending", "count": 1}] == td.counts()


def test_a_database_that_may_be_in_use_is_left_alone(postgres_server):
    url = postgres_server.create_database("shop")
    try:
        with pytest.raises(BadOption, match="with `test` in its name"), temporary(td, url=url):
            pass
        with psycopg.connect(url) as connection:
            assert [] == connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'treadle'").fetchall()
    finally:
        postgres_server.drop("shop")


def test_the_fixtures_accept_another_url(pytester, url):
    pytester.makepyfile(
        f"""
        import pytest
        from treadle import Treadle
        from treadle.testing import assert_enqueued, drain

        td = Treadle("postgresql://nobody@nowhere.invalid/production")

        @td.job
        def add(a: int) -> int:
            return a + 1

        @pytest.fixture
        def treadle_url():
            return {url!r}

        @pytest.fixture(autouse=True)
        def jobs(treadle_temporary):
            treadle_temporary(td)

        @pytest.mark.parametrize("n", [1, 2])
        def test_it(n, treadle_clock):
            assert [] == td.counts()
            job = add.enqueue(a=n)
            assert drain(td).completed == 1
            assert td.result(job.id) == n + 1
            assert job.created_at == treadle_clock.now()
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=2)
