"""Expiry: a job that is not started within `start_within` of its run_at is cancelled, and is never started."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import (
    FAILED,
    HOUR,
    RETRIED,
    SNOOZED,
    at_once,
    enlist,
    ids,
    limit,
    new_job,
    place_of,
    put,
    put_many,
    settle_one,
    take,
)
from treadle.clock import SECOND, to_datetime
from treadle.dedupe import Dedupe, rule_text
from treadle.diagnosis import explain
from treadle.filters import EVERYTHING, parse
from treadle.job import Reschedule, Status
from treadle.outcome import COMPLETED, RELEASED, UNSTARTED
from treadle.reasons import ReasonCode
from treadle.stores.shared import claim_settle

MINUTES = 300 * SECOND
REASON = "expired: it was not started within 300s of its run_at"


def put_expiring(store, **options):
    return put(store, start_within=MINUTES, **options)


def test_a_job_shows_until_when_it_may_start(store, clock):
    job = put_expiring(store, delay=HOUR)

    assert to_datetime(clock() + HOUR + MINUTES) == job.start_by
    assert job == store.get(job.id)
    assert put(store).start_by is None


def test_a_job_that_is_started_in_time_runs(store, clock):
    job = put_expiring(store)
    clock.advance(299)

    (claimed,) = take(store)

    assert job.id == claimed.id
    assert store.get(job.id).start_by is None
    assert 0 == store.expire(10)
    settle_one(store, claimed, COMPLETED)
    assert (Status.COMPLETED, 1) == place_of(store, job.id)


def test_a_claim_cancels_what_was_not_started_in_time(store, clock):
    late, other = put_expiring(store), put(store)
    clock.advance(300)

    assert [other.id] == ids(take(store))

    job = store.get(late.id)
    assert (Status.CANCELLED, 0, REASON) == (job.status, job.attempts, job.error)
    assert (None, None, to_datetime(clock())) == (job.started_at, job.worker_id, job.completed_at)
    assert [] == store.attempts(late.id)


def test_a_claim_takes_what_is_behind_expired_jobs(store, clock):
    for _ in range(3):
        put_expiring(store, priority=1)
    clock.advance(300)
    urgent, other = put(store, priority=1), put(store)

    assert [urgent.id] == ids(take(store, 1))
    assert [other.id] == ids(take(store, 1))
    assert [] == take(store, 1)


def test_a_claim_that_meets_only_expired_jobs_starts_none(store, clock):
    jobs = [put_expiring(store) for _ in range(3)]
    clock.advance(301)

    assert [] == take(store, worker=enlist(store))
    assert {Status.CANCELLED} == {store.get(job.id).status for job in jobs}
    assert [{"status": "cancelled", "count": 3}] == store.counts(("status",), EVERYTHING).rows
    assert [] == store.usage(0, clock() // SECOND + 60, 60, ("type",))


def test_a_claim_cancels_a_bounded_number_and_starts_none_of_the_rest(store, clock, monkeypatch):
    monkeypatch.setattr(claim_settle, "EXPIRED_BY_A_CLAIM", 2)
    store.insert([new_job(start_within=MINUTES) for _ in range(5)])
    clock.advance(300)
    last = put(store)
    left, claimed = [], []
    while not claimed:
        claimed = take(store, 2)
        left.append(store.counts((), parse("status:pending")).rows[0]["count"] if not claimed else 0)

    assert [last.id] == ids(claimed)
    assert [4, 2] == left[:2]


def test_a_chore_cancels_what_nobody_claims(store, clock):
    jobs, kept = put_many(store, 5, "unknown", start_within=MINUTES), put(store, start_within=2 * MINUTES)
    assert 0 == store.expire(10)
    clock.advance(300)

    assert [3, 2, 0] == [store.expire(3) for _ in range(3)]
    assert {(Status.CANCELLED, 0)} == {place_of(store, job.id) for job in jobs}
    assert REASON == store.get(jobs[0].id).error
    assert [kept.id] == ids(take(store))


def test_the_first_to_expire_are_cancelled_first(store, clock):
    second, first = put_expiring(store), put(store, start_within=SECOND)
    clock.advance(300)

    assert 1 == store.expire(1)
    assert [Status.CANCELLED, Status.PENDING] == [store.get(job.id).status for job in (first, second)]


@pytest.mark.parametrize("outcome", [RETRIED, SNOOZED, RELEASED], ids=lambda outcome: outcome.kind.value)
def test_a_job_that_was_started_once_does_not_expire(store, clock, outcome):
    job = put_expiring(store)
    settle_one(store, take(store)[0], outcome)
    clock.advance(10_000)

    assert 0 == store.expire(10)
    assert store.get(job.id).start_by is None
    assert [job.id] == ids(take(store))


def release(store, claimed):
    settle_one(store, claimed, UNSTARTED)


def declare_dead(store, claimed):
    """Its supervisor knows that it had not started."""
    store.declare_dead("w1", "killed", started=())


def lose_the_claim(store, claimed):
    store.release_unheld("w1", [claimed.number])


@pytest.mark.parametrize("give_back", [release, declare_dead, lose_the_claim])
def test_a_job_that_was_claimed_but_not_started_expires(store, clock, give_back):
    job = put_expiring(store)
    (claimed,) = take(store, worker=enlist(store))
    clock.advance(100)
    give_back(store, claimed)

    assert job.start_by == store.get(job.id).start_by
    clock.advance(200)
    assert 1 == store.expire(10)
    assert (Status.CANCELLED, REASON) == (store.get(job.id).status, store.get(job.id).error)


@pytest.mark.parametrize("first", [RETRIED, SNOOZED, RELEASED], ids=lambda outcome: outcome.kind.value)
def test_a_job_that_was_started_before_it_is_claimed_in_vain_does_not_expire(store, clock, first):
    job = put_expiring(store)
    settle_one(store, take(store)[0], first)
    settle_one(store, take(store)[0], UNSTARTED)
    clock.advance(10_000)

    assert (0, None) == (store.expire(10), store.get(job.id).start_by)


def test_a_job_whose_worker_died_does_not_expire(store, clock):
    job = put_expiring(store)
    take(store, worker=enlist(store))
    store.declare_dead("w1", "killed")
    clock.advance(10_000)

    assert 0 == store.expire(10)
    assert [job.id] == ids(take(store))


def test_run_now_counts_from_now(store, clock):
    job = put_expiring(store, delay=HOUR)
    clock.advance(600)

    assert to_datetime(clock() + MINUTES) == store.run_now(job.id).start_by
    clock.advance(299)
    assert [job.id] == ids(take(store))


def test_run_now_leaves_the_time_of_a_due_job(store, clock):
    job = put_expiring(store)
    clock.advance(10)

    assert job.start_by == store.run_now(job.id).start_by


def test_a_reschedule_counts_from_the_new_time(store, clock):
    job = put_expiring(store)
    clock.advance(400)

    moved = store.reschedule(job.id, Reschedule(delay=HOUR))

    assert to_datetime(clock() + HOUR + MINUTES) == moved.start_by
    assert 0 == store.expire(10)
    assert moved.start_by == store.reschedule(job.id, Reschedule(priority=3)).start_by
    clock.advance(3600 + 300)
    assert 1 == store.expire(10)


def test_a_retry_by_hand_does_not_expire(store, clock):
    job = put_expiring(store)
    clock.advance(300)
    store.expire(10)

    assert store.retry(job.id).start_by is None
    clock.advance(10_000)
    assert [job.id] == ids(take(store))


@pytest.mark.parametrize("by", ["claim", "chore"])
def test_its_dedupe_key_is_released(store, clock, by):
    job = put_expiring(store, dedupe="k")
    clock.advance(300)
    take(store) if by == "claim" else store.expire(10)

    again = put(store, dedupe="k")
    assert job.id != again.id
    assert Status.CANCELLED == store.get(job.id).status


def test_a_successor_that_waited_too_long_for_its_key_has_expired(store, clock):
    """It was due when it was enqueued."""
    rule = rule_text(Dedupe("k", mode="replace"))
    put(store, dedupe="k", dedupe_rule=rule)
    (first,) = take(store)
    by = to_datetime(clock() + MINUTES)
    successor = put_expiring(store, dedupe="k", dedupe_rule=rule)
    clock.advance(1000)
    assert 0 == store.expire(10)

    settle_one(store, first, COMPLETED)

    assert by == store.get(successor.id).start_by
    assert [] == take(store)
    assert REASON == store.get(successor.id).error
    assert put(store, dedupe="k", dedupe_rule=rule).run_at == to_datetime(clock())


def test_an_expired_job_takes_no_place_of_a_limited_type(store, clock):
    limit(store, "noop", 1)
    late, other = put_expiring(store), put(store)
    clock.advance(300)

    (claimed,) = [*take(store), *take(store)]
    assert other.id == claimed.id
    settle_one(store, claimed, FAILED)
    assert Status.CANCELLED == store.get(late.id).status


def test_it_can_be_cancelled_and_deleted_as_any_other(store):
    job = put_expiring(store)
    assert "cancelled" == store.cancel(job.id).error
    store.delete(job.id)
    assert store.get(job.id) is None


def test_two_claims_and_a_chore_at_once_end_each_job_once(open_store, clock):
    ours, theirs, third = open_store(), open_store(), open_store()
    late = put_many(ours, 40, start_within=MINUTES)
    clock.advance(300)
    good = put_many(ours, 10)

    def work(handle):
        held = []
        for _ in range(40):
            held += take(handle, 4)
        return held

    first, second, _ = at_once(lambda: work(ours), lambda: work(theirs), lambda: [third.expire(3) for _ in range(10)])

    while ours.expire(100):
        pass
    assert sorted(ids(good)) == sorted(ids([*first, *second]))
    assert {Status.CANCELLED} == {ours.get(job.id).status for job in late}


@pytest.mark.only("postgresql")
def test_a_key_that_a_user_has_locked_keeps_no_claim_waiting(store, clock, users):
    late, other = put_expiring(store, dedupe="k"), put(store)
    clock.advance(300)
    users.execute("SELECT 1 FROM treadle.dedupe FOR UPDATE")

    assert [other.id] == ids(take(store))
    assert Status.PENDING == store.get(late.id).status
    users.rollback()
    assert [] == take(store)
    assert Status.CANCELLED == store.get(late.id).status


@pytest.mark.only("sqlite", "libsql")
def test_a_clock_that_steps_back_moves_the_time_too(store, clock):
    job = put_expiring(store)
    clock.step_back(3600)
    other = put(store, "other")

    assert [job.id, other.id] == ids(take(store))


# Why


def test_why_says_until_when_it_may_start(store, clock):
    job = put_expiring(store)
    clock.advance(60)

    *_, last = explain(store.job_facts(job.id)).reasons

    assert ReasonCode.EXPIRES == last.code
    assert "in 4m" in last.text
    assert f"treadle jobs reschedule {job.id}" in last.way_out


def test_why_says_that_it_is_about_to_be_cancelled(store, clock):
    job = put_expiring(store)
    clock.advance(300)

    first, *_ = explain(store.job_facts(job.id)).reasons

    assert ReasonCode.EXPIRED == first.code
    assert "not started within 300s" in first.text


def test_why_says_that_it_expired(store, clock):
    job = put_expiring(store)
    clock.advance(300)
    store.expire(10)

    (reason,) = explain(store.job_facts(job.id)).reasons

    assert ReasonCode.EXPIRED == reason.code
    assert REASON in reason.text
    assert f"treadle jobs retry {job.id}" in reason.way_out
