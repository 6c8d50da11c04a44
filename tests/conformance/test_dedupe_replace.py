"""Dedupe with `replace`: the newest job wins, and waits for a holder that runs."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import FAILED, HOUR, RETRIED, SNOOZED, enlist, ids, put, settle_one, take
from tests.conformance.keyed_jobs import REPLACE, STARTED, call, due_in, keyed, start, waiting
from tests.conformance.test_by_hand import delete_job
from treadle.clock import from_datetime
from treadle.job import Reschedule, Status
from treadle.outcome import CANCELLED, COMPLETED, RELEASED, Outcome, OutcomeKind
from treadle.stores.base import ClaimRequest
from treadle.stores.rows import Due

# Replace


def test_replace_ends_a_waiting_holder_and_says_by_which_job(store):
    first = call(store, payload='{"n":1}')
    second = call(store, payload='{"n":2}')

    ended = store.get(first.id)
    assert (Status.CANCELLED, f"replaced by {second.id}") == (ended.status, ended.error)
    assert ("replace", {"n": 2}) == (second.dedupe_mode, second.payload)
    assert second == store.get(second.id)
    assert [second.id] == ids(take(store))


def test_replace_takes_a_key_that_is_free(store):
    job = call(store)

    assert job == store.get(job.id)
    assert [job.id] == ids(take(store))


def test_replace_of_a_plain_holder_and_a_plain_enqueue_after_a_replace(store):
    plain = put(store, dedupe="k")
    job = call(store)

    assert Status.CANCELLED is store.get(plain.id).status
    assert job.id == put(store, dedupe="k").id


def test_replace_of_a_running_holder_stores_one_successor_that_starts_when_it_has_ended(store):
    first = call(store)
    running = start(store)
    second = call(store)
    third = call(store, delay=HOUR)
    fourth = call(store)

    assert [] == take(store)
    assert [f"replaced by {third.id}", f"replaced by {fourth.id}"] == [
        store.get(job.id).error for job in (second, third)
    ]
    assert settle_one(store, running, COMPLETED)
    assert [fourth.id] == ids(take(store))
    assert {Status.COMPLETED} == {store.get(first.id).status}


def test_no_time_is_known_at_which_a_successor_is_due(store, clock):
    """It waits for the holder of its key, and not for a time."""
    call(store)
    start(store)
    call(store)

    assert Due(False) == take(store).due == store.due(ClaimRequest(limit=1))
    assert [None] == [row.next_due for row in store.queue_stats()]
    put(store, delay=HOUR)
    assert clock() + HOUR == take(store).due.next_at == store.queue_stats()[0].next_due


def test_a_successor_keeps_its_own_run_at(store, clock):
    call(store)
    running = start(store)
    second = call(store, delay=HOUR)

    settle_one(store, running, COMPLETED)

    assert [] == take(store)
    assert 3600 == due_in(store, second.id)
    clock.advance(3600)
    assert [second.id] == ids(take(store))


@pytest.mark.parametrize("outcome", [COMPLETED, FAILED, CANCELLED], ids=lambda outcome: outcome.kind.value)
def test_a_successor_starts_however_the_holder_ended(store, outcome):
    call(store)
    running = start(store)
    second = call(store)

    settle_one(store, running, outcome)

    assert [second.id] == ids(take(store))
    assert second.id == put(store, dedupe="k").id


@pytest.mark.parametrize("outcome", [RETRIED, SNOOZED, RELEASED], ids=lambda outcome: outcome.kind.value)
def test_a_successor_waits_while_the_holder_is_retried(store, outcome):
    first = call(store)
    running = start(store)
    second = call(store)

    settle_one(store, running, outcome)

    again = start(store)
    assert first.id == again.id
    settle_one(store, again, COMPLETED)
    assert [second.id] == ids(take(store))


def test_replace_ends_a_holder_that_waits_for_its_retry_and_its_successor(store):
    first = call(store)
    running = start(store)
    second = call(store)
    settle_one(store, running, RETRIED)

    third = call(store)

    assert [f"replaced by {third.id}"] * 2 == [store.get(job.id).error for job in (first, second)]
    assert [third.id] == ids(take(store))


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_a_successor_starts_when_its_waiting_holder_is_ended_by_hand(store, verb):
    first = call(store)
    running = start(store)
    second = call(store)
    settle_one(store, running, RETRIED)

    getattr(store, verb)(first.id)

    assert [second.id] == ids(take(store))


def test_a_successor_starts_when_its_running_holder_is_reconciled(store):
    call(store)
    running = start(store)
    second = call(store)

    store.complete([running.id])

    assert [second.id] == ids(take(store))


def test_a_successor_starts_when_the_worker_of_its_holder_is_declared_dead(store):
    call(store, max_attempts=1)
    take(store, worker=enlist(store))
    second = call(store)

    store.declare_dead("w1", "it was lost")

    assert [second.id] == ids(take(store))


@pytest.mark.parametrize("verb", ["cancel", "delete", "complete"])
def test_a_successor_that_is_ended_by_hand_comes_after_nobody(store, verb):
    call(store)
    running = start(store)
    second = call(store)
    getattr(store, verb)([second.id] if verb == "complete" else second.id)

    third = call(store)
    settle_one(store, running, COMPLETED)

    assert [third.id] == ids(take(store))


def test_the_key_is_free_after_the_successor_has_ended(store):
    call(store)
    running = start(store)
    call(store)
    settle_one(store, running, COMPLETED)
    settle_one(store, start(store), COMPLETED)

    third = put(store, dedupe="k")

    assert [third.id] == ids(take(store))


def test_the_last_of_a_bulk_wins(store):
    batch = [keyed(payload=f'{{"n":{n}}}') for n in range(3)]
    other = keyed(key="other")

    answers = store.insert([batch[0], other, *batch[1:]])

    assert [batch[0].id, other.id, batch[1].id, batch[2].id] == ids(answers)
    assert sorted([other.id, batch[2].id]) == waiting(store)
    assert [f"replaced by {batch[1].id}", f"replaced by {batch[2].id}"] == [
        store.get(job.id).error for job in batch[:2]
    ]
    assert answers == [store.get(job.id) for job in answers]


def test_the_last_of_a_bulk_is_the_successor_of_a_running_holder(store):
    call(store)
    running = start(store)
    batch = [keyed() for _ in range(3)]
    store.insert(batch)

    settle_one(store, running, COMPLETED)

    assert [batch[2].id] == ids(take(store))


def test_a_repeated_replace_returns_its_own_job(store):
    new = keyed()
    store.insert([new])
    later = call(store)

    (answer,) = store.insert([new])

    assert (new.id, Status.CANCELLED) == (answer.id, answer.status)
    assert [later.id] == waiting(store)


def test_the_same_request_twice_in_a_bulk_is_one_job(store):
    new = keyed()

    answers = store.insert([new, new])

    assert [new.id, new.id] == ids(answers)
    assert [new.id] == ids(take(store))


def test_each_tenant_replaces_its_own(store):
    mine = call(store, tenant="a")
    theirs = call(store, tenant="b")

    assert sorted([mine.id, theirs.id]) == waiting(store)


def test_a_follow_up_replaces_at_settle(store):
    first = put(store, "other", dedupe="k", delay=HOUR)
    put(store)
    running = start(store)
    follow_up = keyed()

    settle_one(store, running, Outcome(OutcomeKind.COMPLETED, follow_ups=(follow_up,)))

    assert f"replaced by {follow_up.id}" == store.get(first.id).error
    assert [follow_up.id] == ids(take(store))


def test_a_follow_up_with_the_key_of_its_own_job_replaces_the_successor(store):
    call(store)
    running = start(store)
    second = call(store)
    follow_up = keyed()

    settle_one(store, running, Outcome(OutcomeKind.COMPLETED, follow_ups=(follow_up,)))

    assert f"replaced by {follow_up.id}" == store.get(second.id).error
    assert [follow_up.id] == ids(take(store))


def test_a_successor_that_is_due_waits_for_its_key(store, clock):
    call(store)
    running = start(store)
    second = call(store)

    assert second.waits_for_key
    assert second == store.get(second.id)
    assert clock() == from_datetime(second.run_at)
    assert [] == take(store)
    settle_one(store, running, COMPLETED)
    assert not store.get(second.id).waits_for_key
    assert [second.id] == ids(take(store))


def test_a_successor_that_is_rescheduled_still_waits_for_its_key(store):
    call(store)
    running = start(store)
    second = call(store)
    store.reschedule(second.id, Reschedule(priority=5))

    assert [] == take(store)
    settle_one(store, running, COMPLETED)
    assert [second.id] == ids(take(store))


# What is broken by hand


@pytest.mark.by_hand
def test_a_successor_whose_holder_was_deleted_by_hand_takes_the_key(store, by_hand):
    first = call(store)
    start(store)
    second = call(store)
    delete_job(by_hand, first.id)

    third = put(store, dedupe="k")

    assert second.id == third.id
    assert [second.id] == ids(take(store))
    assert second.id == put(store, dedupe="k").id


@pytest.mark.by_hand
def test_such_a_successor_holds_the_key_as_long_as_its_rule_says(store, by_hand):
    first = call(store)
    start(store)
    second = call(store, REPLACE | STARTED)
    delete_job(by_hand, first.id)

    assert second.id == put(store, dedupe="k").id
    assert [second.id] == ids(take(store))
    assert second.id != put(store, dedupe="k").id
