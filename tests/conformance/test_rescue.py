"""Rescue: jobs without a live worker, or long past their deadline, are returned."""

from __future__ import annotations

import msgspec
import psycopg
import pytest

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


def running(store, timeout):
    """The lease of a job with a timeout, which worker w1 runs."""
    enlist(store, "w1")
    put(store)
    (claimed,) = take(store, worker="w1", types={"noop": timeout})
    return claimed


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
    """Its worker goes first: it may be settling the timeout just now. Then it beats without vouching for the job."""
    claimed = running(store, 300 * SECOND)

    clock.now = claimed.deadline + RECLAIM_AFTER
    store.beat("w1")
    assert 0 == store.rescue()
    clock.advance(0.000001)
    store.beat("w1")
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
    stuck = running(store, SECOND)
    put(store)
    assert [] == take(store)

    clock.now = stuck.deadline + RECLAIM_AFTER + 1
    store.beat("w1")

    assert 1 == len(take(store, types={"noop": SECOND}))


# The clock steps


def test_a_forward_step_of_the_clock_takes_no_job_from_a_living_worker(store, clock):
    limit(store, "noop", 1)
    claimed = running(store, 300 * SECOND)
    put(store)

    clock.advance(3600)
    assert 0 == store.rescue()
    assert [] == take(store)  # the job still counts
    store.beat("w1", [(claimed, 290 * SECOND)])
    assert 0 == store.rescue()
    assert [] == take(store)

    assert settle_one(store, claimed, COMPLETED)


def test_the_deadline_follows_a_step_of_the_clock(store, clock, by_hand):
    """After a step back, a job that hangs would otherwise be stuck too late."""
    claimed = running(store, 300 * SECOND)
    for step in (3600, -7200):
        clock.advance(step)
        store.beat("w1", [(claimed, 290 * SECOND)])
        assert [(clock() + 290 * SECOND,)] == by_hand("SELECT deadline FROM treadle_leases")


def test_a_deadline_that_is_nearly_right_is_not_written(store, clock, by_hand):
    claimed = running(store, 300 * SECOND)
    for left in (298, 302):
        store.beat("w1", [(claimed, left * SECOND)])

    assert [(claimed.deadline,)] == by_hand("SELECT deadline FROM treadle_leases")


def test_a_worker_that_vouches_for_a_job_past_its_timeout_does_not_keep_it(store, clock):
    """Its event loop may be blocked. What is left of the timeout is less than nothing."""
    claimed = running(store, 300 * SECOND)
    clock.advance(3600)
    store.beat("w1", [(claimed, -5 * SECOND)])
    assert 0 == store.rescue()

    clock.advance(5)
    store.beat("w1", [(claimed, -10 * SECOND)])

    assert 1 == store.rescue()


def test_a_lease_that_had_no_deadline_gets_one_when_its_worker_vouches_for_it(store, clock, by_hand):
    """The time of a suspect, or of a job in a child, counts from the start of its handler."""
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")

    store.beat("w1", [(claimed, 60 * SECOND)])

    assert [(clock() + 60 * SECOND,)] == by_hand("SELECT deadline FROM treadle_leases")


def test_a_worker_cannot_vouch_for_a_lease_that_it_has_lost(store, clock, by_hand):
    enlist(store, "w2")
    stale = running(store, 300 * SECOND)
    store.declare_dead("w1", "stood still")
    (current,) = take(store, worker="w2", types={"noop": 300 * SECOND})
    forged = msgspec.structs.replace(current, token=stale.token)

    for lease in (stale, forged):
        store.beat("w2", [(lease, 9000 * SECOND)])

    assert [(current.deadline,)] == by_hand("SELECT deadline FROM treadle_leases")


@pytest.mark.only("postgresql")
def test_a_rescue_leaves_a_lease_alone_for_which_its_worker_vouches_just_now(store, clock):
    """Their transactions overlap: the rescue began when the job looked stuck."""
    claimed = running(store, 300 * SECOND)
    clock.advance(3600)
    store.beat("w1")
    with psycopg.connect(store.url) as beating:
        beating.execute("UPDATE treadle.leases SET deadline = %s", [clock() + 290 * SECOND])
        assert 0 == store.rescue()

    assert 0 == store.rescue()
    assert settle_one(store, claimed, COMPLETED)


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
