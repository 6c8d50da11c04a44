"""Jobs and the user's own rows: together or not at all."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row, namedtuple_row

from tests.conformance.conftest import make_tables
from tests.conformance.helpers import (
    CANNOT_BE_STORED,
    HOUR,
    UNSTORABLE,
    by_hand,
    enlist,
    everything,
    ids,
    new_job,
    place_of,
    put,
    put_and_take,
    settle_one,
    snapshot,
    take,
)
from windlass.clock import to_datetime
from windlass.errors import BadConnection, LeaseLost, TransactionOver
from windlass.job import Status
from windlass.outcome import COMPLETED, RELEASED, Kind, Outcome
from windlass.stores.sqlite import store as sqlite_store


@pytest.fixture
def users(store):
    """The user's own connection to the database, with a table of theirs."""
    store.open()
    with connect(store) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.commit()
        yield connection
        connection.rollback()
        connection.execute("DROP TABLE orders")
        connection.commit()


def connect(store):
    return closing(by_hand(store))


def orders(store):
    with connect(store) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]


def in_transaction(users):
    if isinstance(users, psycopg.Connection):
        return users.info.transaction_status == TransactionStatus.INTRANS
    return users.in_transaction


def autocommit(users):
    """From now on, every statement is a transaction, unless they begin one."""
    if isinstance(users, psycopg.Connection):
        users.autocommit = True
    else:
        users.isolation_level = None


# Enqueue in the user's transaction


@pytest.mark.needs("joins_transactions")
def test_a_job_exists_once_the_users_transaction_commits(store, users):
    users.execute("INSERT INTO orders VALUES (1)")
    (job,) = store.insert([new_job()], users)

    assert None is store.get(job.id)
    users.commit()

    assert job == store.get(job.id)
    assert [1] == orders(store)
    assert [job.id] == ids(take(store))


@pytest.mark.needs("joins_transactions")
def test_a_job_never_existed_if_the_users_transaction_rolls_back(store, users):
    users.execute("INSERT INTO orders VALUES (1)")
    (job,) = store.insert([new_job(dedupe="k")], users)

    users.rollback()

    assert None is store.get(job.id)
    assert [] == take(store)
    assert job.id != put(store, dedupe="k").id


@pytest.mark.needs("joins_transactions")
def test_an_insert_opens_the_transaction_that_the_user_has_not_opened_yet(store, users):
    """As an INSERT of their own would do on such a connection."""
    (job,) = store.insert([new_job()], users)

    assert in_transaction(users)
    assert None is store.get(job.id)
    users.commit()
    assert job == store.get(job.id)


@pytest.mark.needs("joins_transactions")
def test_nothing_is_committed_behind_the_users_back(store, users):
    users.execute("INSERT INTO orders VALUES (1)")
    store.insert([new_job(), new_job()], users)

    users.rollback()

    assert ([], []) == (orders(store), everything(store))


@pytest.mark.needs("joins_transactions")
def test_a_batch_in_the_users_transaction_is_all_or_nothing(store, users):
    """They may catch the error and commit what they have: that must not be half a batch."""
    users.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(CANNOT_BE_STORED):
        store.insert([new_job(dedupe="k"), new_job(priority=UNSTORABLE)], users)
    assert in_transaction(users)
    users.commit()

    assert ([1], []) == (orders(store), everything(store))


@pytest.mark.needs("joins_transactions")
def test_in_the_users_transaction_a_held_key_answers_with_its_holder(store, users):
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
def test_the_users_row_factory_is_theirs(store, users, factory):
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
def test_the_users_row_factory_is_theirs_on_a_server(store, users, factory):
    put(store, dedupe="k")
    users.row_factory, users.cursor_factory = factory, psycopg.RawCursor

    jobs = store.insert([new_job(), new_job(dedupe="k")], users)

    assert (factory, psycopg.RawCursor) == (users.row_factory, users.cursor_factory)
    users.commit()
    assert sorted(ids(everything(store))) == sorted(ids(jobs))


@pytest.mark.needs("joins_transactions")
def test_a_connection_without_a_transaction_is_refused(store, users):
    """In autocommit mode every statement of ours would be a commit of its own."""
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
    """On the same server: the jobs would be there, and nobody would run them."""
    make_tables(postgres_url)

    with (
        psycopg.connect(postgres_url) as other,
        pytest.raises(BadConnection, match=f"it is not to {re.escape(store.where)}"),
    ):
        store.insert([new_job()], other)

    assert [] == everything(store)


@pytest.mark.parametrize("connection", ["sqlite:///jobs.db", 7, object()], ids=["text", "number", "object"])
def test_what_is_no_connection_is_refused_and_shown(store, connection):
    with pytest.raises(BadConnection, match=r"it is no (sqlite3 )?connection|lets nobody else into"):
        store.insert([new_job()], connection)


@pytest.mark.needs("joins_transactions")
def test_a_delay_counts_from_the_insert_in_the_users_transaction(store, users, clock):
    (job,) = store.insert([new_job(delay=HOUR)], users)
    users.commit()

    assert to_datetime(clock() + HOUR) == job.run_at == store.get(job.id).run_at


# Complete in a transaction


def test_the_users_rows_and_the_completion_are_committed_together(store, users):
    claimed = put_and_take(store)
    follow_up = new_job("next")

    with store.transaction(claimed, lambda: Outcome(Kind.COMPLETED, result="7", follow_ups=(follow_up,))) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        assert ([], Status.PROCESSING, None) == (orders(store), store.get(claimed.id).status, store.get(follow_up.id))

    assert [1] == orders(store)
    assert (Status.COMPLETED, 7) == (store.get(claimed.id).status, store.get(claimed.id).result)
    assert Status.PENDING == store.get(follow_up.id).status


def test_the_outcome_is_asked_for_when_the_block_is_over(store):
    claimed = put_and_take(store)
    result = []

    with store.transaction(claimed, lambda: Outcome(Kind.COMPLETED, result=result[0])):
        result.append('"set inside"')

    assert "set inside" == store.get(claimed.id).result


def test_nothing_is_written_if_the_block_raises(store, users):
    claimed = put_and_take(store)
    before = snapshot(store)

    def work():
        with store.transaction(claimed, lambda: COMPLETED) as connection:
            connection.execute("INSERT INTO orders VALUES (1)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()

    assert ([], before) == (orders(store), snapshot(store))
    assert settle_one(store, claimed, COMPLETED)


def test_the_users_own_error_comes_out_as_it_was(store):
    """Their code may know what to do about a table that is not there."""
    claimed = put_and_take(store)

    no_table = pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable), match="missing")
    with no_table, store.transaction(claimed, lambda: COMPLETED) as connection:
        connection.execute("INSERT INTO missing VALUES (1)")


def test_nothing_is_written_if_the_outcome_cannot_be_told(store, users):
    claimed = put_and_take(store)

    def outcome():
        raise ValueError("no JSON")

    with pytest.raises(ValueError, match="no JSON"), store.transaction(claimed, outcome) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")

    assert ([], Status.PROCESSING) == (orders(store), store.get(claimed.id).status)


def lost_by_burial(store, claimed):
    store.bury("w1", "stood still")


def lost_to_another(store, claimed):
    store.bury("w1", "stood still")
    take(store)


def lost_to_reconciliation(store, claimed):
    store.complete([claimed.id])


def lost_by_release(store, claimed):
    settle_one(store, claimed, RELEASED)


def lost_to_its_own_completion(store, claimed):
    settle_one(store, claimed, COMPLETED)


@pytest.mark.parametrize(
    "lose",
    [lost_by_burial, lost_to_another, lost_to_reconciliation, lost_by_release, lost_to_its_own_completion],
    ids=lambda f: f.__name__,
)
def test_nothing_is_written_by_one_who_lost_the_lease(store, users, lose):
    """The effect is exactly once: whoever holds the job now will have it, or it was had already."""
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")
    lose(store, claimed)
    before = snapshot(store)

    with pytest.raises(LeaseLost), store.transaction(claimed, lambda: COMPLETED) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")

    assert ([], before) == (orders(store), snapshot(store))


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_block_that_ends_the_transaction_itself_does_not_complete_the_job(store, users, end):
    """What it did is no longer one with the completion, so it must hear of it."""
    claimed = put_and_take(store)

    def work():
        with store.transaction(claimed, lambda: COMPLETED) as connection:
            connection.execute("INSERT INTO orders VALUES (1)")
            getattr(connection, end)()

    with pytest.raises(TransactionOver, match="leave both to"):
        work()

    assert (Status.PROCESSING, 1) == place_of(store, claimed.id)
    assert settle_one(store, claimed, COMPLETED)


@pytest.mark.only("sqlite")
def test_a_block_that_holds_the_only_writer_for_too_long_is_cut_off(store, users, monkeypatch):
    monkeypatch.setattr(sqlite_store, "TRANSACTION_SECONDS", 0.02)
    claimed = put_and_take(store)

    def hold_on():
        with store.transaction(claimed, lambda: COMPLETED) as connection:
            while True:
                connection.execute("INSERT INTO orders DEFAULT VALUES")

    with pytest.raises(TransactionOver, match="nobody else can write"):
        hold_on()

    assert ([], Status.PROCESSING) == (orders(store), store.get(claimed.id).status)
    assert settle_one(store, claimed, COMPLETED)


@pytest.mark.only("sqlite")
def test_others_can_write_while_a_block_that_was_cut_off_has_not_come_back(store, users, monkeypatch):
    """Nor can it write any more, when it does: its rows would be committed one by one."""
    monkeypatch.setattr(sqlite_store, "TRANSACTION_SECONDS", 0.02)
    claimed = put_and_take(store)
    errors = []

    def hold_on():
        with store.transaction(claimed, lambda: COMPLETED) as connection:
            connection.execute("INSERT INTO orders VALUES (1)")
            put(store)  # waits until the block was cut off
            try:
                connection.execute("INSERT INTO orders VALUES (2)")
            except sqlite3.OperationalError as error:
                errors.append(str(error))

    with pytest.raises(TransactionOver):
        hold_on()

    assert ["attempt to write a readonly database"] == errors
    assert ([], Status.PROCESSING) == (orders(store), store.get(claimed.id).status)


@pytest.mark.only("postgresql")
def test_others_work_while_a_block_has_its_transaction_open(open_store, users):
    """It has a connection of its own, and has locked nothing but what it wrote."""
    ours, theirs = open_store(), open_store()
    claimed = put_and_take(ours)

    with ours.transaction(claimed, lambda: COMPLETED) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        for store in (ours, theirs):
            assert settle_one(store, put_and_take(store), COMPLETED)
            assert Status.PROCESSING == store.get(claimed.id).status

    assert ([1], Status.COMPLETED) == (orders(ours), ours.get(claimed.id).status)


@pytest.mark.only("postgresql")
def test_a_block_has_the_limits_of_the_users_own_database_and_leaves_none_behind(store, by_hand):
    claimed = put_and_take(store)
    (limits,) = by_hand("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')")

    with store.transaction(claimed, lambda: COMPLETED) as connection:
        rows = connection.execute("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')")
        assert limits == rows.fetchone()
        connection.execute("SET application_name = 'mine'")

    with store.database.borrow("apart") as again:
        assert again is connection
        assert ("windlass",) == again.execute("SELECT current_setting('application_name')").fetchone()


def test_a_cancelled_job_that_completes_in_its_transaction_is_completed(store):
    claimed = put_and_take(store)
    store.cancel(claimed.id)

    with store.transaction(claimed, lambda: COMPLETED):
        pass

    assert Status.COMPLETED == store.get(claimed.id).status


def test_the_store_goes_on_after_each_way_out_of_a_transaction(store):
    claimed = put_and_take(store)
    with pytest.raises(KeyboardInterrupt), store.transaction(claimed, lambda: COMPLETED):
        raise KeyboardInterrupt

    assert settle_one(store, claimed, COMPLETED)
    assert Status.PENDING == put(store).status
