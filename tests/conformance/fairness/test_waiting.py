"""Where a job of a fair type waits, and everything else that happens to it there."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conformance.fairness.helpers import BIG, SMALL, put_fair, tenants, waiting
from tests.conformance.helpers import FAILED, MINUTE, RETRIED, enlist, ids, place_of, settle_one, take
from treadle.clock import SECOND
from treadle.errors import WorkerQuiet
from treadle.job import Reschedule, Status
from treadle.outcome import RELEASED, Outcome, OutcomeKind
from treadle.pauses import NewPause, Target
from treadle.schedule import NewSchedule, Rule
from treadle.stores import turns
from treadle.stores.base import ClaimRequest, TypePolicy

# Where a job waits


def test_a_producer_that_did_not_know_is_served_by_turns_all_the_same(fair):
    put_fair(fair, BIG, 10, fair="")
    put_fair(fair, SMALL, 1, fair="")
    assert {"": 11} == waiting(fair)

    assert {BIG: 1, SMALL: 1} == Counter(tenants(take(fair, 2)))
    assert {"fair": 9} == waiting(fair)


def test_jobs_of_producers_that_know_and_of_those_that_do_not_take_turns_together(fair, clock):
    put_fair(fair, BIG, 50)
    clock.advance(1)
    late = put_fair(fair, SMALL, 1, fair="")

    assert late[0] in ids(take(fair, 2))


def test_a_claim_moves_a_bounded_number_of_jobs_and_the_next_ones_the_rest(fair, monkeypatch):
    monkeypatch.setattr(turns, "MOST_PARKED", 5)
    put_fair(fair, BIG, 12, fair="")

    claimed = take(fair, 10)

    assert (5, 0.0) == (len(claimed), claimed.due.in_seconds)
    assert [5, 2, 0] == [len(take(fair, 10)) for _ in range(3)]


def test_a_lower_priority_of_a_producer_that_did_not_know_is_found(fair):
    put_fair(fair, "a", 1, priority=3, delay=MINUTE)
    put_fair(fair, "a", 2, priority=2)
    low = put_fair(fair, "a", 1, priority=1, fair="")
    lowest = put_fair(fair, "a", 1, priority=0)

    assert [*low, *lowest] == ids(take(fair, 10))[2:]


def test_what_is_for_later_waits_in_order_until_it_is_due(fair, clock):
    put_fair(fair, BIG, 3, delay=MINUTE)
    put_fair(fair, SMALL, 1)
    assert {"": 3, "fair": 1} == waiting(fair)

    assert [SMALL] == tenants(claimed := take(fair, 10))
    assert (False, clock() + MINUTE) == (claimed.due.now, claimed.due.next_at)
    clock.advance(60)
    assert fair.due(ClaimRequest(limit=1)).now
    assert [BIG] * 3 == tenants(take(fair, 10))


@pytest.mark.parametrize("outcome", [RETRIED, RELEASED, Outcome(OutcomeKind.SNOOZED, charged=0)], ids=lambda o: o.kind)
def test_a_job_that_waits_again_takes_turns_again(fair, outcome):
    put_fair(fair, BIG, 1)
    [claimed] = take(fair)
    settle_one(fair, claimed, outcome)
    put_fair(fair, SMALL, 5)

    assert {BIG, SMALL} == set(tenants(take(fair, 2)))


def test_a_job_that_is_retried_by_hand_takes_turns_again(fair):
    put_fair(fair, SMALL, 1)
    [claimed] = take(fair)
    settle_one(fair, claimed, FAILED)
    put_fair(fair, BIG, 5)
    fair.retry(claimed.id)

    assert claimed.id in ids(take(fair, 2))


def test_a_job_that_is_run_now_or_rescheduled_takes_turns(fair, clock):
    [now] = put_fair(fair, "a", delay=MINUTE)
    [later, moved] = put_fair(fair, "b", 2)
    put_fair(fair, BIG, 5)
    fair.run_now(now)
    fair.reschedule(later, Reschedule(delay=MINUTE))
    fair.reschedule(moved, Reschedule(priority=9))

    assert [moved] == ids(take(fair, 1))
    assert {now, later} & set(ids(take(fair, 2))) == {now}
    assert BIG in tenants(take(fair, 2))
    clock.advance(60)
    assert later in ids(take(fair, 2))


def test_a_moment_of_a_schedule_waits_by_turns(fair, clock):
    fair.put_schedule(NewSchedule(name="s", type="fair", tenant="acme", rule=Rule(every=4 * SECOND)))
    clock.advance(5)

    assert 1 == fair.fire(10).jobs
    assert {"fair": 1} == waiting(fair)


def test_a_type_that_is_no_longer_fair_is_claimed_completely(fair, clock):
    old = put_fair(fair, BIG, 5)
    fair.publish([TypePolicy(type="fair")])
    clock.advance(1)
    new = put_fair(fair, BIG, 5, fair="")

    assert {"fair": 5, "": 5} == waiting(fair)
    assert sorted(old) == sorted(c.id for _ in range(5) for c in take(fair, 1))
    assert new == ids(take(fair, 10))


def test_a_job_of_a_type_that_nobody_has_published_is_claimed(store):
    job = put_fair(store, "a")

    assert job == ids(take(store))


# Everything else that happens to a job


def test_nothing_of_a_paused_queue_or_type_is_claimed(fair):
    put_fair(fair, "a", 3, queue="mail")
    for target in (Target(queue="mail"), Target(type="fair")):
        fair.pause(NewPause(target=target, by="ann"))
        assert [] == take(fair)
        assert not fair.due(ClaimRequest(limit=1)).now
        fair.resume(target)
    assert 3 == len(take(fair))


def test_a_paused_tenant_has_no_turn_and_comes_back(fair):
    for tenant in "abc":
        put_fair(fair, tenant, 3)
    pause = Target(tenant="b")
    fair.pause(NewPause(target=pause, by="ann"))

    assert {"a": 3, "c": 3} == Counter(tenants(take(fair, 10)))
    assert {"fair": 3} == waiting(fair)
    assert not fair.due(ClaimRequest(limit=1)).now
    fair.resume(pause)
    while fair.put_back_parked():
        pass
    put_fair(fair, "a", 5)
    assert {"a": 2, "b": 2} == Counter(tenants(take(fair, 4)))


def test_many_paused_tenants_do_not_hold_back_the_others(fair):
    for n in range(30):
        put_fair(fair, f"t{n:02}")
        fair.pause(NewPause(target=Target(tenant=f"t{n:02}"), by="ann"))
    free = put_fair(fair, "z")

    assert free == ids(take(fair, 1))
    assert [] == take(fair)


def test_a_job_that_was_not_started_in_time_is_cancelled(fair, clock):
    late = put_fair(fair, "a", start_within=SECOND)
    clock.advance(2)
    fresh = put_fair(fair, "b")

    assert fresh == ids(take(fair))
    assert (Status.CANCELLED, 0) == place_of(fair, late[0])


def test_a_waiting_job_can_be_cancelled_and_deleted(fair):
    cancelled, deleted, left = put_fair(fair, "a", 3)
    fair.cancel(cancelled)
    fair.delete(deleted)

    assert [left] == ids(take(fair))


def test_due_says_whether_a_claim_finds_something(fair):
    assert not fair.due(ClaimRequest(limit=1)).now
    put_fair(fair, "a")
    assert fair.due(ClaimRequest(limit=1)).now
    assert not fair.due(ClaimRequest(limit=1, types={"other": None})).now
    take(fair)
    assert not fair.due(ClaimRequest(limit=1)).now


def test_due_sees_jobs_of_a_producer_that_did_not_know(fair):
    put_fair(fair, "a", fair="")

    assert fair.due(ClaimRequest(limit=1)).now


@pytest.mark.only("sqlite", "libsql")
def test_after_a_step_of_the_clock_what_was_due_is_due(fair, clock):
    job = put_fair(fair, "a")
    clock.step_back(3600)

    assert job == ids(take(fair))


def test_a_worker_that_may_not_claim_gets_nothing(fair):
    worker = enlist(fair)
    put_fair(fair, "a")
    fair.set_quiet(worker, True)

    with pytest.raises(WorkerQuiet):
        take(fair, worker=worker)
