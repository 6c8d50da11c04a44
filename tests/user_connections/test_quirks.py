"""Behavior of single kinds of connections."""

from __future__ import annotations

import json

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tests.user_connections.kinds import (
    engine_url,
    with_asyncpg,
    with_django,
    with_psycopg,
    with_psycopg2,
    with_psycopg_async,
)
from tests.user_connections.test_drivers import failing, insert, on_a_loop, orders
from treadle.errors import BadConnection
from treadle.stores.user_connections import run_on_async, wrap


@pytest.mark.parametrize("autocommit", [False, True])
@on_a_loop
async def test_psycopg_in_a_pipeline(autocommit, postgres_url):
    async with with_psycopg(postgres_url, autocommit=autocommit) as user:
        with user.connection.pipeline(), user.connection.transaction():
            await user.execute("INSERT INTO orders VALUES (1, 'theirs')")
            assert [(2, "ours")] == await user.work(insert(2))
            with pytest.raises(psycopg.errors.UniqueViolation):
                await user.work(failing(3))
            await user.work(insert(4))
        user.connection.commit()

    assert [(1, "theirs"), (2, "ours"), (4, "ours")] == orders(postgres_url)


@on_a_loop
async def test_async_psycopg_in_a_pipeline(postgres_url):
    async with with_psycopg_async(postgres_url) as user, user.connection.pipeline(), user.connection.transaction():
        await user.execute("INSERT INTO orders VALUES (1, 'theirs')")
        assert [(2, "ours")] == await user.work(insert(2))
        with pytest.raises(psycopg.errors.UniqueViolation):
            await user.work(failing(3))
        await user.work(insert(4))

    assert [(1, "theirs"), (2, "ours"), (4, "ours")] == orders(postgres_url)


@pytest.mark.parametrize("autocommit", [False, True])
@on_a_loop
async def test_psycopg_in_nested_transactions(autocommit, postgres_url):
    async with with_psycopg(postgres_url, autocommit=autocommit) as user:
        with user.connection.transaction():
            with user.connection.transaction():
                await user.work(insert(1))
            with user.connection.transaction(force_rollback=True):
                await user.work(insert(2))
        user.connection.commit()

    assert [(1, "ours")] == orders(postgres_url)


@on_a_loop
async def test_psycopg2_after_a_commit_sent_as_text(postgres_url):
    """psycopg2 assumes that its transaction is still open, but each further statement would commit on its own."""
    async with with_psycopg2(postgres_url) as user:
        await user.execute("INSERT INTO orders VALUES (1, 'theirs')")
        await user.execute("COMMIT")
        with pytest.raises(BadConnection, match="no transaction is open on it"):
            await user.work(insert(2))

    assert [(1, "theirs")] == orders(postgres_url)


@on_a_loop
async def test_an_atomic_block_that_django_has_marked_for_rollback(postgres_url):
    async with with_django(postgres_url) as user:
        user.connection.set_rollback(True)
        with pytest.raises(BadConnection, match="its transaction has failed; roll it back first"):
            await user.work(insert(1))


@on_a_loop
async def test_asyncpg_with_the_users_own_codecs(postgres_url):
    async with with_asyncpg(postgres_url) as user:
        for type in ("json", "jsonb"):
            await user.connection.set_type_codec(type, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        sql = "SELECT CAST(CAST(CAST(%(it)s AS text) AS jsonb) AS text)"
        assert [('{"a": 1}',)] == await user.work(lambda connection: connection.execute(sql, {"it": '{"a":1}'}))


@on_a_loop
async def test_an_asyncpg_connection_that_was_returned_to_its_pool(postgres_url):
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
        async with pool.acquire() as connection:
            pass
        with pytest.raises(BadConnection, match="it is closed"):
            await run_on_async(connection, insert(1))
        with pytest.raises(BadConnection, match="pass a connection of it"):
            await run_on_async(pool, insert(1))


class Base(orm.DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    note: orm.Mapped[str]


@pytest.fixture
def engine(postgres_url):
    engine = sqlalchemy.create_engine(engine_url(postgres_url, "psycopg"))
    yield engine
    engine.dispose()


def test_a_session_with_its_own_objects_and_savepoints(engine, postgres_url):
    with orm.Session(engine) as session, session.begin():
        session.add(Order(id=1, note="theirs"))
        with session.begin_nested():
            insert(2)(wrap(session))
        with session.begin_nested() as nested:
            insert(3)(wrap(session))
            nested.rollback()

    assert [(1, "theirs"), (2, "ours")] == orders(postgres_url)


def test_a_session_whose_flush_has_failed(engine):
    with orm.Session(engine) as session:
        session.add_all([Order(id=1, note="a"), Order(id=1, note="b")])
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.flush()

        with pytest.raises(BadConnection, match=r"SQLAlchemy says: .*rolled back"):
            insert(1)(wrap(session))


def test_a_session_without_a_bind():
    with pytest.raises(BadConnection, match="SQLAlchemy says: "):
        insert(1)(wrap(orm.Session()))


def test_an_engine_is_not_a_connection(engine):
    with pytest.raises(BadConnection, match="pass the Session, or the `conn` of `with engine"):
        wrap(engine)


def test_another_database_under_sqlalchemy():
    with (
        sqlalchemy.create_engine("sqlite://").connect() as connection,
        pytest.raises(BadConnection, match="it is to sqlite; pass one to the PostgreSQL database of the jobs"),
    ):
        insert(1)(wrap(connection))


@on_a_loop
async def test_an_async_connection_that_was_not_started(postgres_url):
    engine = sqlalchemy_asyncio.create_async_engine(engine_url(postgres_url, "asyncpg"))
    with pytest.raises(BadConnection, match="SQLAlchemy says: "):
        await run_on_async(engine.connect(), insert(1))
    await engine.dispose()


@pytest.mark.parametrize("driver", [psycopg, psycopg2])
def test_no_error_shows_a_password(driver, postgres_url):
    connection = driver.connect(postgres_url.replace("postgres@", "postgres:secret@"))
    connection.close()

    with pytest.raises(BadConnection) as raised:
        insert(1)(wrap(connection))
    assert "secret" not in str(raised.value)
