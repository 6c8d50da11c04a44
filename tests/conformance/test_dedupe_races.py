"""Races for dedupe keys: open transactions and concurrent enqueues with the same key."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from tests.conformance.helpers import (
    at_once,
    by_hand,
    everything,
    ids,
    new_job,
    put,
    take,
)
from treadle import Treadle


@pytest.fixture
def users(open_store):
    """A user's own connection, with an open transaction."""
    store = open_store()
    store.open()
    connection = by_hand(store)
    yield connection
    connection.close()


def waiting(call):
    """Start the call in a thread where it blocks. Return the thread and the list that will get the result."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    return thread, answers


@pytest.mark.needs("joins_transactions")
def test_an_enqueue_with_a_key_that_an_open_transaction_holds_waits_and_gets_its_holder(open_store, users):
    ours, theirs = open_store(), open_store()
    theirs.open()
    (holder,) = ours.insert([new_job(dedupe="k")], users)

    thread, answers = waiting(lambda: put(theirs, dedupe="k"))
    users.commit()
    thread.join()

    assert [holder.id] == ids(answers)
    assert [holder.id] == ids(everything(ours))


@pytest.mark.needs("joins_transactions")
def test_an_enqueue_with_a_key_that_an_open_transaction_rolls_back_takes_it(open_store, users):
    ours, theirs = open_store(), open_store()
    theirs.open()
    (never,) = ours.insert([new_job(dedupe="k")], users)

    thread, answers = waiting(lambda: put(theirs, dedupe="k"))
    users.rollback()
    thread.join()

    assert never.id not in ids(answers)
    assert ids(answers) == ids(everything(ours))


@pytest.mark.only("postgresql")
def test_the_second_of_two_open_transactions_with_one_key_gets_the_job_of_the_first(open_store, users):
    ours, theirs = open_store(), open_store()
    theirs.open()
    (holder,) = ours.insert([new_job(dedupe="k")], users)

    with psycopg.connect(theirs.url) as second:
        thread, answers = waiting(lambda: theirs.insert([new_job(), new_job(dedupe="k")], second))
        users.commit()
        thread.join()

    assert holder.id == answers[0][1].id
    assert {holder.id, answers[0][0].id} == set(ids(everything(ours)))


@pytest.mark.only("postgresql")
def test_an_enqueue_that_waits_for_a_key_does_not_hold_up_others_of_its_process(open_store, users):
    """Otherwise, a shared commit would take as long as the slowest transaction of any user."""
    ours = open_store()
    (holder,) = ours.insert([new_job(dedupe="k")], users)
    td = Treadle(ours.url)
    td._use(ours)

    thread, answers = waiting(lambda: td.enqueue("noop", dedupe="k"))
    plain = td.enqueue("noop")
    assert [plain.id] == ids(take(ours))
    assert thread.is_alive()
    users.commit()
    thread.join()

    assert [holder.id] == ids(answers)


def test_racing_enqueues_of_the_same_keys_in_different_orders_do_not_deadlock(open_store):
    handles = [open_store() for _ in range(2)]
    handles[0].open()
    keys = [f"key-{i}" for i in range(20)]

    def enqueue(store, keys):
        return {job.id for job in store.insert([new_job(dedupe=key) for key in keys])}

    answers = at_once(lambda: enqueue(handles[0], keys), lambda: enqueue(handles[1], keys[::-1]))

    assert answers[0] == answers[1] == set(ids(everything(handles[0])))
