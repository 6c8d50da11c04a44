"""The other dedupe modes: what an enqueue does if another job holds its key, and how long a job holds it."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import (
    DAY,
    FAILED,
    MINUTE,
    RETRIED,
    SNOOZED,
    finish,
    ids,
    new_job,
    put,
    select,
    settle_one,
    snapshot,
    take,
)
from tests.conformance.keyed_jobs import (
    DEBOUNCE,
    REJECT,
    REPLACE,
    STARTED,
    THROTTLE,
    call,
    due_in,
    keyed,
    start,
    waiting,
)
from treadle import Dedupe
from treadle.clock import SECOND
from treadle.dedupe import rule_text
from treadle.errors import KeyHeld
from treadle.job import Status
from treadle.outcome import COMPLETED

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


def test_a_successor_until_started_frees_its_key_when_it_starts(store):
    call(store, REPLACE)
    running = start(store)
    second = call(store, REPLACE | STARTED)
    assert settle_one(store, running, COMPLETED)

    assert second.id == start(store).id
    assert second.id != put(store, dedupe="k").id


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
