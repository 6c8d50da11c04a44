"""The connection of `ctx.transaction()`: a transaction on a server that belongs to one caller."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress

import pytest

from tests.conformance.helpers import (
    CANNOT_BE_STORED,
    UNSTORABLE,
    check_consistency,
    everything,
    new_job,
    put,
    put_and_take,
    settle_one,
)
from tests.servers.libsql import ByHand
from treadle.errors import StoreUnusable, TransactionOver
from treadle.job import Status
from treadle.outcome import COMPLETED
from treadle.stores.libsql.store import LibSQLStore


@pytest.fixture
def store(libsql_url):
    store = LibSQLStore(libsql_url)
    ByHand(libsql_url).execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what BLOB)")
    return store


def orders(store):
    return ByHand(store.url).execute("SELECT id, what FROM orders ORDER BY id").fetchall()


def test_parameters_are_positional_or_named_and_values_are_read_back_unchanged(store):
    with store.transaction(put_and_take(store), lambda: COMPLETED) as connection:
        connection.execute("INSERT INTO orders VALUES (?, ?)", (1, b"\x00\xff?"))
        connection.execute("INSERT INTO orders VALUES (:id, @what)", {"id": 2, "what": None})
        found = connection.execute("SELECT id, what, 1.5, 'ü' FROM orders")

        assert (1, b"\x00\xff?", 1.5, "ü") == found.fetchone()
        assert [(2, None, 1.5, "ü")] == list(found)
        assert 2 == connection.execute("UPDATE orders SET what = ''").rowcount

    assert [(1, ""), (2, "")] == orders(store)


def test_a_statement_that_fails_leaves_the_transaction_open(store):
    with store.transaction(put_and_take(store), lambda: COMPLETED) as connection:
        connection.execute("INSERT INTO orders VALUES (1, NULL)")
        with pytest.raises(sqlite3.IntegrityError, match=r"^UNIQUE constraint failed: orders\.id"):
            connection.execute("INSERT INTO orders VALUES (1, NULL)")
        connection.execute("INSERT INTO orders VALUES (2, NULL)")

    assert [(1, None), (2, None)] == orders(store)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN"])
def test_a_block_that_ends_the_transaction_by_sql_does_not_complete_the_job(store, end):
    claimed = put_and_take(store)

    def work():
        with store.transaction(claimed, lambda: COMPLETED) as connection:
            for statement in end.split(";"):
                connection.execute(statement)

    with pytest.raises(TransactionOver, match="leave both to"):
        work()
    assert Status.PROCESSING == store.get(claimed.id).status
    assert settle_one(store, claimed, COMPLETED)


def test_an_enqueue_joins_the_transaction_and_one_that_fails_leaves_nothing(store):
    with store.transaction(put_and_take(store), lambda: COMPLETED) as connection:
        (kept,) = store.insert([new_job(dedupe="kept")], connection)
        with pytest.raises(CANNOT_BE_STORED):
            store.insert([new_job(dedupe="k"), new_job(priority=UNSTORABLE)], connection)
        assert None is store.get(kept.id)

    assert kept == store.get(kept.id)
    assert 2 == len(everything(store))
    check_consistency(store)


def test_nothing_can_be_written_after_the_transaction_has_ended(store):
    """The server would commit each statement on its own."""
    with store.transaction(put_and_take(store), lambda: COMPLETED) as connection:
        pass

    for add in (lambda: connection.execute("SELECT 1"), lambda: store.insert([new_job()], connection)):
        with pytest.raises(TransactionOver):
            add()
    assert 1 == len(everything(store))


def test_a_block_that_holds_the_write_lock_for_five_seconds_loses_it_and_stores_nothing_more(store):
    claimed = put_and_take(store)
    others = threading.Thread(target=lambda: put(store))

    def hold_on():
        with store.transaction(claimed, lambda: COMPLETED) as connection:
            connection.execute("INSERT INTO orders VALUES (1, NULL)")
            others.start()
            others.join()  # it has waited for the write lock
            for id in (2, 3):
                with suppress(TransactionOver):  # like a handler that catches every exception
                    connection.execute("INSERT INTO orders VALUES (?, NULL)", (id,))

    with pytest.raises(TransactionOver):
        hold_on()
    assert ([], Status.PROCESSING, 2) == (orders(store), store.get(claimed.id).status, len(everything(store)))


def test_a_server_that_dies_during_a_block_is_reported(own_server):
    store = LibSQLStore(own_server.url)
    claimed = put_and_take(store)

    def work():
        with store.transaction(claimed, lambda: COMPLETED) as connection:
            own_server.kill()
            connection.execute("SELECT 1")

    with pytest.raises(StoreUnusable, match="is the server up"):
        work()
    own_server.start()
    with store.transaction(claimed, lambda: COMPLETED) as connection:  # on a connection that the server has closed
        connection.execute("SELECT 1")
    assert Status.COMPLETED == store.get(claimed.id).status
