"""The first enqueue in the user's transaction on a new SQLite file creates the tables in that transaction."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest
import sqlalchemy
from django.db import connections, transaction
from sqlalchemy import orm

from tests.user_connections.test_unwrap import configured
from treadle import Treadle
from treadle.errors import SchemaTooNew


@pytest.fixture
def td(tmp_path):
    with closing(Treadle(f"sqlite:///{tmp_path}/new.db")) as td:
        td.job(type="mail")(lambda to: None)
        yield td


def by_sqlite3(td, enqueue, *, commit):
    with closing(sqlite3.connect(td.store.path)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER)")
        connection.execute("INSERT INTO orders VALUES (1)")
        job = enqueue(connection)
        connection.commit() if commit else connection.rollback()
    return job


def by_sqlalchemy(td, enqueue, *, commit):
    engine = sqlalchemy.create_engine(td.store.url)
    with closing(orm.Session(engine)) as session:
        session.execute(sqlalchemy.text("CREATE TABLE IF NOT EXISTS orders (id INTEGER)"))
        session.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
        job = enqueue(session)
        session.commit() if commit else session.rollback()
    engine.dispose()
    return job


def by_django(td, enqueue, *, commit):
    with closing(connections[configured(td.store.path)]) as connection, transaction.atomic(using=connection.alias):
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER)")
            cursor.execute("INSERT INTO orders VALUES (1)")
        job = enqueue(connection)
        transaction.set_rollback(not commit, using=connection.alias)
    return job


DRIVERS = [by_sqlite3, by_sqlalchemy, by_django]


def by_name(td):
    return lambda connection: td.enqueue("mail", {"to": "ann"}, connection=connection)


def elsewhere(td):
    """A producer without the handler's code reads the policies of the type from the file."""
    return lambda connection: Treadle(td.store.url).enqueue("mail", {"to": "ann"}, connection=connection)


@pytest.mark.parametrize("enqueue", [by_name, elsewhere])
@pytest.mark.parametrize("driver", DRIVERS)
def test_the_first_job_of_a_new_file_is_part_of_the_users_transaction(td, driver, enqueue):
    began = time.monotonic()
    job = driver(td, enqueue(td), commit=True)
    assert time.monotonic() - began < 5

    again = driver(td, enqueue(td), commit=True)  # the tables exist, and the journal mode is still SQLite's default
    assert {job.id, again.id} == {job.id for job in td.jobs()}
    assert td.store.status()["journal_mode"] == "wal"


@pytest.mark.parametrize("enqueue", [by_name, elsewhere])
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_rollback_removes_the_tables_too(td, driver, enqueue):
    driver(td, enqueue(td), commit=False)
    assert td.store.schema() == 0

    job = driver(td, enqueue(td), commit=True)
    assert [job.id] == [job.id for job in td.jobs()]


def test_others_can_read_during_the_users_open_transaction(td):
    with closing(sqlite3.connect(td.store.path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        td.enqueue("mail", {"to": "ann"}, connection=connection)
        connection.commit()
        connection.execute("INSERT INTO orders VALUES (1)")
        assert [job.type for job in td.jobs()] == ["mail"]


def test_a_file_of_a_newer_treadle_is_left_alone(td, tmp_path):
    td.store.open()
    td.close()
    with closing(sqlite3.connect(td.store.path)) as connection:
        connection.execute("UPDATE treadle_meta SET value = 99 WHERE key IN ('schema', 'oldest')")
        with pytest.raises(SchemaTooNew):
            td.enqueue("mail", {"to": "ann"}, connection=connection)
