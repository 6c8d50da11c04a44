"""The fence: a worker that lost its lease changes nothing."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.conformance.helpers import (
    EVERY_OUTCOME,
    FAILED,
    FINAL_OUTCOMES,
    RETRIED,
    enlist,
    new_job,
    on_libsql,
    on_postgres,
    place_of,
    put,
    put_and_take,
    put_many,
    settle_one,
    snapshot,
    take,
)
from treadle.clock import SECOND
from treadle.errors import LeaseLost
from treadle.job import Progress, Status
from treadle.outcome import CANCELLED, COMPLETED, RELEASED, Outcome, OutcomeKind

by_kind = pytest.mark.parametrize("outcome", EVERY_OUTCOME, ids=lambda outcome: outcome.kind.value)


def lose(store, **options):
    """A lease whose worker was declared dead, and the lease that its job has now."""
    enlist(store, "dead")
    stale = put_and_take(store, worker="dead", **options)
    store.declare_dead("dead", "stood still")
    (current,) = take(store)
    assert stale.id == current.id
    return stale, current


@by_kind
def test_a_worker_that_lost_its_lease_cannot_settle_the_job(store, outcome):
    stale, current = lose(store)
    before = snapshot(store)

    lost = store.settle([(stale, outcome)]).lost

    assert [stale] == lost
    assert before == snapshot(store)
    assert settle_one(store, current, COMPLETED)


@by_kind
def test_a_worker_that_lost_its_lease_cannot_settle_a_waiting_job(store, outcome):
    enlist(store, "dead")
    stale = put_and_take(store, worker="dead")
    store.declare_dead("dead", "stood still")
    before = snapshot(store)

    assert not settle_one(store, stale, outcome)
    assert before == snapshot(store)


@by_kind
def test_a_worker_that_lost_its_lease_cannot_settle_a_finished_job(store, outcome):
    stale, current = lose(store)
    settle_one(store, current, FAILED)
    before = snapshot(store)

    assert not settle_one(store, stale, outcome)
    assert before == snapshot(store)


@by_kind
def test_a_worker_that_lost_its_lease_cannot_settle_a_deleted_job(store, outcome):
    stale, current = lose(store)
    settle_one(store, current, COMPLETED)
    store.delete(current.id)

    assert not settle_one(store, stale, outcome)
    assert [] == store.counts(("status",)).rows


def test_a_lost_lease_does_not_affect_the_rest_of_the_batch(store):
    stale, current = lose(store)
    (other,) = [put_and_take(store)]

    lost = store.settle([(other, COMPLETED), (stale, COMPLETED)]).lost

    assert [stale] == lost
    assert [Status.COMPLETED, Status.PROCESSING] == [store.get(c.id).status for c in (other, current)]


def test_follow_ups_of_a_lost_lease_are_not_stored(store):
    stale, _ = lose(store)
    follow_up = new_job("next")

    settle_one(store, stale, Outcome(OutcomeKind.COMPLETED, follow_ups=(follow_up,)))

    assert None is store.get(follow_up.id)


def test_a_worker_that_lost_its_lease_cannot_report_progress(store):
    stale, current = lose(store)
    store.save_progress([(current, Progress(0.5, "half"))])

    store.save_progress([(stale, Progress(0.9, "nearly"))])

    assert Progress(0.5, "half") == store.get(current.id).progress


def test_a_worker_that_lost_its_lease_cannot_extend_it(store):
    stale, current = lose(store)

    with pytest.raises(LeaseLost) as lost:
        store.extend(stale, 600 * SECOND)

    assert (stale.id, stale.number) == (lost.value.id, lost.value.number)
    assert settle_one(store, current, COMPLETED)


@pytest.mark.parametrize("outcome", FINAL_OUTCOMES, ids=lambda outcome: outcome.kind.value)
def test_settling_again_an_outcome_that_was_written_is_not_a_lost_lease(store, outcome):
    """The reply to the commit was lost, so the worker settles again."""
    claimed = put_and_take(store)
    settle_one(store, claimed, outcome)
    before = snapshot(store)

    assert settle_one(store, claimed, outcome)
    assert before == snapshot(store)


def test_a_repeated_completion_stores_its_follow_ups_once(store):
    claimed = put_and_take(store)
    outcome = Outcome(OutcomeKind.COMPLETED, follow_ups=(new_job("next"),))
    settle_one(store, claimed, outcome)

    assert settle_one(store, claimed, outcome)
    assert [{"type": "next", "count": 1}, {"type": "noop", "count": 1}] == store.counts(("type",)).rows


def test_a_late_completion_of_a_job_that_the_rescuer_failed_is_a_lost_lease(store):
    """The job ended under the same lease number, but with another outcome."""
    enlist(store, "dead")
    stale = put_and_take(store, worker="dead", max_attempts=1)
    store.declare_dead("dead", "stood still")

    assert Status.FAILED == store.get(stale.id).status
    assert not settle_one(store, stale, COMPLETED)
    assert Status.FAILED == store.get(stale.id).status


def test_settling_again_after_a_manual_retry_is_a_lost_lease(store):
    claimed = put_and_take(store)
    settle_one(store, claimed, COMPLETED)
    store.retry(claimed.id)

    assert not settle_one(store, claimed, COMPLETED)
    assert (Status.PENDING, 0) == place_of(store, claimed.id)


@pytest.mark.parametrize("outcome", [COMPLETED, RETRIED, CANCELLED], ids=lambda outcome: outcome.kind.value)
def test_a_worker_whose_job_was_reconciled_has_lost_its_lease(store, outcome):
    """Its result and its follow-ups were never written, so settle must not report that they were."""
    claimed = put_and_take(store)
    store.complete([claimed.id])
    before = snapshot(store)

    assert not settle_one(store, claimed, outcome)
    assert before == snapshot(store)


def test_a_late_completion_of_a_job_that_failed_and_was_reconciled_is_a_lost_lease(store):
    enlist(store, "dead")
    stale = put_and_take(store, worker="dead", max_attempts=1)
    store.declare_dead("dead", "stood still")
    store.complete([stale.id])

    assert not settle_one(store, stale, COMPLETED)


def test_the_newest_progress_is_shown(store):
    first, second = (put_and_take(store) for _ in range(2))

    store.save_progress([(first, Progress(0.1)), (second, Progress(0.4, "waiting"))])
    store.save_progress([(first, Progress(0.2, "on it"))])

    assert [Progress(0.2, "on it"), Progress(0.4, "waiting")] == [store.get(c.id).progress for c in (first, second)]


def test_progress_is_cleared_when_the_attempt_ends(store):
    claimed = put_and_take(store)
    store.save_progress([(claimed, Progress(0.9))])

    settle_one(store, claimed, RETRIED)
    assert None is store.get(claimed.id).progress
    take(store)
    assert None is store.get(claimed.id).progress


def test_reporting_no_progress_changes_nothing(store):
    store.save_progress([])
    assert not store.settle([]).lost


def test_an_extended_lease_lives_until_its_new_deadline(store, clock):
    claimed = put_and_take(store, lease_for=10 * SECOND)
    clock.advance(9)

    extended = store.extend(claimed, 10 * SECOND)

    assert clock() + 10 * SECOND == extended.deadline
    clock.advance(10)
    assert 0 == store.rescue()
    clock.advance(0.000001)
    assert 1 == store.rescue()


def test_an_extended_lease_keeps_its_number(store):
    claimed = put_and_take(store, lease_for=10 * SECOND)

    extended = store.extend(claimed, 20 * SECOND)

    assert claimed.number == extended.number
    assert settle_one(store, claimed, COMPLETED)


def test_a_settled_lease_cannot_be_extended(store):
    claimed = put_and_take(store)
    settle_one(store, claimed, RELEASED)

    with pytest.raises(LeaseLost):
        store.extend(claimed, SECOND)


def test_two_leases_never_share_a_number(store):
    numbers = []
    for outcome in EVERY_OUTCOME:
        put_many(store, 2)
        claimed = take(store)
        numbers += [c.number for c in claimed]
        store.settle([(c, outcome) for c in claimed])

    assert sorted(set(numbers)) == numbers


# A failover to a standby that is behind issues a number again


def claim_again_after_a_failover(store, by_hand):
    """The lease of a claim that the standby never got, and the lease that the job has there: with the same number."""
    job = put(store)
    if on_postgres(store) or on_libsql(store):
        stale = claim_and_fail_over(store, by_hand)
    else:
        stale = claim_and_restore_the_file(store)
    (current,) = take(store)
    assert (job.id, stale.number) == (stale.id, current.number) == (current.id, stale.number)
    return stale, current


def claim_and_restore_the_file(store):
    store.close()  # all of it is in the file then
    copy = shutil.copy(store.path, f"{store.path}-copy")
    (stale,) = take(store)
    store.close()
    os.replace(copy, store.path)
    return stale


def claim_and_fail_over(store, by_hand):
    (stale,) = take(store)
    by_hand("DELETE FROM treadle_leases")
    by_hand(
        "INSERT INTO treadle_ready (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion,"
        " updated_at) SELECT id, queue, type, tenant, priority, created_at, 0, 0, 0, created_at FROM treadle_jobs"
    )
    if on_postgres(store):
        by_hand("SELECT setval('treadle_lease', ?, false)", stale.number)
    else:
        by_hand("UPDATE treadle_meta SET value = ? WHERE key = 'lease'", stale.number - 1)
    return stale


@pytest.mark.by_hand
@by_kind
def test_the_holder_of_a_number_that_was_issued_again_cannot_settle_or_release_the_job(store, by_hand, outcome):
    stale, current = claim_again_after_a_failover(store, by_hand)
    before = snapshot(store)

    assert [stale] == store.settle([(stale, outcome)]).lost

    assert before == snapshot(store)
    assert settle_one(store, current, COMPLETED)


@pytest.mark.by_hand
def test_the_holder_of_a_number_that_was_issued_again_cannot_report_progress_or_extend(store, by_hand):
    stale, current = claim_again_after_a_failover(store, by_hand)
    store.save_progress([(current, Progress(0.5, "half"))])

    store.save_progress([(stale, Progress(0.9, "nearly"))])
    with pytest.raises(LeaseLost):
        store.extend(stale, 600 * SECOND)

    assert Progress(0.5, "half") == store.get(current.id).progress
    assert [(None,)] == by_hand("SELECT deadline FROM treadle_leases")


@pytest.mark.by_hand
def test_the_holder_of_a_number_that_was_issued_again_cannot_complete_the_job_in_a_transaction(store, by_hand):
    stale, current = claim_again_after_a_failover(store, by_hand)

    with pytest.raises(LeaseLost), store.transaction(stale, lambda: COMPLETED):
        pass

    assert Status.PROCESSING == store.get(current.id).status


@pytest.mark.by_hand
@pytest.mark.parametrize("outcome", FINAL_OUTCOMES, ids=lambda outcome: outcome.kind.value)
def test_an_outcome_under_a_number_that_was_issued_again_is_not_a_repeated_commit(store, by_hand, outcome):
    stale, current = claim_again_after_a_failover(store, by_hand)
    settle_one(store, current, outcome)

    assert not settle_one(store, stale, outcome)
    assert settle_one(store, current, outcome)


@pytest.mark.by_hand
def test_in_one_batch_only_the_newer_lease_of_a_number_is_settled(store, by_hand):
    """Both ran in the same worker. Neither must end the other's attempt."""
    stale, current = claim_again_after_a_failover(store, by_hand)

    settled = store.settle([(stale, FAILED), (current, COMPLETED), (stale, COMPLETED)])

    assert [stale, stale] == settled.lost
    assert [(current, COMPLETED)] == list(settled.written)
    assert Status.COMPLETED == store.get(current.id).status
