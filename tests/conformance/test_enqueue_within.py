"""Enqueue in the user's own transaction: the job commits with their rows, or not at all."""

from __future__ import annotations

import re
import sqlite3

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row, namedtuple_row

from tests.conformance.helpers import (
    CANNOT_BE_STORED,
    HOUR,
    UNSTORABLE,
    everything,
    ids,
    new_job,
    orders,
    put,
    take,
)
from tests.stores import make_tables
from treadle.clock import to_datetime
from treadle.errors import BadConnection


def in_transaction(users):
    if isinstance(users, psycopg.Connection):
        return users.info.transaction_status == TransactionStatus.INTRANS
    return users.in_transaction


def autocommit(users):
    """Set autocommit: every statement is a transaction, unless the user begins one."""
    if isinstance(users, psycopg.Connection):
        users.autocommit = True
    else:
        users.isolation_level = None


@pytest.mark.needs("joins_transactions")
def test_a_job_exists_when_the_users_transaction_has_committed(store, users):
    users.execute("INSERT INTO orders VALUES (1)")
    (job,) = store.insert([new_job()], users)

    assert None is store.get(job.id)
    users.commit()

    assert job == store.get(job.id)
    assert [1] == orders(store)
    assert [job.id] == ids(take(store))


@pytest.mark.needs("joins_transactions")
def test_a_job_does_not_exist_if_the_users_transaction_rolls_back(store, users):
    users.execute("INSERT INTO orders VALUES (1)")
    (job,) = store.insert([new_job(dedupe="k")], users)

    users.rollback()

    assert None is store.get(job.id)
    assert [] == take(store)
    assert job.id != put(store, dedupe="k").id


@pytest.mark.needs("joins_transactions")
def test_an_insert_opens_the_transaction_that_the_user_has_not_opened_yet(store, users):
    """The user's own INSERT would do the same on such a connection."""
    (job,) = store.insert([new_job()], users)

    assert in_transaction(users)
    assert None is store.get(job.id)
    users.commit()
    assert job == store.get(job.id)


@pytest.mark.needs("joins_transactions")
def test_an_enqueue_does_not_commit_the_users_transaction(store, users):
    users.execute("INSERT INTO orders VALUES (1)")
    store.insert([new_job(), new_job()], users)

    users.rollback()

    assert ([], []) == (orders(store), everything(store))


@pytest.mark.needs("joins_transactions")
def test_a_batch_in_the_users_transaction_is_all_or_nothing(store, users):
    """The user may catch the error and commit. That must not store half a batch."""
    users.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(CANNOT_BE_STORED):
        store.insert([new_job(dedupe="k"), new_job(priority=UNSTORABLE)], users)
    assert in_transaction(users)
    users.commit()

    assert ([1], []) == (orders(store), everything(store))


@pytest.mark.needs("joins_transactions")
def test_in_the_users_transaction_a_key_in_use_returns_its_holder(store, users):
    holder = put(store, dedupe="k")
    free, kept_out = new_job(), new_job(dedupe="k")

    answers = store.insert([free, kept_out], users)
    users.commit()

    assert [free.id, holder.id] == ids(answers)


@pytest.mark.needs("joins_transactions")
def test_in_the_users_transaction_the_same_id_twice_is_one_job(store, users):
    new = new_job()

    first = store.insert([new], users)
    second = store.insert([new], users)
    users.commit()

    assert first == second == [store.get(new.id)]


@pytest.mark.only("sqlite")
@pytest.mark.parametrize(
    "factory",
    [
        pytest.param(lambda cursor, row: {c[0]: v for c, v in zip(cursor.description, row, strict=True)}, id="dicts"),
        pytest.param(sqlite3.Row, id="rows"),
    ],
)
@pytest.mark.needs("joins_transactions")
def test_the_users_row_factory_is_kept(store, users, factory):
    put(store, dedupe="k")
    users.row_factory = factory
    users.text_factory = bytes

    jobs = store.insert([new_job(), new_job(dedupe="k")], users)

    assert (factory, bytes) == (users.row_factory, users.text_factory)
    users.commit()
    assert sorted(ids(everything(store))) == sorted(ids(jobs))


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("factory", [dict_row, namedtuple_row])
@pytest.mark.needs("joins_transactions")
def test_the_users_row_factory_is_kept_on_a_server(store, users, factory):
    put(store, dedupe="k")
    users.row_factory, users.cursor_factory = factory, psycopg.RawCursor

    jobs = store.insert([new_job(), new_job(dedupe="k")], users)

    assert (factory, psycopg.RawCursor) == (users.row_factory, users.cursor_factory)
    users.commit()
    assert sorted(ids(everything(store))) == sorted(ids(jobs))


@pytest.mark.needs("joins_transactions")
def test_a_connection_without_a_transaction_is_refused(store, users):
    """In autocommit mode, every statement of the insert would commit on its own."""
    autocommit(users)

    with pytest.raises(BadConnection, match="no transaction is open on it; "):
        store.insert([new_job()], users)

    assert [] == everything(store)


@pytest.mark.needs("joins_transactions")
def test_a_transaction_begun_by_hand_is_used(store, users):
    autocommit(users)
    users.execute("BEGIN")

    (job,) = store.insert([new_job()], users)
    assert None is store.get(job.id)
    users.execute("COMMIT")

    assert job == store.get(job.id)


@pytest.mark.only("sqlite")
@pytest.mark.parametrize("where", [":memory:", "other.db"])
def test_a_connection_to_another_file_is_refused(store, folder, where):
    other = sqlite3.connect(where if where == ":memory:" else folder / where)

    with pytest.raises(BadConnection, match=store.where):
        store.insert([new_job()], other)

    other.close()
    assert [] == everything(store)


@pytest.mark.only("postgresql")
def test_a_connection_to_another_database_is_refused(store, postgres_url):
    """On the same server, the jobs would be stored, but no worker would run them."""
    make_tables(postgres_url)

    with (
        psycopg.connect(postgres_url) as other,
        pytest.raises(BadConnection, match=f"it is not open on {re.escape(store.where)}"),
    ):
        store.insert([new_job()], other)

    assert [] == everything(store)


@pytest.mark.parametrize("connection", ["sqlite:///jobs.db", 7, object()], ids=["text", "number", "object"])
def test_a_value_that_is_not_a_connection_is_refused_and_shown(store, connection):
    with pytest.raises(
        BadConnection,
        match=r"it is not a sqlite3 connection|does not know this kind of connection|cannot be shared",
    ):
        store.insert([new_job()], connection)


@pytest.mark.needs("joins_transactions")
def test_a_delay_counts_from_the_insert_in_the_users_transaction(store, users, clock):
    (job,) = store.insert([new_job(delay=HOUR)], users)
    users.commit()

    assert to_datetime(clock() + HOUR) == job.run_at == store.get(job.id).run_at
