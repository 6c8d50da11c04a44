"""Rescue: jobs without a live worker, or long past their deadline, are returned."""

from __future__ import annotations

from tests.conformance.helpers import (
    RETRIED,
    SNOOZED,
    enlist,
    limit,
    place_of,
    put,
    put_and_take,
    put_many,
    settle_one,
    take,
)
from treadle.clock import SECOND
from treadle.job import Status, Suspicion
from treadle.outcome import COMPLETED
from treadle.stores.base import RECLAIM_AFTER


def test_rescue_returns_the_jobs_of_workers_that_have_no_row(store, by_hand):
    enlist(store, "gone")
    enlist(store, "alive")
    lost, kept = put_and_take(store, worker="gone"), put_and_take(store, worker="alive")
    by_hand("DELETE FROM treadle_workers WHERE id = 'gone'")

    assert 1 == store.rescue()

    assert (Status.PENDING, 1) == place_of(store, lost.id)
    assert (Status.PROCESSING, 1) == place_of(store, kept.id)
    assert 0 == store.rescue()


def test_a_job_may_run_for_hours_while_its_worker_lives(store, clock):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")

    clock.advance(100 * 3600)

    assert 0 == store.rescue()
    assert settle_one(store, claimed, COMPLETED)


def test_a_stuck_job_is_rescued_some_time_after_its_deadline(store, clock):
    """Its worker goes first: it may be settling the timeout just now."""
    enlist(store, "w1")
    put(store)
    (claimed,) = take(store, worker="w1", types={"noop": 300 * SECOND})

    clock.now = claimed.deadline + RECLAIM_AFTER
    assert 0 == store.rescue()
    clock.advance(0.000001)
    assert 1 == store.rescue()

    job = store.get(claimed.id)
    assert (Status.PENDING, 1) == (job.status, job.attempts)
    assert "deadline" in job.error
    assert not settle_one(store, claimed, COMPLETED)


def test_a_lease_by_hand_ends_at_its_deadline(store, clock):
    claimed = put_and_take(store, lease_for=60 * SECOND)

    clock.now = claimed.deadline
    assert 0 == store.rescue()
    clock.advance(0.000001)
    assert 1 == store.rescue()
    assert (Status.PENDING, 1) == place_of(store, claimed.id)


def test_a_lease_by_hand_without_a_deadline_is_never_rescued(store, clock):
    claimed = put_and_take(store)
    clock.advance(1_000_000)

    assert 0 == store.rescue()
    assert settle_one(store, claimed, COMPLETED)


def test_a_job_that_is_stuck_in_its_last_attempt_fails(store, clock):
    claimed = put_and_take(store, lease_for=SECOND, max_attempts=1)
    clock.advance(2)

    store.rescue()

    assert (Status.FAILED, 1) == place_of(store, claimed.id)


def test_a_rescued_job_is_due_at_once(store, clock):
    claimed = put_and_take(store, lease_for=SECOND)
    clock.advance(2)
    store.rescue()

    assert claimed.id == take(store)[0].id


def test_a_job_of_a_dead_worker_that_is_overdue_too_is_rescued_once(store, clock, by_hand):
    enlist(store, "w1")
    put(store)
    (claimed,) = take(store, worker="w1", types={"noop": SECOND})
    by_hand("DELETE FROM treadle_workers")
    clock.advance(60)

    assert 1 == store.rescue()
    assert (Status.PENDING, 1) == place_of(store, claimed.id)


def test_a_stuck_job_does_not_count_against_its_types_limit(store, clock):
    limit(store, "noop", 1)
    put_many(store, 2)
    enlist(store, "w1")
    (stuck,) = take(store, worker="w1", types={"noop": SECOND})
    assert [] == take(store)

    clock.now = stuck.deadline + RECLAIM_AFTER + 1

    assert 1 == len(take(store, types={"noop": SECOND}))


def test_declaring_a_worker_dead_does_not_touch_jobs_that_it_has_settled(store):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")
    settle_one(store, claimed, SNOOZED)
    (claimed,) = take(store, worker="w1")
    settle_one(store, claimed, RETRIED)

    assert 0 == store.declare_dead("w1", "stopped")
    assert (Status.PENDING, 1) == place_of(store, claimed.id)


def test_the_deadline_of_a_suspect_does_not_count_while_it_waits_for_its_own_process(store):
    """A worker sets the deadline when the handler starts. A lease by hand has no worker that would set it."""
    enlist(store, "dead")
    put_many(store, 2)
    take(store, worker="dead", types={"noop": 60 * SECOND})
    store.declare_dead("dead", "it crashed")
    enlist(store, "w1")

    [first] = take(store, 1, worker="w1", types={"noop": 60 * SECOND})
    [by_hand] = take(store, 1, lease_for=60 * SECOND)

    assert (Suspicion.SUSPECTED, None) == (first.suspicion, first.deadline)
    assert by_hand.deadline == by_hand.started_at + 60 * SECOND
