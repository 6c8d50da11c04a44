"""Connections of the user: the parts that need no server."""

from __future__ import annotations

import re
import sqlite3
import sys

import asyncpg
import flask_sqlalchemy
import pytest
from django.db import connections, transaction
from sqlalchemy import create_engine, orm
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from treadle.errors import BadConnection
from treadle.stores.user_connections import is_async, savepoint, sqlstate, unwrap, wrap
from treadle.stores.user_connections.drivers import numbered


@pytest.mark.parametrize(
    ("named", "expected", "names"),
    [
        ("SELECT 1", "SELECT 1", ()),
        ("SELECT CAST(%(rows)s AS text)", "SELECT CAST($1 AS text)", ("rows",)),
        ("SELECT %(rows)s::text, a::int", "SELECT $1::text, a::int", ("rows",)),
        ("%(b)s, %(a)s, %(b)s, %(c)s", "$1, $2, $1, $3", ("b", "a", "c")),
        ("SELECT 'a:b', ':c', %(x)s", "SELECT 'a:b', ':c', $1", ("x",)),
        ("%(a)s%(ab)s", "$1$2", ("a", "ab")),
    ],
)
def test_names_become_numbers(named, expected, names):
    assert (expected, names) == numbered(named)


def test_ten_names_have_ten_numbers():
    sql, names = numbered(" ".join(f"%(n{i})s" for i in range(1, 13)))

    assert " ".join(f"${i}" for i in range(1, 13)) == sql
    assert 12 == len(names)


def test_no_driver_is_imported():
    import subprocess

    drivers = ("psycopg", "psycopg2", "asyncpg", "sqlalchemy", "django")
    code = f"import sys, treadle.stores.user_connections; assert not set({drivers!r}) & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class Pool:
    pass


@pytest.mark.parametrize(
    ("given", "shown", "way_out"),
    [
        (7, "connection=7", "pass one of psycopg"),
        (Pool(), "Pool object", "pass a connection of it"),
        ("postgresql://joe:se:c@ret@host/db", "'postgresql://joe:•••@host/db'", "pass one of psycopg"),
        ("host=db password='se cr et' user=joe", "password=••• user=joe", "pass one of psycopg"),
        (f"postgresql://joe:{'secret' * 50}@host/db", "'postgresql://joe:•••@host/db'", "pass one of psycopg"),
        ("host=db password=secret user=joe", "'host=db password=••• user=joe'", "pass one of psycopg"),
    ],
)
def test_the_error_for_a_value_that_is_not_a_connection_hides_its_password(given, shown, way_out):
    with pytest.raises(BadConnection) as raised:
        wrap(given)

    assert shown in str(raised.value)
    assert way_out in str(raised.value)
    assert not is_async(given)
    assert given is unwrap(given)


def of(name: str) -> object:
    """An object of the class with this path."""
    module, _, last = name.rpartition(".")
    return type(last, (), {"__module__": module})()


ENGINE = "the Session, or the `conn` of `with engine.begin() as conn`"
ASYNC_ENGINE = "the AsyncSession, or the `conn` of `async with engine.begin() as conn`, and await aenqueue(…)"
POOL = "a connection of it: the `conn` of `with pool.connection() as conn`"
ASYNC_POOL = "a connection of it: the `conn` of `async with pool.connection() as conn`, and await aenqueue(…)"
ASYNCPG_POOL = (
    "a connection of it: the `conn` of `async with pool.acquire() as conn, conn.transaction()`, and await aenq"
)
A_SESSION = "the session or connection that it is on"
engine, async_engine = create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        (engine, ENGINE),
        (engine.pool, ENGINE),
        (orm.sessionmaker(engine), ENGINE),
        (async_engine, ASYNC_ENGINE),
        (async_sessionmaker(async_engine), ASYNC_ENGINE),
        (flask_sqlalchemy.SQLAlchemy(), "db.session"),
        (of("psycopg_pool.pool.ConnectionPool"), POOL),
        (of("psycopg_pool.null_pool.NullConnectionPool"), POOL),
        (of("psycopg_pool.pool_async.AsyncConnectionPool"), ASYNC_POOL),
        (of("psycopg_pool.null_pool_async.AsyncNullConnectionPool"), ASYNC_POOL),
        (asyncpg.create_pool("postgresql://nowhere.invalid"), ASYNCPG_POOL),
        (asyncpg.create_pool("postgresql://nowhere.invalid").acquire(), "a connection of it"),
        (of("psycopg2.pool.ThreadedConnectionPool"), "a connection of it, the one that your transaction is on"),
        (orm.Session(engine).begin(), A_SESSION),
        (AsyncSession(async_engine).begin(), A_SESSION),
        (of("psycopg.transaction.Transaction"), A_SESSION),
        (transaction.atomic(), 'django.db.connection, or connections["…"]'),
        (connections, 'django.db.connection, or connections["…"]'),
        (sqlite3.connect(":memory:").cursor(), "its connection"),
        (engine.begin(), "what it yields: with … as conn"),
        (async_engine.begin(), "what it yields: with … as conn"),
        ((session for session in ()), "what it yields; in FastAPI, Depends(…) does that"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_passed_in_place_of_a_connection_names_the_right_one(given, instead):
    with pytest.raises(BadConnection, match=rf"; .*pass {re.escape(instead)}"):
        wrap(given)


class Wrapped(Exception):
    def __init__(self, orig: BaseException | None = None, sqlstate: str | None = None) -> None:
        self.orig, self.sqlstate = orig, sqlstate


def test_the_servers_code_is_found_in_wrapped_errors():
    djangos = Exception()
    djangos.__cause__ = Wrapped(sqlstate="23505")

    assert "23505" == sqlstate(Wrapped(sqlstate="23505"))
    assert "23505" == sqlstate(Wrapped(orig=Wrapped(sqlstate="23505")))
    assert "23505" == sqlstate(djangos)
    assert None is sqlstate(Exception())


class Spy:
    """Records its statements, and fails at the chosen ones."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.seen = failing, []

    def execute(self, sql, parameters):
        self.seen.append(sql)
        if sql in self.failing:
            raise OSError(sql)
        return []


def test_an_error_undoes_what_came_after_the_savepoint():
    spy = Spy("INSERT")

    with pytest.raises(OSError, match="INSERT"), savepoint(spy):
        spy.execute("INSERT", {})

    assert ["SAVEPOINT treadle", "INSERT", "ROLLBACK TO SAVEPOINT treadle", "RELEASE SAVEPOINT treadle"] == spy.seen


def test_the_first_of_two_errors_is_raised():
    spy = Spy("INSERT", "ROLLBACK TO SAVEPOINT treadle")

    with pytest.raises(OSError, match="INSERT"), savepoint(spy):
        spy.execute("INSERT", {})
