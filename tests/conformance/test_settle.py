"""Settle: the outcome of an attempt is written once, with all its consequences."""

from __future__ import annotations

import json

import pytest

from tests.conformance.helpers import (
    CANNOT_BE_STORED,
    EVERY_OUTCOME,
    FAILED,
    FINAL_OUTCOMES,
    HOUR,
    MINUTE,
    RETRIED,
    SNOOZED,
    UNSTORABLE,
    enlist,
    finish,
    ids,
    new_job,
    place_of,
    put,
    put_and_take,
    put_many,
    settle_one,
    take,
)
from treadle.clock import SECOND, to_datetime
from treadle.filters import EVERYTHING
from treadle.job import Status, Suspicion
from treadle.outcome import CANCELLED, COMPLETED, RELEASED, Outcome, OutcomeKind


def test_a_completed_job_keeps_its_result(store, clock):
    claimed = put_and_take(store)
    began = clock()
    clock.advance(3)

    settle_one(store, claimed, Outcome(OutcomeKind.COMPLETED, result='{"tiles":[1,2]}'))

    job = store.get(claimed.id)
    assert (Status.COMPLETED, {"tiles": [1, 2]}, None) == (job.status, job.result, job.error)
    assert (to_datetime(began), to_datetime(clock())) == (job.started_at, job.completed_at)
    assert job.completed_at == job.updated_at


@pytest.mark.parametrize("result", [None, "null", '"text"', "0", "false", "[]", '"\\"quoted\\""', '"日本"'])
def test_every_kind_of_result_is_stored_and_read_back(store, result):
    job = finish(store, Outcome(OutcomeKind.COMPLETED, result=result))

    expected = {None: None, "null": None, "0": 0, "false": False, "[]": []}
    assert expected.get(result, (result or "").replace("\\", "")[1:-1]) == job.result


def test_a_completed_job_counts_its_attempt_and_leaves_no_record_of_failure(store):
    job = finish(store, COMPLETED)

    assert (Status.COMPLETED, 1) == place_of(store, job.id)
    assert [] == store.attempts(job.id)


def test_a_failed_attempt_counts_and_the_job_waits_for_its_delay(store, clock):
    claimed = put_and_take(store)

    settle_one(store, claimed, Outcome(OutcomeKind.RETRIED, delay=30 * SECOND, error="boom"))

    job = store.get(claimed.id)
    assert (Status.PENDING, 1, "boom") == (job.status, job.attempts, job.error)
    assert to_datetime(clock() + 30 * SECOND) == job.run_at
    assert to_datetime(clock()) == job.updated_at
    assert [] == take(store)
    clock.advance(30)
    assert 2 == take(store)[0].attempt


def test_a_job_keeps_its_priority_when_it_waits_again(store):
    """The priority is in `jobs`. The row in `ready` is written again."""
    urgent = put_and_take(store, priority=5)
    settle_one(store, urgent, RETRIED)
    put(store, priority=4)

    assert urgent.id == take(store, 1)[0].id


def test_a_failed_job_says_why(store, clock):
    job = finish(store, FAILED)

    assert (Status.FAILED, 1, FAILED.error) == (job.status, job.attempts, job.error)
    assert to_datetime(clock()) == job.completed_at


def test_each_unsuccessful_attempt_leaves_a_record(store, clock):
    enlist(store, "w1")
    job = put(store)
    began = clock()
    (first,) = take(store, worker="w1")
    clock.advance(1)
    settle_one(store, first, RETRIED)
    (second,) = take(store, worker="w1")
    settle_one(store, second, FAILED)

    one, two = store.attempts(job.id)

    assert (1, first.number, "w1", "retried") == (one.attempt, one.lease, one.worker_id, one.outcome)
    assert (RETRIED.error, RETRIED.traceback) == (one.error, one.traceback)
    assert (to_datetime(began), to_datetime(clock())) == (one.started_at, one.ended_at)
    assert (2, second.number, "failed", FAILED.error) == (two.attempt, two.lease, two.outcome, two.error)


@pytest.mark.parametrize("outcome", [COMPLETED, SNOOZED, CANCELLED, RELEASED], ids=lambda o: o.kind.value)
def test_an_outcome_that_is_not_a_failure_leaves_no_record(store, outcome):
    job = finish(store, outcome)

    assert [] == store.attempts(job.id)


@pytest.mark.parametrize("outcome", [SNOOZED, RELEASED, CANCELLED], ids=lambda o: o.kind.value)
def test_an_attempt_that_is_not_charged_does_not_count(store, outcome):
    claimed = put_and_take(store)
    settle_one(store, claimed, RETRIED)
    (claimed,) = take(store)

    settle_one(store, claimed, outcome)

    assert 1 == store.get(claimed.id).attempts


def test_a_snoozed_job_counts_its_snoozes(store, clock):
    claimed = put_and_take(store)
    for snoozes in range(3):
        assert snoozes == claimed.snoozes
        settle_one(store, claimed, Outcome(OutcomeKind.SNOOZED, delay=20 * SECOND, charged=0))
        assert [] == take(store)
        clock.advance(20)
        (claimed,) = take(store)

    assert (1, 3) == (claimed.attempt, claimed.snoozes)


@pytest.mark.parametrize("outcome", [COMPLETED, Outcome(OutcomeKind.COMPLETED, result="1"), FAILED], ids=str)
def test_a_job_shows_how_often_it_was_snoozed(store, by_hand, outcome):
    def shown():
        [[viewed]] = by_hand("SELECT snoozes FROM treadle_job WHERE id = ?", job.id)
        [listed] = store.jobs(EVERYTHING, 10)
        return store.get(job.id).snoozes, listed.snoozes, viewed

    job = put(store)
    assert (0, 0) == (job.snoozes, shown()[0])
    for _ in range(2):
        settle_one(store, take(store)[0], SNOOZED)
    assert (2, 2, 2) == shown()
    [claimed] = take(store)
    assert (2, 2, 2) == shown()
    settle_one(store, claimed, outcome)
    assert (2, 2, 2) == shown()
    store.retry(job.id)
    assert (0, 0, 0) == shown()
    settle_one(store, take(store)[0], SNOOZED)
    store.cancel(job.id)
    assert (1, 1, 1) == shown()


def test_a_failure_does_not_change_the_count_of_snoozes(store):
    claimed = put_and_take(store)
    settle_one(store, claimed, SNOOZED)
    settle_one(store, take(store)[0], RETRIED)
    settle_one(store, take(store)[0], RELEASED)

    (claimed,) = take(store)

    assert (2, 1) == (claimed.attempt, claimed.snoozes)


def test_a_released_job_has_its_old_place_in_the_queue(store, clock):
    """Stopping a worker must not send its jobs to the end of the queue."""
    claimed = put_and_take(store)
    clock.advance(1)
    younger = put(store)

    settle_one(store, claimed, RELEASED)

    assert [claimed.id, younger.id] == ids(take(store))


def test_suspicion_is_kept_unless_the_outcome_clears_it(store):
    claimed = put_and_take(store)
    settle_one(store, claimed, Outcome(OutcomeKind.RETRIED, suspicion=Suspicion.GUILTY))
    for outcome in (RETRIED, SNOOZED, RELEASED):
        (claimed,) = take(store)
        assert Suspicion.GUILTY == claimed.suspicion
        settle_one(store, claimed, outcome)

    (claimed,) = take(store)
    settle_one(store, claimed, Outcome(OutcomeKind.RETRIED, suspicion=Suspicion.NONE))
    assert Suspicion.NONE == take(store)[0].suspicion


def test_an_outcome_may_charge_more_than_one_attempt(store):
    claimed = put_and_take(store, max_attempts=9)

    settle_one(store, claimed, Outcome(OutcomeKind.RETRIED, charged=2))

    assert 2 == store.get(claimed.id).attempts


def test_outcomes_of_all_kinds_are_settled_together(store):
    put_many(store, 6)
    claimed = take(store)

    lost = store.settle(list(zip(claimed, EVERY_OUTCOME, strict=True))).lost

    assert [] == lost
    expected = ["completed", "pending", "failed", "pending", "cancelled", "pending"]
    assert expected == [store.get(c.id).status for c in claimed]


def test_several_hundred_outcomes_are_settled_together(store):
    put_many(store, 500)
    claimed = take(store, 500)

    store.settle([(c, FINAL_OUTCOMES[i % 3]) for i, c in enumerate(claimed)])

    expected = [{"status": s, "count": n} for s, n in (("cancelled", 166), ("completed", 167), ("failed", 167))]
    assert expected == store.counts(("status",)).rows


@pytest.mark.parametrize("outcome", [RETRIED, SNOOZED, RELEASED], ids=lambda o: o.kind.value)
def test_a_cancelled_job_does_not_go_back_to_wait(store, outcome):
    claimed = put_and_take(store)
    store.cancel(claimed.id)

    assert settle_one(store, claimed, outcome)

    assert Status.CANCELLED == store.get(claimed.id).status
    assert [] == take(store)


@pytest.mark.parametrize("outcome", [COMPLETED, FAILED], ids=lambda o: o.kind.value)
def test_a_final_outcome_wins_over_a_cancel_request(store, outcome):
    claimed = put_and_take(store)
    store.cancel(claimed.id)

    assert settle_one(store, claimed, outcome)
    assert outcome.kind.final == store.get(claimed.id).status


def test_follow_ups_are_stored_with_the_completion(store):
    claimed = put_and_take(store)
    follow_ups = (new_job("analyze", tenant="acme"), new_job("tile", delay=HOUR))

    settle_one(store, claimed, Outcome(OutcomeKind.COMPLETED, follow_ups=follow_ups))

    assert [Status.PENDING] * 2 == [store.get(id).status for id in ids(follow_ups)]
    assert [follow_ups[0].id] == ids(take(store))


def test_a_follow_up_whose_key_is_held_is_not_stored_twice(store):
    holder = put(store, "analyze", dedupe="k", delay=HOUR)
    claimed = put_and_take(store)
    follow_up = new_job("analyze", dedupe="k")

    assert settle_one(store, claimed, Outcome(OutcomeKind.COMPLETED, follow_ups=(follow_up,)))

    assert None is store.get(follow_up.id)
    assert Status.PENDING == store.get(holder.id).status


def test_a_follow_up_takes_the_key_that_its_own_parent_held(store):
    """A poll that enqueues its own successor under the same key."""
    claimed = put_and_take(store, dedupe="k")
    follow_up = new_job(dedupe="k")

    settle_one(store, claimed, Outcome(OutcomeKind.COMPLETED, follow_ups=(follow_up,)))

    assert Status.PENDING == store.get(follow_up.id).status


def test_a_settle_that_cannot_be_written_leaves_all_jobs_leased(store):
    put_many(store, 2)
    first, second = take(store)
    broken = Outcome(OutcomeKind.COMPLETED, follow_ups=(new_job(priority=UNSTORABLE),))

    with pytest.raises(CANNOT_BE_STORED):
        store.settle([(first, COMPLETED), (second, broken)])

    assert [Status.PROCESSING] * 2 == [store.get(c.id).status for c in (first, second)]
    assert not store.settle([(first, COMPLETED), (second, COMPLETED)]).lost


def test_settle_returns_what_it_wrote_and_when(store, clock):
    put_many(store, 2)
    kept, cancelled = take(store)
    store.cancel(cancelled.id)
    gone = put_and_take(store)
    settle_one(store, gone, RETRIED)
    clock.advance(3)

    settled = store.settle([(kept, RETRIED), (cancelled, RETRIED), (gone, RETRIED)])

    assert [(kept.id, OutcomeKind.RETRIED), (cancelled.id, OutcomeKind.CANCELLED)] == [
        (c.id, o.kind) for c, o in settled.written
    ]
    assert [gone] == settled.lost
    assert to_datetime(settled.at) == store.get(cancelled.id).completed_at


@pytest.mark.parametrize("outcome", FINAL_OUTCOMES, ids=lambda outcome: outcome.kind.value)
def test_a_repeated_settle_returns_the_same_as_the_first(store, outcome):
    claimed = put_and_take(store)
    store.settle([(claimed, outcome)])

    assert [(claimed, outcome)] == store.settle([(claimed, outcome)]).written


def usage(by_hand):
    """The sum of the rows of usage: a store may append rows and compact them later."""
    place = "minute, type, queue, tenant"
    sums = ", ".join(f"CAST(sum({name}) AS bigint)" for name in ("runs", "completed", "failures", "busy", "waiting"))
    return by_hand(f"SELECT {place}, {sums} FROM treadle_usage GROUP BY {place} ORDER BY {place}")


def test_usage_adds_up_runs_failures_and_time(store, clock, by_hand):
    minute = clock() // SECOND
    put(store, tenant="acme")
    clock.advance(2)
    (claimed,) = take(store)
    clock.advance(3)
    settle_one(store, claimed, RETRIED)
    (claimed,) = take(store)
    clock.advance(5)
    settle_one(store, claimed, COMPLETED)

    assert [(minute, "noop", "default", "acme", 2, 1, 1, 8 * SECOND, 2 * SECOND)] == usage(by_hand)


def test_usage_is_counted_by_minute_type_queue_and_tenant(store, clock, by_hand):
    minute = clock() // SECOND
    for options in ({}, {"type": "b"}, {"queue": "q"}, {"tenant": "t"}):
        finish(store, COMPLETED, **options)
    clock.now += MINUTE
    finish(store, COMPLETED)

    expected = [
        (minute, "b", "default", ""),
        (minute, "noop", "default", ""),
        (minute, "noop", "default", "t"),
        (minute, "noop", "q", ""),
        (minute + 60, "noop", "default", ""),
    ]
    assert expected == [row[:4] for row in usage(by_hand)]
    assert [1] * 5 == [row[4] for row in usage(by_hand)]


def test_a_release_does_not_count_as_a_run(store, by_hand):
    finish(store, RELEASED)

    assert [] == usage(by_hand)


@pytest.mark.parametrize("outcome", [SNOOZED, CANCELLED], ids=["snoozed", "cancelled"])
def test_a_run_that_was_snoozed_or_cancelled_is_neither_completed_nor_a_failure(store, by_hand, outcome):
    finish(store, COMPLETED)
    finish(store, outcome)

    assert [(2, 1, 0)] == [row[4:7] for row in usage(by_hand)]
    [used] = store.usage(0, 1 << 40, 86_400, ("type",))
    assert (2, 1, 0) == (used.runs, used.completed, used.failures)


def test_usage_never_goes_down_when_the_clock_steps_back(store, clock, by_hand):
    claimed = put_and_take(store)
    clock.step_back(3600)

    settle_one(store, claimed, COMPLETED)

    assert [(1, 1, 0, 0, 0)] == [row[4:] for row in usage(by_hand)]


def test_a_result_with_text_of_any_alphabet_is_read_back_unchanged(store):
    """Even a NUL character, which JSON can escape."""
    text = "naïve 日本語 🦆 'quoted' \\ \x00 \x1b"
    claimed = put_and_take(store, payload=json.dumps({"a": text}))

    assert {"a": text} == json.loads(claimed.payload)
    assert settle_one(store, claimed, Outcome(OutcomeKind.COMPLETED, result=json.dumps(text)))

    assert ({"a": text}, text) == (store.get(claimed.id).payload, store.get(claimed.id).result)
