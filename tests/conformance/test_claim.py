"""Claim: due jobs become leases, and each job has at most one."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import (
    HOUR,
    RETRIED,
    enlist,
    ids,
    limit,
    place_of,
    put,
    put_and_take,
    put_many,
    settle_one,
    take,
    writing,
)
from treadle.clock import SECOND, to_datetime
from treadle.errors import WorkerLost
from treadle.job import Status
from treadle.outcome import COMPLETED
from treadle.stores.base import ClaimRequest
from treadle.stores.rows import Due


def test_a_claimed_job_has_all_that_is_needed_to_run_it(store, clock):
    options = {"queue": "slow", "tenant": "acme", "subject": "p1", "payload": '{"a":1}', "max_attempts": 3}
    job = put(store, "podcast_import", dedupe="k", traceparent="00-aa-bb-01", **options)
    due = clock()
    clock.advance(2)

    (claimed,) = take(store)

    assert (job.id, "podcast_import") == (claimed.id, claimed.type)
    assert options == {name: getattr(claimed, name) for name in options}
    assert (1, 0, 0, 1) == (claimed.attempt, claimed.snoozes, claimed.suspicion, claimed.keyed)
    assert (due, clock(), None) == (claimed.run_at, claimed.started_at, claimed.deadline)
    assert "00-aa-bb-01" == claimed.traceparent


def test_a_claimed_job_is_processing_and_names_its_worker(store, clock):
    enlist(store, "w1")

    claimed = put_and_take(store, worker="w1")

    job = store.get(claimed.id)
    assert (Status.PROCESSING, "w1", to_datetime(clock())) == (job.status, job.worker_id, job.started_at)


def test_a_claim_by_hand_names_no_worker(store):
    claimed = put_and_take(store)

    assert None is store.get(claimed.id).worker_id


def test_the_attempt_counts_from_the_claim_on(store):
    """So a job that kills its process uses up its attempts too."""
    claimed = put_and_take(store)

    assert (Status.PROCESSING, 1) == place_of(store, claimed.id)


def test_a_leased_job_is_not_claimed_again(open_store):
    ours, theirs = open_store(), open_store()
    put(ours)

    assert 1 == len(take(ours))
    assert [] == take(theirs)


def test_a_claim_takes_at_most_its_limit(store):
    put_many(store, 5)

    assert [2, 2, 1, 0] == [len(take(store, 2)) for _ in range(4)]


def test_a_claim_with_limit_0_changes_nothing(store):
    put(store)

    assert [] == take(store, 0)
    assert [] == take(store, types={})
    assert 1 == len(take(store))


def test_a_job_that_is_not_yet_due_waits(store, clock):
    put(store, delay=60 * SECOND)

    clock.advance(59.999999)
    assert [] == take(store)
    clock.advance(0.000001)
    assert 1 == len(take(store))


def test_each_lease_number_is_greater_than_all_before_it(store):
    put_many(store, 5)
    first = take(store, 3)
    for claimed in first:
        settle_one(store, claimed, RETRIED)
    second = take(store)

    numbers = [claimed.number for claimed in first + second]
    assert sorted(set(numbers)) == numbers
    assert 8 == len(numbers)


def test_lease_numbers_keep_rising_across_manual_retries(store):
    """A repeated number would let a stale worker write again."""
    claimed = put_and_take(store)
    settle_one(store, claimed, COMPLETED)
    store.retry(claimed.id)

    (again,) = take(store)

    assert claimed.number < again.number
    assert not settle_one(store, claimed, RETRIED)


def test_lease_numbers_keep_rising_when_the_store_is_opened_again(open_store):
    store = open_store()
    claimed = put_and_take(store)
    settle_one(store, claimed, RETRIED)
    store.close()

    (again,) = take(open_store())

    assert claimed.number < again.number


def test_a_job_of_a_type_that_the_worker_does_not_handle_stays_pending_with_no_attempt(store):
    unknown, known = put(store, "unknown"), put(store, "known")

    claimed = take(store, types={"known": None})

    assert [known.id] == ids(claimed)
    assert (Status.PENDING, 0) == place_of(store, unknown.id)
    assert [unknown.id] == ids(take(store, types={"unknown": None}))


def test_only_the_requested_queues_are_claimed(store):
    jobs = {queue: put(store, queue=queue) for queue in ("a", "b", "c")}

    claimed = take(store, queues=("c", "a"))

    assert {jobs["a"].id, jobs["c"].id} == set(ids(claimed))


def test_every_queue_is_claimed_if_none_is_named(store):
    jobs = [put(store, queue=queue) for queue in ("a", "b", "c")]

    assert set(ids(jobs)) == set(ids(take(store)))


def test_a_types_timeout_sets_the_deadline(store, clock):
    put(store, "slow")
    put(store, "endless")

    claimed = take(store, types={"slow": 300 * SECOND, "endless": None})

    assert {"slow": clock() + 300 * SECOND, "endless": None} == {c.type: c.deadline for c in claimed}


def test_a_lease_taken_by_hand_has_its_own_deadline(store, clock):
    put(store)

    (claimed,) = take(store, types={"noop": 300 * SECOND}, lease_for=7 * SECOND)

    assert clock() + 7 * SECOND == claimed.deadline


def test_a_worker_that_never_registered_claims_nothing(store):
    put(store)

    with pytest.raises(WorkerLost, match="nobody"):
        take(store, worker="nobody")

    assert 1 == len(take(store))


def test_a_worker_that_was_declared_dead_claims_nothing(store):
    enlist(store, "w1")
    store.declare_dead("w1", "stood still")
    job = put(store)

    with pytest.raises(WorkerLost):
        take(store, worker="w1")

    assert (Status.PENDING, 0) == place_of(store, job.id)


def test_nothing_is_due_in_an_empty_store(store):
    assert Due(False, None) == store.due(ClaimRequest(limit=1))


def test_due_says_that_there_is_something_to_claim(store):
    put(store)

    assert store.due(ClaimRequest(limit=1)).now


def test_due_says_when_the_next_job_is_due(store, clock):
    for seconds in (90, 30, 60):
        put(store, f"after_{seconds}", delay=seconds * SECOND, priority=-seconds)

    assert Due(False, clock() + 30 * SECOND, 30.0) == store.due(ClaimRequest(limit=1))


def test_due_looks_only_at_what_would_be_claimed(store, clock):
    put(store, "theirs")
    put(store, "ours", queue="elsewhere")
    put(store, "ours", delay=HOUR)

    due = store.due(ClaimRequest(limit=1, types={"ours": None}, queues=("default",)))

    assert Due(False, clock() + HOUR, 3600.0) == due


def test_a_full_type_is_not_due(store):
    limit(store, "noop", 1)
    put_many(store, 2)
    (claimed,) = take(store)

    assert not store.due(ClaimRequest(limit=1)).now
    settle_one(store, claimed, COMPLETED)
    assert store.due(ClaimRequest(limit=1)).now


def test_looking_for_due_jobs_takes_no_lock(open_store):
    """A worker that polls must not block writers."""
    ours, theirs = open_store(), open_store()
    put(ours)

    with writing(ours):
        assert theirs.due(ClaimRequest(limit=1)).now
