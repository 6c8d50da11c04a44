"""Complete in a transaction: the user's rows, the follow-ups and the completion commit together or not at all."""

from __future__ import annotations

import sqlite3
import threading

import psycopg
import pytest

from tests.conformance.helpers import (
    enlist,
    new_job,
    orders,
    place_of,
    put,
    put_and_take,
    settle_one,
    snapshot,
    take,
)
from treadle.errors import LeaseLost, TransactionOver
from treadle.job import Status
from treadle.outcome import COMPLETED, RELEASED, Outcome, OutcomeKind
from treadle.stores.sqlite import store as sqlite_store


def test_the_users_rows_and_the_completion_are_committed_together(store, users):
    claimed = put_and_take(store)
    follow_up = new_job("next")

    with store.transaction(
        claimed, lambda: Outcome(OutcomeKind.COMPLETED, result="7", follow_ups=(follow_up,))
    ) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        assert ([], Status.PROCESSING, None) == (orders(store), store.get(claimed.id).status, store.get(follow_up.id))

    assert [1] == orders(store)
    assert (Status.COMPLETED, 7) == (store.get(claimed.id).status, store.get(claimed.id).result)
    assert Status.PENDING == store.get(follow_up.id).status


def test_the_outcome_is_computed_when_the_block_ends(store):
    claimed = put_and_take(store)
    result = []

    with store.transaction(claimed, lambda: Outcome(OutcomeKind.COMPLETED, result=result[0])):
        result.append('"set inside"')

    assert "set inside" == store.get(claimed.id).result


def test_without_an_outcome_only_the_users_rows_are_committed(store, users):
    """For a job that is not of this store, and whose lease nobody here has."""
    claimed = put_and_take(store)
    assert settle_one(store, claimed, RELEASED)
    before = snapshot(store)

    with store.transaction(claimed, lambda: None) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")

    assert ([1], before) == (orders(store), snapshot(store))


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


def test_an_error_of_the_users_code_is_raised_unchanged(store):
    """The user's code may handle it, for example a missing table."""
    claimed = put_and_take(store)

    no_table = pytest.raises((sqlite3.OperationalError, psycopg.errors.UndefinedTable), match="missing")
    with no_table, store.transaction(claimed, lambda: COMPLETED) as connection:
        connection.execute("INSERT INTO missing VALUES (1)")


def test_nothing_is_written_if_computing_the_outcome_raises(store, users):
    claimed = put_and_take(store)

    def outcome():
        raise ValueError("no JSON")

    with pytest.raises(ValueError, match="no JSON"), store.transaction(claimed, outcome) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")

    assert ([], Status.PROCESSING) == (orders(store), store.get(claimed.id).status)


def lost_by_declare_dead(store, claimed):
    store.declare_dead("w1", "stood still")


def lost_to_another(store, claimed):
    store.declare_dead("w1", "stood still")
    take(store)


def lost_to_reconciliation(store, claimed):
    store.complete([claimed.id])


def lost_by_release(store, claimed):
    settle_one(store, claimed, RELEASED)


def lost_to_its_own_completion(store, claimed):
    settle_one(store, claimed, COMPLETED)


@pytest.mark.parametrize(
    "lose",
    [lost_by_declare_dead, lost_to_another, lost_to_reconciliation, lost_by_release, lost_to_its_own_completion],
    ids=lambda f: f.__name__,
)
def test_nothing_is_written_by_a_worker_that_lost_the_lease(store, users, lose):
    """The effect happens exactly once: another run will cause it, or has already."""
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")
    lose(store, claimed)
    before = snapshot(store)

    with pytest.raises(LeaseLost), store.transaction(claimed, lambda: COMPLETED) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")

    assert ([], before) == (orders(store), snapshot(store))


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_block_that_ends_the_transaction_itself_does_not_complete_the_job(store, users, end):
    """Its writes no longer commit with the completion, so it gets an error."""
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

    with pytest.raises(TransactionOver, match="no other process can write"):
        hold_on()

    assert ([], Status.PROCESSING) == (orders(store), store.get(claimed.id).status)
    assert settle_one(store, claimed, COMPLETED)


@pytest.mark.only("sqlite")
def test_others_can_write_while_a_block_that_was_cut_off_has_not_come_back(store, users, monkeypatch):
    """When the block returns, it cannot write any more: its rows would be committed one by one."""
    written, cut_off = threading.Event(), sqlite_store._cut_off
    monkeypatch.setattr(sqlite_store, "TRANSACTION_SECONDS", 0.02)
    monkeypatch.setattr(sqlite_store, "_cut_off", lambda connection: (written.wait(), cut_off(connection)))
    claimed = put_and_take(store)
    errors = []

    def hold_on():
        with store.transaction(claimed, lambda: COMPLETED) as connection:
            connection.execute("INSERT INTO orders VALUES (1)")
            written.set()
            put(store)  # waits until the block is cut off
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
    """It has its own connection, and has locked only the rows that it wrote."""
    ours, theirs = open_store(), open_store()
    claimed = put_and_take(ours)

    with ours.transaction(claimed, lambda: COMPLETED) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        for store in (ours, theirs):
            assert settle_one(store, put_and_take(store), COMPLETED)
            assert Status.PROCESSING == store.get(claimed.id).status

    assert ([1], Status.COMPLETED) == (orders(ours), ours.get(claimed.id).status)


@pytest.mark.direct  # RESET gives the session what its pooler has set
@pytest.mark.only("postgresql")
def test_a_block_has_the_timeouts_of_the_users_database_and_leaves_no_settings_on_the_connection(store, by_hand):
    claimed = put_and_take(store)
    (limits,) = by_hand("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')")

    with store.transaction(claimed, lambda: COMPLETED) as connection:
        rows = connection.execute("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')")
        assert limits == rows.fetchone()
        connection.execute("SET application_name = 'mine'")

    with store.database.borrow("apart") as again:
        assert again is connection
        assert ("treadle",) == again.execute("SELECT current_setting('application_name')").fetchone()


def test_a_cancelled_job_that_completes_in_its_transaction_is_completed(store):
    claimed = put_and_take(store)
    store.cancel(claimed.id)

    with store.transaction(claimed, lambda: COMPLETED):
        pass

    assert Status.COMPLETED == store.get(claimed.id).status


def test_the_store_works_after_each_way_to_end_a_transaction(store):
    claimed = put_and_take(store)
    with pytest.raises(KeyboardInterrupt), store.transaction(claimed, lambda: COMPLETED):
        raise KeyboardInterrupt

    assert settle_one(store, claimed, COMPLETED)
    assert Status.PENDING == put(store).status
