"""treadle's statements in the user's transaction, for every kind of connection."""

from __future__ import annotations

import asyncio
import functools

import psycopg
import pytest

from tests.user_connections.kinds import ASYNC, KINDS, done
from treadle.errors import BadConnection
from treadle.stores.user_connections import async_driver, identity, is_async, savepoint, sqlstate, wrap

INSERT = "INSERT INTO orders VALUES (CAST(%(id)s AS bigint), %(note)s::text) RETURNING id, note"
every_kind = pytest.mark.parametrize("kind", KINDS)
every_async_kind = pytest.mark.parametrize("kind", ASYNC)


def on_a_loop(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


def insert(id):
    """Work as a store does it."""

    def work(connection):
        with savepoint(connection):
            return connection.execute(INSERT, {"id": id, "note": "ours"})

    return work


def failing(id):
    """Work that fails in the database after it has written."""

    def work(connection):
        with savepoint(connection):
            connection.execute(INSERT, {"id": id, "note": "ours"})
            connection.execute(INSERT, {"id": id, "note": "twice"})

    return work


def orders(url):
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT id, note FROM orders ORDER BY id").fetchall()


# Together or not at all


@every_kind
@on_a_loop
async def test_a_row_exists_when_the_users_transaction_has_committed(kind, postgres_url):
    async with KINDS[kind](postgres_url) as user:
        await user.execute("INSERT INTO orders VALUES (1, 'theirs')")
        assert [(2, "ours")] == await user.work(insert(2))
        await user.execute("INSERT INTO orders VALUES (3, 'theirs')")
        assert [] == orders(postgres_url)

        await done(user.commit())

    assert [(1, "theirs"), (2, "ours"), (3, "theirs")] == orders(postgres_url)


@every_kind
@on_a_loop
async def test_a_row_does_not_exist_if_the_users_transaction_rolls_back(kind, postgres_url):
    async with KINDS[kind](postgres_url) as user:
        await user.execute("INSERT INTO orders VALUES (1, 'theirs')")
        await user.work(insert(2))

        await done(user.rollback())

    assert [] == orders(postgres_url)


@pytest.mark.parametrize("kind", [name for name in KINDS if not name.startswith(("asyncpg", "Django"))])
@on_a_loop
async def test_the_first_statement_begins_a_transaction_if_the_users_own_would(kind, postgres_url):
    async with KINDS[kind](postgres_url) as user:
        await user.work(insert(1))
        assert [] == orders(postgres_url)
        await done(user.commit())

    assert [(1, "ours")] == orders(postgres_url)


@every_kind
@on_a_loop
async def test_work_that_fails_leaves_nothing_and_the_users_transaction_stays_usable(kind, postgres_url):
    async with KINDS[kind](postgres_url) as user:
        await user.execute("INSERT INTO orders VALUES (1, 'theirs')")
        with pytest.raises(Exception) as raised:  # noqa: PT011 - each driver has its own
            await user.work(failing(2))
        assert "23505" == sqlstate(raised.value)

        await user.execute("INSERT INTO orders VALUES (3, 'theirs')")
        await user.work(insert(4))
        await done(user.commit())

    assert [(1, "theirs"), (3, "theirs"), (4, "ours")] == orders(postgres_url)


@every_kind
@on_a_loop
async def test_no_setting_is_left_on_the_connection(kind, postgres_url):
    def look(connection):
        return connection.execute("SELECT count(*) FROM pg_cursors WHERE position('pg_cursors' IN statement) = 0", {})

    async with KINDS[kind](postgres_url) as user:
        await user.execute("INSERT INTO orders VALUES (1, 'theirs')")
        await user.work(insert(2))
        assert [(0,)] == await user.work(look)
        with pytest.raises(Exception) as raised:  # noqa: PT011
            await user.execute("RELEASE SAVEPOINT treadle")
        assert "3B001" == sqlstate(raised.value)


# Statements


@every_kind
@on_a_loop
async def test_values_arrive_as_they_were_sent(kind, postgres_url):
    sql = """
    SELECT CAST(%(text)s AS text), %(text)s::text, %(int)s::bigint, CAST(%(least)s AS bigint),
        %(float)s::double precision, CAST(%(yes)s AS boolean), %(none)s::text, CAST(%(none)s AS text),
        'a:b :c'::text, 1::bigint, CAST(CAST(%(json)s AS text)::jsonb ->> 'a' AS text)
    """
    text = "é ' \" \\ % %(int)s :c ::d $1 {} \n ?"
    values = {"text": text, "int": -5, "least": -(2**63), "float": -2.5, "yes": True, "none": None, "json": '{"a":"b"}'}

    async with KINDS[kind](postgres_url) as user:
        await user.execute("SELECT 1")
        rows = await user.work(lambda connection: connection.execute(sql, values))

    assert [(text, text, -5, -(2**63), -2.5, True, None, None, "a:b :c", 1, "b")] == rows
    assert all(type(row) is tuple for row in rows)


@every_kind
@on_a_loop
async def test_a_statement_without_rows_returns_none(kind, postgres_url):
    async with KINDS[kind](postgres_url) as user:
        await user.execute("SELECT 1")
        assert [] == await user.work(lambda b: b.execute("UPDATE orders SET note = CAST(%(n)s AS text)", {"n": "x"}))
        assert [] == await user.work(lambda b: b.execute("SELECT id FROM orders", {}))


# Which database


@every_kind
@on_a_loop
async def test_two_databases_are_distinguished(kind, postgres_url, other_url):
    with psycopg.connect(postgres_url) as here, psycopg.connect(other_url) as there:
        here.execute("SET timezone = 'Asia/Kolkata'")
        here.execute("SET datestyle = 'German'")
        async with KINDS[kind](postgres_url) as user:
            await user.execute("SELECT 1")
            theirs = await user.work(identity)

        assert identity(wrap(here)) == theirs
        assert identity(wrap(there)) != theirs


def test_any_role_can_query_the_identity_of_the_database(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE ROLE nobody_special")
        connection.execute("SET ROLE nobody_special")
        assert identity(wrap(connection)).startswith(f"{connection.info.dbname}@")
        connection.rollback()


# What is refused


@every_kind
@on_a_loop
async def test_a_connection_without_a_transaction_is_refused(kind, postgres_url):
    async with KINDS[kind](postgres_url, autocommit=True) as user:
        with pytest.raises(BadConnection, match="no transaction is open on it; "):
            await user.work(insert(1))

        if kind.startswith("Django"):
            with pytest.raises(BadConnection, match=r"wrap it in transaction\.atomic\(\)"):
                await user.work(insert(1))
    assert [] == orders(postgres_url)


@pytest.mark.parametrize("kind", ["psycopg", "psycopg2", "async psycopg"])
@on_a_loop
async def test_a_transaction_begun_by_hand_is_accepted(kind, postgres_url):
    async with KINDS[kind](postgres_url, autocommit=True) as user:
        await user.execute("BEGIN")
        await user.work(insert(1))
        await user.execute("COMMIT")

    assert [(1, "ours")] == orders(postgres_url)


@every_kind
@on_a_loop
async def test_a_failed_transaction_is_refused(kind, postgres_url):
    async with KINDS[kind](postgres_url) as user:
        await user.execute("SELECT 1")
        with pytest.raises(Exception):  # noqa: B017, PT011
            await user.execute("SELECT 1/0")

        with pytest.raises(BadConnection, match="its transaction has failed; roll it back first"):
            await user.work(insert(1))


@pytest.mark.parametrize("kind", [name for name in KINDS if "ession" not in name])  # a Session reopens
@on_a_loop
async def test_a_closed_connection_is_refused(kind, postgres_url):
    async with KINDS[kind](postgres_url) as user:
        await user.execute("SELECT 1")
        await done(user.close())

        with pytest.raises(BadConnection, match="closed"):
            await user.work(insert(1))


@every_async_kind
@on_a_loop
async def test_an_async_connection_is_refused_by_sync_code(kind, postgres_url):
    async with KINDS[kind](postgres_url) as user:
        assert is_async(user.connection)
        with pytest.raises(BadConnection, match=r"it is async; await aenqueue\(…\) or acomplete"):
            wrap(user.connection)


@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ASYNC])
@on_a_loop
async def test_a_sync_connection_is_not_taken_for_an_async_one(kind, postgres_url):
    async with KINDS[kind](postgres_url) as user:
        assert not is_async(user.connection)
        assert (connection := wrap(user.connection)) is wrap(connection)
        assert repr(user.connection) == repr(connection)
        with pytest.raises(BadConnection):
            async_driver(user.connection, asyncio.get_running_loop())
