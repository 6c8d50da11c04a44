"""Dedupe keys: a job holds its key from enqueue until a final status."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import (
    FAILED,
    RETRIED,
    SNOOZED,
    everything,
    finish,
    ids,
    new_job,
    put,
    put_and_take,
    put_many,
    settle_one,
    snapshot,
    take,
)
from treadle.dedupe import make_dedupe_key
from treadle.errors import KeyHeld
from treadle.job import Status
from treadle.outcome import CANCELLED, COMPLETED, RELEASED
from treadle.stores.postgres.connection import NOTHING, Transaction


def test_enqueuing_with_a_key_in_use_returns_the_first_job(store):
    first = put(store, dedupe="k")

    second = put(store, dedupe="k")

    assert first == second
    assert [first] == everything(store)


def test_the_returned_holder_of_a_key_has_its_current_state(store):
    claimed = put_and_take(store, dedupe="k")

    answer = put(store, dedupe="k")

    assert (claimed.id, Status.PROCESSING) == (answer.id, answer.status)


def test_two_jobs_of_a_batch_with_the_same_key_are_one_job(store):
    first, second = store.insert([new_job(dedupe="k"), new_job(dedupe="k")])

    assert first == second
    assert 1 == len(everything(store))


def test_two_groups_with_the_same_key_are_one_job(store):
    first, second = store.insert_groups([[new_job(dedupe="k")], [new_job(dedupe="k"), new_job()]])

    assert first[0] == second[0]
    assert 2 == len(everything(store))


def test_a_batch_returns_a_result_for_each_job(store):
    holder = put(store, dedupe="held")
    batch = [new_job(), new_job(dedupe="held"), new_job(dedupe="free")]

    answers = store.insert(batch)

    assert [batch[0].id, holder.id, batch[2].id] == ids(answers)


def test_a_repeated_batch_returns_a_result_for_each_job_again(store):
    """One of its ids is already stored, one is new, and the key of one is in use."""
    holder = put(store, dedupe="held")
    there, new, kept_out = new_job(), new_job(), new_job(dedupe="held")
    store.insert([there])

    answers = store.insert([new, kept_out, there])

    assert [new.id, holder.id, there.id] == ids(answers)


def test_a_repeated_insert_returns_its_own_job_and_not_the_new_holder_of_the_key(store):
    new = new_job(dedupe="k")
    store.insert([new])
    settle_one(store, take(store)[0], COMPLETED)
    put(store, dedupe="k")

    (answer,) = store.insert([new])

    assert (new.id, Status.COMPLETED) == (answer.id, answer.status)


def test_a_repeated_insert_of_a_job_that_ended_does_not_take_the_key(store):
    new = new_job(dedupe="k")
    store.insert([new])
    settle_one(store, take(store)[0], COMPLETED)
    store.insert([new])

    later = put(store, dedupe="k")

    assert new.id != later.id


def test_two_tenants_can_use_the_same_key(store):
    first = put(store, tenant="acme", dedupe="k")

    second = put(store, tenant="other", dedupe="k")

    assert {first.id, second.id} == set(ids(everything(store)))


def test_jobs_without_a_key_are_never_merged(store):
    put_many(store, 3)

    assert [{"count": 3}] == store.counts(()).rows


@pytest.mark.parametrize("outcome", [COMPLETED, FAILED, CANCELLED], ids=lambda outcome: outcome.kind.value)
def test_the_key_is_free_when_its_holder_has_ended(store, outcome):
    first = finish(store, outcome, dedupe="k")

    second = put(store, dedupe="k")

    assert first.id != second.id


@pytest.mark.parametrize("verb", ["cancel", "delete", "complete"])
def test_the_key_is_free_when_its_waiting_holder_was_ended_by_hand(store, verb):
    first = put(store, dedupe="k")
    getattr(store, verb)([first.id] if verb == "complete" else first.id)

    second = put(store, dedupe="k")

    assert first.id != second.id


def test_the_key_is_free_when_its_running_holder_was_reconciled(store):
    first = put_and_take(store, dedupe="k")
    store.complete([first.id])

    assert first.id != put(store, dedupe="k").id


@pytest.mark.parametrize("outcome", [RETRIED, SNOOZED, RELEASED], ids=lambda outcome: outcome.kind.value)
def test_the_key_is_held_across_automatic_retries(store, outcome):
    claimed = put_and_take(store, dedupe="k")
    settle_one(store, claimed, outcome)

    assert claimed.id == put(store, dedupe="k").id
    assert 1 == len(everything(store))


def test_a_manual_retry_takes_the_key_again(store):
    first = finish(store, FAILED, dedupe="k")

    store.retry(first.id)

    assert first.id == put(store, dedupe="k").id


def test_a_manual_retry_names_the_job_that_holds_the_key(store):
    first = finish(store, FAILED, dedupe="k", tenant="t")
    holder = put(store, dedupe="k", tenant="t")
    before = snapshot(store)

    with pytest.raises(KeyHeld) as held:
        store.retry(first.id)

    assert (first.id, "k", holder.id) == (held.value.id, held.value.key, held.value.holder)
    assert f"td.cancel('{holder.id}')" in str(held.value)
    assert before == snapshot(store)


def test_the_error_for_a_key_that_is_held_does_not_show_the_key(store):
    """It may be made of the payload."""
    key = make_dedupe_key("login", "t", {"password": "hunter2"})
    first = finish(store, FAILED, dedupe=key, tenant="t")
    put(store, dedupe=key, tenant="t")

    with pytest.raises(KeyHeld, match=r"its dedupe key \(sha256 [0-9a-f]{16}\) is held by job") as held:
        store.retry(first.id)

    assert "hunter2" not in str(held.value)


def test_a_manual_retry_works_when_the_other_holder_has_ended(store):
    first = finish(store, FAILED, dedupe="k")
    second = finish(store, COMPLETED, dedupe="k")

    store.retry(first.id)

    with pytest.raises(KeyHeld):
        store.retry(second.id)


def test_deleting_an_old_job_leaves_the_key_to_its_new_holder(store):
    first = finish(store, FAILED, dedupe="k")
    holder = put(store, dedupe="k")

    store.delete(first.id)

    assert holder == put(store, dedupe="k")


def test_a_repeated_batch_with_its_own_keys_is_stored_once(store):
    batch = [new_job(dedupe="a"), new_job(dedupe="b")]
    store.insert(batch)

    assert ids(batch) == ids(store.insert(batch))
    assert [{"count": 2}] == store.counts(()).rows


def test_one_id_twice_in_a_batch_holds_its_key_once(store):
    new = new_job(dedupe="k")

    jobs = store.insert([new, new])

    assert [new.id, new.id] == ids(jobs)
    assert [new.id] == ids(everything(store))


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("taken", [False, True])
def test_only_one_job_holds_a_key_even_if_its_holder_is_deleted_meanwhile(open_store, monkeypatch, taken):
    """The holder is deleted between two statements of an insert. On SQLite, no other writer can do that."""
    ours, theirs = open_store(), open_store()
    first, others = put(theirs, dedupe="k"), []
    execute, deleted = Transaction.execute, []

    def meanwhile(tx, sql, parameters=NOTHING):
        found = execute(tx, sql, parameters)
        if sql == tx.sql.KEY_STATE and not deleted:
            deleted.append(theirs.delete(first.id))
            if taken:
                others.append(put(theirs, dedupe="k"))
        return found

    monkeypatch.setattr(Transaction, "execute", meanwhile)
    second = put(ours, dedupe="k")

    assert 1 == len(deleted)
    assert [second] == (others or [second])
    assert [second] == everything(ours)
    assert second == put(theirs, dedupe="k")
