"""Liveness: the dead are buried, what they held is returned, and nobody else is charged."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import (
    RETRIED,
    SNOOZED,
    enlist,
    ids,
    limit,
    place_of,
    put,
    put_and_take,
    put_many,
    settle_one,
    suspicion_of,
    take,
    writing,
)
from windlass.clock import SECOND
from windlass.errors import WorkerLost
from windlass.job import Status, Suspicion
from windlass.outcome import COMPLETED
from windlass.stores.base import RECLAIM_AFTER


def numbers(claimed):
    return {c.number for c in claimed}


# Workers


def test_a_registered_worker_is_seen_by_all(open_store, clock):
    ours, theirs = open_store(), open_store()

    enlist(ours, "w1", queues=("a", "b"), types=("noop",), host={"pid": 7, "boot": "x"}, version="1.2")

    (worker,) = theirs.workers()
    assert ("w1", "host-w1", 10, ("a", "b"), ("noop",)) == (
        worker.id,
        worker.name,
        worker.concurrency,
        worker.queues,
        worker.types,
    )
    assert ({"pid": 7, "boot": "x"}, "1.2", 0, 0) == (worker.host, worker.version, worker.beats, worker.leases)
    assert (clock(), clock()) == (worker.started_at, worker.seen_at)


def test_workers_are_listed_oldest_first_with_what_they_hold(store, clock):
    enlist(store, "old")
    clock.advance(1)
    enlist(store, "new")
    put_many(store, 3)
    take(store, 2, worker="new")

    assert [("old", 0), ("new", 2)] == [(w.id, w.leases) for w in store.workers()]


def test_a_beat_counts_up_and_shows_everybodys_count(store, clock):
    enlist(store, "w1")
    enlist(store, "w2")

    assert {"w1": 1, "w2": 0} == store.beat("w1").workers
    clock.advance(5)
    assert {"w1": 2, "w2": 0} == store.beat("w1").workers
    assert [clock(), clock() - 5 * SECOND] == [w.seen_at for w in store.workers()]


def test_a_beat_tells_which_leases_are_in_ones_name_and_which_were_cancelled(store):
    enlist(store, "w1")
    enlist(store, "w2")
    kept, cancelled = put_and_take(store, worker="w1"), put_and_take(store, worker="w1")
    put_and_take(store, worker="w2")
    store.cancel(cancelled.id)

    assert {kept.number: False, cancelled.number: True} == store.beat("w1").mine


def test_cancelled_leases_are_told_without_a_lock(open_store):
    ours, theirs = open_store(), open_store()
    enlist(ours, "w1")
    enlist(ours, "w2")
    put_and_take(ours, worker="w1")
    mine, other = put_and_take(ours, worker="w1"), put_and_take(ours, worker="w2")
    for claimed in (mine, other):
        theirs.cancel(claimed.id)

    with writing(theirs):
        assert [mine.number] == ours.cancelled("w1")
        assert [] == ours.cancelled("nobody")


def test_a_worker_that_was_declared_dead_learns_it_when_it_beats(store):
    enlist(store, "w1")
    store.bury("w1", "stood still")

    with pytest.raises(WorkerLost) as lost:
        store.beat("w1")

    assert "w1" == lost.value.worker
    assert [] == store.workers()


# Leases that the worker does not know of


def test_leases_that_a_worker_does_not_know_of_are_given_back_without_charge(store):
    """The reply to its claim got lost: the jobs are in its name, and it will never run them."""
    enlist(store, "w1")
    put_many(store, 3)
    known, *unknown = take(store, worker="w1")

    assert 2 == store.release_unheld("w1", numbers(unknown))

    assert [(Status.PENDING, 0)] * 2 == [place_of(store, id) for id in ids(unknown)]
    assert (Status.PROCESSING, 1) == place_of(store, known.id)


def test_leases_of_another_worker_are_not_given_back(store):
    enlist(store, "w1")
    enlist(store, "w2")
    theirs = put_and_take(store, worker="w2")

    assert 0 == store.release_unheld("w1", {theirs.number})
    assert Status.PROCESSING == store.get(theirs.id).status


# Burial


def test_a_buried_workers_job_is_returned_and_its_attempt_spent(store):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")

    assert 1 == store.bury("w1", "the process died")

    job = store.get(claimed.id)
    assert (Status.PENDING, 1, "the process died") == (job.status, job.attempts, job.error)
    assert claimed.id == take(store)[0].id


def test_a_crash_in_the_last_attempt_fails_the_job(store):
    """Never looped, never dropped."""
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1", max_attempts=1)

    store.bury("w1", "the process died")

    job = store.get(claimed.id)
    assert (Status.FAILED, 1, "the process died") == (job.status, job.attempts, job.error)
    assert ["failed"] == [attempt.outcome for attempt in store.attempts(claimed.id)]


def test_a_job_that_kills_every_worker_ends_after_its_last_attempt(store):
    job = put(store, max_attempts=3)
    for i in range(3):
        worker = enlist(store, f"w{i}")
        take(store, worker=worker)
        store.bury(worker, f"crash {i}")

    assert (Status.FAILED, 3) == place_of(store, job.id)
    assert ["crash 0", "crash 1", "crash 2"] == [attempt.error for attempt in store.attempts(job.id)]


def test_a_worker_that_beats_again_is_not_buried(store):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")
    seen = store.beat("w1").workers["w1"]
    store.beat("w1")

    assert 0 == store.bury("w1", "stood still", beats=seen)

    assert Status.PROCESSING == store.get(claimed.id).status
    assert settle_one(store, claimed, COMPLETED)


def test_a_worker_whose_count_stands_still_is_buried(store):
    enlist(store, "w1")
    put_and_take(store, worker="w1")
    seen = store.beat("w1").workers["w1"]

    assert 1 == store.bury("w1", "stood still", beats=seen)
    assert [] == store.workers()


def test_only_jobs_that_had_started_are_charged_for_a_crash(store):
    enlist(store, "w1")
    put_many(store, 3)
    running, *queued = take(store, worker="w1")

    assert 3 == store.bury("w1", "the process died", started={running.number})

    assert [(Status.PENDING, 0)] * 2 == [place_of(store, id) for id in ids(queued)]
    assert (Status.PENDING, 1) == place_of(store, running.id)
    assert [1, 0, 0] == [len(store.attempts(id)) for id in ids([running, *queued])]


def test_nobody_is_charged_if_nothing_had_started(store):
    enlist(store, "w1")
    put_many(store, 2)
    claimed = take(store, worker="w1")

    store.bury("w1", "the process died", started=())

    assert [(Status.PENDING, 0)] * 2 == [place_of(store, id) for id in ids(claimed)]
    assert [Suspicion.NONE] * 2 == [c.suspicion for c in take(store)]


def test_a_job_that_ran_alone_is_guilty(store):
    enlist(store, "w1")
    put_and_take(store, worker="w1")
    put(store)
    take(store, worker="w1")
    running = min(store.beat("w1").mine)

    store.bury("w1", "the process died", started={running})

    by_number = {c.attempt: c.suspicion for c in take(store)}
    assert {2: Suspicion.GUILTY, 1: Suspicion.NONE} == by_number


def test_jobs_that_ran_beside_each_other_are_suspects_and_not_charged(store):
    enlist(store, "w1")
    put_many(store, 2)
    claimed = take(store, worker="w1")

    store.bury("w1", "the process died")

    assert [(Status.PENDING, 0)] * 2 == [place_of(store, id) for id in ids(claimed)]
    assert [Suspicion.SUSPECTED] * 2 == [c.suspicion for c in take(store)]
    assert all("runs again alone" in store.attempts(id)[0].error for id in ids(claimed))


def test_a_suspect_that_crashes_alone_pays_for_both_crashes(store):
    enlist(store, "w1")
    put_many(store, 2, max_attempts=9)
    guilty, innocent = take(store, worker="w1")
    store.bury("w1", "crash")
    enlist(store, "w2")
    take(store, 1, worker="w2")

    store.bury("w2", "crash again")

    assert (Status.PENDING, 2) == place_of(store, guilty.id)
    assert (Status.PENDING, 0) == place_of(store, innocent.id)


def test_a_suspect_with_two_attempts_fails_at_its_second_crash(store):
    enlist(store, "w1")
    put_many(store, 2, max_attempts=2)
    guilty, innocent = take(store, worker="w1")
    store.bury("w1", "crash")
    enlist(store, "w2")
    take(store, 1, worker="w2")

    store.bury("w2", "crash again")

    assert (Status.FAILED, 2) == place_of(store, guilty.id)
    settle_one(store, take(store)[0], COMPLETED)
    assert (Status.COMPLETED, 1) == place_of(store, innocent.id)


def test_suspects_that_crash_together_again_are_both_charged(store):
    """Else two jobs that always run beside each other would loop for ever."""
    put_many(store, 2, max_attempts=2)
    for worker in ("w1", "w2"):
        enlist(store, worker)
        claimed = take(store, worker=worker)
        store.bury(worker, "crash")

    assert [(Status.FAILED, 2)] * 2 == [place_of(store, id) for id in ids(claimed)]


def test_nobody_is_suspected_when_the_worker_was_killed_from_outside(store):
    """A machine that was switched off says nothing of the jobs: each has lost an attempt, and that is all."""
    enlist(store, "w1")
    put_many(store, 2)
    claimed = take(store, worker="w1")

    store.bury("w1", "killed", outside=True)

    assert [(Status.PENDING, 1)] * 2 == [place_of(store, id) for id in ids(claimed)]
    assert [Suspicion.NONE] * 2 == [c.suspicion for c in take(store)]


def test_a_manual_retry_clears_the_suspicion(store):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1", max_attempts=1)
    store.bury("w1", "crash")

    store.retry(claimed.id)

    assert Suspicion.NONE == suspicion_of(store)


def test_a_cancelled_job_of_a_dead_worker_is_cancelled(store):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")
    store.cancel(claimed.id)

    store.bury("w1", "the process died")

    assert Status.CANCELLED == store.get(claimed.id).status


def test_a_worker_is_buried_once_and_its_grave_stays_closed(store):
    enlist(store, "w1")
    put_and_take(store, worker="w1")
    store.bury("w1", "the process died")

    assert 0 == store.bury("w1", "again")
    with pytest.raises(WorkerLost):
        take(store, worker="w1")


def test_burying_one_worker_leaves_the_others_alone(store):
    enlist(store, "w1")
    enlist(store, "w2")
    theirs = put_and_take(store, worker="w2")

    assert 0 == store.bury("w1", "the process died")

    assert ["w2"] == ids(store.workers())
    assert settle_one(store, theirs, COMPLETED)


def test_a_worker_that_is_gone_is_buried_again_for_what_was_left_in_its_name(store, by_hand):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")
    by_hand("DELETE FROM windlass_workers")

    assert 1 == store.bury("w1", "gone")
    assert Status.PENDING == store.get(claimed.id).status


# Rescue


def test_rescue_returns_the_jobs_of_workers_that_have_no_row(store, by_hand):
    enlist(store, "gone")
    enlist(store, "alive")
    lost, kept = put_and_take(store, worker="gone"), put_and_take(store, worker="alive")
    by_hand("DELETE FROM windlass_workers WHERE id = 'gone'")

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


def test_a_stuck_job_is_reclaimed_a_while_after_its_deadline(store, clock):
    """Its worker has the first word: it may be settling the timeout just now."""
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


def test_a_lease_by_hand_is_over_at_its_deadline(store, clock):
    claimed = put_and_take(store, lease_for=60 * SECOND)

    clock.now = claimed.deadline
    assert 0 == store.rescue()
    clock.advance(0.000001)
    assert 1 == store.rescue()
    assert (Status.PENDING, 1) == place_of(store, claimed.id)


def test_a_lease_by_hand_without_a_deadline_is_nobodys_to_rescue(store, clock):
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
    by_hand("DELETE FROM windlass_workers")
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


def test_snoozed_and_retried_jobs_carry_nothing_over_to_the_next_worker(store):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")
    settle_one(store, claimed, SNOOZED)
    (claimed,) = take(store, worker="w1")
    settle_one(store, claimed, RETRIED)

    assert 0 == store.bury("w1", "stopped")
    assert (Status.PENDING, 1) == place_of(store, claimed.id)


def test_the_time_of_a_suspect_does_not_run_while_it_waits_for_a_process_of_its_own(store):
    """A worker sets the deadline when the handler starts. By hand there is nobody who would."""
    enlist(store, "dead")
    put_many(store, 2)
    take(store, worker="dead", types={"noop": 60 * SECOND})
    store.bury("dead", "it crashed")
    enlist(store, "w1")

    [first] = take(store, 1, worker="w1", types={"noop": 60 * SECOND})
    [by_hand] = take(store, 1, lease_for=60 * SECOND)

    assert (Suspicion.SUSPECTED, None) == (first.suspicion, first.deadline)
    assert by_hand.deadline == by_hand.started_at + 60 * SECOND
