"""Management: cancel, retry, delete and run now, and what each status allows."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import (
    FAILED,
    HOUR,
    RETRIED,
    SNOOZED,
    finish,
    place_of,
    put,
    put_and_take,
    put_many,
    settle_one,
    snapshot,
    take,
)
from treadle.clock import to_datetime
from treadle.errors import JobNotFound, WrongStatus
from treadle.ids import new_id
from treadle.job import Status
from treadle.outcome import CANCELLED, COMPLETED, Outcome, OutcomeKind

ended = pytest.mark.parametrize("outcome", [COMPLETED, FAILED, CANCELLED], ids=lambda outcome: outcome.kind.value)


@pytest.mark.parametrize("verb", ["cancel", "retry", "delete", "run_now"])
def test_an_unknown_job_raises_an_error_that_shows_the_id(store, verb):
    id = new_id()

    with pytest.raises(JobNotFound, match=id):
        getattr(store, verb)(id)


# Cancel


def test_a_waiting_job_is_cancelled_at_once(store, clock):
    job = put(store)
    clock.advance(1)

    cancelled = store.cancel(job.id)

    assert cancelled == store.get(job.id)
    assert (Status.CANCELLED, 0, "cancelled") == (cancelled.status, cancelled.attempts, cancelled.error)
    assert (None, None, to_datetime(clock())) == (cancelled.worker_id, cancelled.started_at, cancelled.completed_at)
    assert [] == take(store)


def test_a_job_that_waits_for_its_retry_keeps_its_attempts_when_cancelled(store):
    claimed = put_and_take(store)
    settle_one(store, claimed, RETRIED)

    store.cancel(claimed.id)

    assert (Status.CANCELLED, 1) == place_of(store, claimed.id)


def test_cancelling_a_leased_job_sets_its_flag_and_its_worker_keeps_it(store):
    claimed = put_and_take(store)

    assert Status.PROCESSING == store.cancel(claimed.id).status
    assert Status.PROCESSING == store.cancel(claimed.id).status
    assert settle_one(store, claimed, CANCELLED)
    assert (Status.CANCELLED, 0) == place_of(store, claimed.id)


@ended
def test_an_ended_job_cannot_be_cancelled(store, outcome):
    job = finish(store, outcome)
    before = snapshot(store)

    with pytest.raises(WrongStatus, match=f"cannot cancel job {job.id}: it is {job.status}"):
        store.cancel(job.id)

    assert before == snapshot(store)


def test_the_cancel_flag_is_cleared_with_its_lease(store):
    claimed = put_and_take(store)
    store.cancel(claimed.id)
    settle_one(store, claimed, COMPLETED)
    store.retry(claimed.id)

    (again,) = take(store)
    settle_one(store, again, RETRIED)

    assert Status.PENDING == store.get(claimed.id).status


# Retry


@ended
def test_an_ended_job_runs_again_with_all_of_its_attempts(store, clock, outcome):
    job = finish(store, outcome, max_attempts=1)
    clock.advance(60)

    again = store.retry(job.id)

    assert again == store.get(job.id)
    assert (Status.PENDING, 0, to_datetime(clock())) == (again.status, again.attempts, again.run_at)
    assert [None] * 4 == [again.started_at, again.completed_at, again.error, again.result]
    assert 1 == take(store)[0].attempt


def test_a_retried_job_has_no_snoozes(store):
    claimed = put_and_take(store)
    settle_one(store, claimed, SNOOZED)
    settle_one(store, take(store)[0], FAILED)

    store.retry(claimed.id)

    assert 0 == take(store)[0].snoozes


def test_a_retried_job_keeps_the_records_of_its_failures(store):
    job = finish(store, FAILED)
    store.retry(job.id)
    settle_one(store, take(store)[0], FAILED)

    assert [1, 1] == [attempt.attempt for attempt in store.attempts(job.id)]


def test_a_retried_job_keeps_the_options_of_its_enqueue(store):
    job = finish(store, FAILED, queue="q", priority=3, tenant="t", subject="s", payload='{"a":1}')

    again = store.retry(job.id)

    kept = ("id", "type", "queue", "tenant", "subject", "payload", "priority", "max_attempts", "created_at")
    assert [getattr(job, name) for name in kept] == [getattr(again, name) for name in kept]


@pytest.mark.parametrize("leased", [False, True], ids=["pending", "processing"])
def test_a_job_that_has_not_ended_cannot_be_retried(store, leased):
    id = put_and_take(store).id if leased else put(store).id
    before = snapshot(store)

    with pytest.raises(WrongStatus, match=f"cannot retry job {id}"):
        store.retry(id)

    assert before == snapshot(store)


# Delete


def test_a_deleted_job_leaves_nothing_behind(store, by_hand):
    job = finish(store, FAILED, dedupe="k")

    assert job == store.delete(job.id)

    assert None is store.get(job.id)
    assert [] == store.attempts(job.id)
    assert [] == store.counts(("status",)).rows
    tables = ("jobs", "ready", "leases", "finished", "attempts", "dedupe")
    assert [0] * 6 == [by_hand(f"SELECT count(*) FROM treadle_{table}")[0][0] for table in tables]


@ended
def test_an_ended_job_can_be_deleted(store, outcome):
    job = finish(store, outcome)

    store.delete(job.id)

    assert None is store.get(job.id)


def test_a_deleted_waiting_job_never_runs(store):
    job = put(store)

    assert job == store.delete(job.id)
    assert [] == take(store)


def test_a_leased_job_cannot_be_deleted(store):
    claimed = put_and_take(store)

    with pytest.raises(WrongStatus, match=r"cancel it first: td\.cancel"):
        store.delete(claimed.id)

    assert settle_one(store, claimed, COMPLETED)


def test_deleting_one_job_leaves_the_others(store):
    one, other = put_many(store, 2)

    store.delete(one.id)

    assert other == store.get(other.id)


# Complete: the work of these jobs exists


def test_reconciling_completes_jobs_of_every_status(store, clock):
    pending = put(store, delay=HOUR)
    processing = put_and_take(store)
    failed, cancelled = finish(store, FAILED), finish(store, CANCELLED)
    ids = [pending.id, processing.id, failed.id, cancelled.id]
    clock.advance(5)

    assert 4 == store.complete(ids)

    jobs = [store.get(id) for id in ids]
    assert [Status.COMPLETED] * 4 == [job.status for job in jobs]
    assert [to_datetime(clock())] * 4 == [job.completed_at for job in jobs]
    assert [None] * 4 == [job.error for job in jobs]
    assert [] == take(store)


def test_reconciling_leaves_a_completed_job_as_it_was(store, clock):
    job = finish(store, Outcome(OutcomeKind.COMPLETED, result="1"))
    clock.advance(5)

    assert 0 == store.complete([job.id, new_id()])
    assert job == store.get(job.id)


def test_an_id_that_is_reconciled_twice_in_one_call_is_completed_once(store):
    job = put(store)

    assert 1 == store.complete([job.id, job.id])


def test_a_reconciled_job_can_be_retried(store):
    claimed = put_and_take(store)
    store.complete([claimed.id])

    store.retry(claimed.id)

    assert claimed.id == take(store)[0].id


def test_reconciling_wins_over_the_cancel_flag_of_a_running_job(store):
    claimed = put_and_take(store)
    store.cancel(claimed.id)

    store.complete([claimed.id])

    assert Status.COMPLETED == store.get(claimed.id).status


# Run now


def test_run_now_makes_a_scheduled_job_due(store, clock):
    job = put(store, delay=HOUR)
    clock.advance(1)

    moved = store.run_now(job.id)

    assert moved == store.get(job.id)
    assert (Status.PENDING, to_datetime(clock()), to_datetime(clock())) == (
        moved.status,
        moved.run_at,
        moved.updated_at,
    )
    assert [job.id] == [claimed.id for claimed in take(store)]


def test_run_now_makes_a_retrying_job_due_and_keeps_its_attempts(store):
    claimed = put_and_take(store)
    settle_one(store, claimed, Outcome(OutcomeKind.RETRIED, delay=HOUR, error="later"))

    assert (Status.PENDING, 1) == (store.run_now(claimed.id).status, store.get(claimed.id).attempts)
    assert 2 == take(store)[0].attempt


def test_run_now_keeps_the_place_of_a_due_job(store, clock):
    first = put(store)
    clock.advance(1)
    second = put(store)
    clock.advance(1)

    store.run_now(first.id)

    assert [first.id, second.id] == [claimed.id for claimed in take(store)]


@ended
def test_run_now_refuses_an_ended_job_and_names_retry(store, outcome):
    job = finish(store, outcome)
    before = snapshot(store)

    with pytest.raises(WrongStatus, match=f"cannot run job {job.id}: it is {job.status}.*td.retry"):
        store.run_now(job.id)

    assert before == snapshot(store)


def test_run_now_refuses_a_job_that_runs(store):
    claimed = put_and_take(store)

    with pytest.raises(WrongStatus, match="it runs already"):
        store.run_now(claimed.id)


def test_retry_refuses_a_retrying_job_and_names_run_now(store):
    claimed = put_and_take(store)
    settle_one(store, claimed, Outcome(OutcomeKind.RETRIED, delay=HOUR, error="later"))

    with pytest.raises(WrongStatus, match=r"to wait no longer: td\.run_now"):
        store.retry(claimed.id)
