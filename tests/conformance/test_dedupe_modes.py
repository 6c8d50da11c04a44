"""Dedupe modes: what an enqueue does if another job holds its key, and how long a job holds it."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import (
    DAY,
    FAILED,
    HOUR,
    MINUTE,
    RETRIED,
    SNOOZED,
    enlist,
    everything,
    finish,
    ids,
    new_job,
    put,
    select,
    settle_one,
    snapshot,
    take,
)
from tests.conformance.test_by_hand import delete_job
from treadle import Dedupe
from treadle.clock import SECOND, from_datetime
from treadle.dedupe import rule_text
from treadle.errors import KeyHeld
from treadle.job import NewJob, Reschedule, Status
from treadle.outcome import CANCELLED, COMPLETED, RELEASED, Outcome, OutcomeKind
from treadle.stores.base import ClaimRequest
from treadle.stores.rows import Due

REPLACE = {"mode": "replace"}
DEBOUNCE = {"mode": "debounce", "wait": 5, "at_most": 12}
THROTTLE = {"mode": "throttle", "period": 3600}
REJECT = {"mode": "reject"}
STARTED = {"until": "started"}


def keyed(rule=REPLACE, key="k", **options) -> NewJob:
    return new_job(dedupe=key, dedupe_rule=rule_text(Dedupe(key, **rule)), **options)


def call(store, rule=REPLACE, key="k", **options):
    return store.insert([keyed(rule, key, **options)])[0]


def waiting(store):
    return sorted(job.id for job in everything(store) if job.status is Status.PENDING)


def start(store):
    (claimed,) = take(store)
    return claimed


def due_in(store, id) -> float:
    """Seconds from now until the job is due."""
    return (from_datetime(store.get(id).run_at) - store.now()) / SECOND


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


# Debounce


def test_debounce_moves_the_start_with_each_call_and_the_newest_payload_wins(store, clock):
    call(store, DEBOUNCE, payload='{"n":1}')
    clock.advance(3)
    second = call(store, DEBOUNCE, payload='{"n":2}')

    assert 5 == due_in(store, second.id)
    assert [] == take(store)
    clock.advance(5)
    (claimed,) = take(store)
    assert (second.id, {"n": 2}) == (claimed.id, store.get(claimed.id).payload)


def test_debounce_never_waits_longer_than_its_ceiling_from_the_first_call(store, clock):
    found = []
    for _ in range(5):
        job = call(store, DEBOUNCE)
        found.append(due_in(store, job.id))
        clock.advance(3)

    assert [5, 5, 5, 3, 0] == found  # calls at 0, 3, 6, 9 and 12 seconds; the ceiling is at 12


def test_a_new_debounce_begins_after_the_start(store, clock):
    call(store, DEBOUNCE)
    clock.advance(11)
    running = start(store)
    second = call(store, DEBOUNCE)
    clock.advance(3)
    third = call(store, DEBOUNCE)
    clock.advance(3)

    settle_one(store, running, COMPLETED)

    assert f"replaced by {third.id}" == store.get(second.id).error
    assert 2 == due_in(store, third.id)
    fourth = call(store, DEBOUNCE)
    assert 5 == due_in(store, fourth.id)
    clock.advance(4)
    assert 2 == due_in(store, call(store, DEBOUNCE).id)  # 12 seconds after the first call of this debounce


def test_the_last_of_a_bulk_is_debounced(store):
    batch = [keyed(DEBOUNCE) for _ in range(3)]
    store.insert(batch)

    assert [batch[2].id] == waiting(store)
    assert 5 == due_in(store, batch[2].id)


# Throttle


def test_throttle_stores_one_job_per_period_even_if_it_has_ended(store, clock):
    first = call(store, THROTTLE)
    settle_one(store, start(store), COMPLETED)

    again = call(store, THROTTLE)
    clock.advance(3600 - 1)
    late = call(store, THROTTLE)
    clock.advance(1)
    second = call(store, THROTTLE)

    assert [first.id, first.id] == ids([again, late])
    assert (Status.COMPLETED, "throttle") == (late.status, late.dedupe_mode)
    assert [second.id] == waiting(store)


def test_throttle_stores_the_next_job_though_the_first_still_waits_or_runs(store, clock):
    first = call(store, THROTTLE)
    clock.advance(3600)
    second = call(store, THROTTLE)
    clock.advance(3600)
    running = take(store)
    third = call(store, THROTTLE)

    assert {first.id, second.id} == {claimed.id for claimed in running}
    for claimed in running:
        settle_one(store, claimed, COMPLETED)
    assert third.id == call(store, THROTTLE).id


def test_a_throttled_job_is_kept_as_long_as_its_key(store, clock):
    first = call(store, {"mode": "throttle", "period": 3 * 86_400})
    settle_one(store, start(store), COMPLETED)
    clock.advance(2 * 86_400)

    assert 0 == store.prune([Status.COMPLETED], DAY, 100)
    assert first.id == call(store, THROTTLE).id
    clock.advance(2 * 86_400)
    assert 1 == store.prune([Status.COMPLETED], DAY, 100)


def test_prune_deletes_keys_whose_period_is_over(store, clock):
    call(store, THROTTLE)
    settle_one(store, start(store), COMPLETED)
    clock.advance(3599)
    store.prune([], 0, 100)
    before = select(store, "SELECT key FROM treadle.dedupe")
    clock.advance(1)
    store.prune([], 0, 100)

    assert ([("k",)], []) == (before, select(store, "SELECT key FROM treadle.dedupe"))


def test_deleting_a_throttled_job_frees_its_key(store):
    first = call(store, THROTTLE)
    store.delete(first.id)

    second = call(store, THROTTLE)

    assert [second.id] == waiting(store)


def test_a_throttled_job_that_was_cancelled_still_holds_its_key(store):
    first = call(store, THROTTLE)
    store.cancel(first.id)

    assert (first.id, Status.CANCELLED) == ((again := call(store, THROTTLE)).id, again.status)


def test_a_throttled_job_can_be_retried_with_its_own_key(store):
    first = finish(store, FAILED, dedupe="k", dedupe_rule=rule_text(Dedupe("k", **THROTTLE)))

    assert Status.PENDING is store.retry(first.id).status


# Reject


def test_reject_raises_and_stores_nothing(store):
    holder = call(store, REJECT)
    before = snapshot(store)

    with pytest.raises(
        KeyHeld, match=r"the job was not stored: its dedupe key \(sha256 [0-9a-f]{16}\) is held"
    ) as held:
        store.insert([new_job(), keyed(REJECT)])

    assert (holder.id, "k") == (held.value.holder, held.value.key)
    assert before == snapshot(store)


def test_reject_stores_a_job_whose_key_is_free(store):
    first = finish(store, COMPLETED, dedupe="k")
    second = call(store, REJECT)

    assert first.id != second.id
    assert [second.id] == ids(take(store))


def test_in_a_commit_group_only_the_rejected_caller_gets_the_error(store):
    call(store, REJECT)

    first, second = store.insert_groups([[new_job()], [keyed(REJECT)]])

    assert 1 == len(first)
    assert isinstance(second, KeyHeld)


# Until started


@pytest.mark.parametrize("rule", [STARTED, REJECT | STARTED, REPLACE | STARTED, DEBOUNCE | STARTED], ids=str)
def test_a_key_until_started_is_free_when_its_job_has_started(store, clock, rule):
    call(store, rule)
    clock.advance(20)
    running = start(store)

    second = call(store, rule)
    clock.advance(20)

    assert [second.id] == ids(take(store))
    settle_one(store, running, COMPLETED)
    assert second.id == store.get(second.id).id


def test_a_key_until_started_is_held_while_its_job_waits_to_start(store):
    first = call(store, STARTED)

    assert first.id == call(store, STARTED).id
    assert first.id == put(store, dedupe="k").id
    with pytest.raises(KeyHeld):
        call(store, REJECT | STARTED)


@pytest.mark.parametrize("outcome", [RETRIED, SNOOZED], ids=lambda outcome: outcome.kind.value)
def test_a_key_until_started_stays_free_when_its_job_waits_again(store, outcome):
    call(store, STARTED)
    settle_one(store, start(store), outcome)

    second = call(store, STARTED)

    assert 2 == len(waiting(store))
    assert second.id == call(store, STARTED).id


def test_the_end_of_a_job_does_not_release_the_key_that_another_has_by_now(store):
    call(store, STARTED)
    running = start(store)
    second = call(store, STARTED)

    settle_one(store, running, COMPLETED)

    assert second.id == call(store, STARTED).id


# Retry by hand


@pytest.mark.parametrize("rule", [REPLACE, DEBOUNCE, THROTTLE, REJECT, STARTED], ids=str)
def test_a_manual_retry_does_not_take_a_key_from_its_holder(store, clock, rule):
    first = call(store, rule)
    clock.advance(5)
    settle_one(store, start(store), FAILED)
    clock.advance(3600)
    holder = call(store, rule)

    with pytest.raises(KeyHeld, match="cannot be retried"):
        store.retry(first.id)

    assert [holder.id] == waiting(store)


@pytest.mark.parametrize("rule", [REPLACE, DEBOUNCE, THROTTLE, REJECT, STARTED], ids=str)
def test_a_manual_retry_holds_its_key_again(store, clock, rule):
    first = call(store, rule)
    clock.advance(5)
    settle_one(store, start(store), FAILED)
    clock.advance(MINUTE // SECOND)

    store.retry(first.id)

    assert first.id == put(store, dedupe="k").id


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
