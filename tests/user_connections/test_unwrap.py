"""SQLAlchemy and Django on SQLite: treadle uses the sqlite3 connection inside, in their transaction."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing

import pytest
import sqlalchemy
from django.db import connections, transaction
from sqlalchemy import orm

from tests.conformance.helpers import new_job
from tests.user_connections import kinds
from treadle.errors import BadConnection
from treadle.stores.sqlite.store import SQLiteStore
from treadle.stores.user_connections import unwrap

aliases = itertools.count(1)


@pytest.fixture
def store(tmp_path):
    with closing(SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")) as store:
        store.open()
        yield store


@pytest.fixture
def engine(store):
    engine = sqlalchemy.create_engine(store.url)
    yield engine
    engine.dispose()


def configured(path):
    """The alias of a Django database in this file."""
    alias = f"sqlite_{next(aliases)}"
    connections.settings[alias] = {
        "ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": {}, "TIME_ZONE": None,
        "ATOMIC_REQUESTS": False, "AUTOCOMMIT": True, "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False, "TEST": {},
    }  # fmt: skip
    return alias


@pytest.fixture
def djangos(store):
    with closing(connections[configured(store.path)]) as connection:
        yield connection


@pytest.mark.parametrize("holder", [sqlalchemy.Engine.connect, orm.Session, kinds.scoped])
def test_sqlalchemy_commits_and_rolls_back_work_on_its_sqlite3_connection(holder, engine, store):
    with closing(holder(engine)) as connection:
        [kept] = store.insert([new_job()], unwrap(connection))
        assert None is store.get(kept.id)
        connection.commit()
        [dropped] = store.insert([new_job()], unwrap(connection))
        connection.rollback()

    assert kept == store.get(kept.id)
    assert None is store.get(dropped.id)


def test_it_joins_the_transaction_that_sqlalchemy_has_begun(engine, store):
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE orders (id INTEGER)"))
        connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
        [job] = store.insert([new_job()], unwrap(connection))

    assert job == store.get(job.id)


def test_django_commits_and_rolls_back_work_on_its_sqlite3_connection(djangos, store):
    with transaction.atomic(using=djangos.alias):
        assert isinstance(unwrap(djangos), sqlite3.Connection)
        [kept] = store.insert([new_job()], unwrap(djangos))
        assert None is store.get(kept.id)
    with transaction.atomic(using=djangos.alias):
        [dropped] = store.insert([new_job()], unwrap(djangos))
        transaction.set_rollback(True, using=djangos.alias)

    assert kept == store.get(kept.id)
    assert None is store.get(dropped.id)


def test_django_outside_of_atomic_is_refused(djangos):
    with pytest.raises(BadConnection, match=r"no transaction is open on it; wrap it in transaction\.atomic\(\)"):
        unwrap(djangos)


def test_a_closed_sqlalchemy_connection_is_refused(engine):
    connection = engine.connect()
    connection.close()

    with pytest.raises(BadConnection, match="closed"):
        unwrap(connection)


def test_a_sqlite3_connection_stays_as_it_is():
    with closing(sqlite3.connect(":memory:")) as connection:
        assert connection is unwrap(connection)
