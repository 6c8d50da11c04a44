"""Fairness: the tenants of a type take turns, no slot stays free, and what is not fair is as before."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from tests.conformance.helpers import (
    FAILED,
    MINUTE,
    RETRIED,
    at_once,
    by_hand,
    enlist,
    ids,
    new_job,
    place_of,
    put,
    select,
    settle_one,
    take,
)
from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.diagnosis import explain, for_tenant
from treadle.errors import WorkerQuiet
from treadle.ids import new_id
from treadle.job import Reschedule, Status
from treadle.limits import Limit
from treadle.outcome import COMPLETED, RELEASED, Outcome, OutcomeKind
from treadle.pauses import NewPause, Target
from treadle.reasons import ReasonCode
from treadle.schedule import NewSchedule, Rule
from treadle.stores import turns
from treadle.stores.base import ClaimRequest, TypePolicy

BIG, SMALL = "big", "small"


@pytest.fixture
def fair(store: Any) -> Any:
    """A store in which the tenants of the type `fair` take turns."""
    store.publish([TypePolicy(type="fair", fair="tenant")])
    return store


def put_fair(store: Any, tenant: str, n: int = 1, **options: Any) -> list[str]:
    options = {"type": "fair", "fair": "tenant", **options}
    return ids(store.insert([new_job(tenant=tenant, **options) for _ in range(n)]))


def tenants(claimed: Any) -> list[str]:
    return [c.tenant for c in claimed]


def waiting(store: Any) -> dict[str, int]:
    """How many rows are in which index."""
    return dict(select(store, "SELECT parked, count(*) FROM treadle.ready GROUP BY parked"))


def drain(store: Any, limit: int, most: int = 10_000, **wanted: Any) -> list[str]:
    """The tenants of all jobs, in the order in which claims of `limit` took them."""
    order: list[str] = []
    while len(order) < most and (claimed := take(store, limit, **wanted)):
        order += tenants(claimed)
        store.settle([(c, COMPLETED) for c in claimed])
    return order


# Turns


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_each_tenant_has_one_job_per_turn(fair, limit):
    for tenant in "abc":
        put_fair(fair, tenant, 4)

    had: Counter[str] = Counter()
    while claimed := take(fair, limit):
        had.update(tenants(claimed))
        assert max(had.values()) <= min(had[tenant] for tenant in "abc") + 1
    assert {"a": 4, "b": 4, "c": 4} == had


def test_within_a_tenant_the_oldest_job_comes_first(fair, clock):
    jobs = []
    for _ in range(5):
        jobs += put_fair(fair, "a")
        put_fair(fair, "b", 2)
        clock.advance(1)

    claimed = [c for _ in range(15) for c in take(fair, 1)]

    assert jobs == [c.id for c in claimed if c.tenant == "a"]


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_a_tenant_with_one_job_waits_for_at_most_one_turn_of_the_others(fair, limit):
    for n in range(5):
        put_fair(fair, f"{BIG}-{n}", 100)
    drain(fair, limit, most=20)
    put_fair(fair, SMALL)

    before = drain(fair, limit)
    before = before[: before.index(SMALL)]

    assert len(before) < 5 + limit
    assert max(Counter(before).values(), default=0) <= 1 + limit // 5


def test_a_tenant_that_comes_back_again_and_again_waits_for_one_turn_each_time(fair):
    put_fair(fair, BIG, 200)
    put_fair(fair, "other", 200)
    waits = []
    for _ in range(20):
        put_fair(fair, SMALL)
        order = drain(fair, 1, most=3)
        waits.append(order.index(SMALL))

    assert max(waits) <= 2


def test_jobs_without_a_tenant_take_turns_as_one(fair):
    put_fair(fair, "", 10)
    put_fair(fair, "a", 10)

    assert {"": 4, "a": 4} == Counter(tenants(take(fair, 8)))


def test_tenants_of_any_name_have_their_turn(fair):
    names = ["", " ", "%", "a", "A", "ä", "a b", "a\"b'c", "\x7f", "\U0010ffff", "\U0010ffffx", "日本"]
    for name in names:
        put_fair(fair, name, 3)

    order = drain(fair, 6)

    assert set(names) == set(order[: len(names)])
    assert 3 * len(names) == len(order)


# No slot stays free


@pytest.mark.parametrize("limit", [1, 10, 64])
def test_one_tenant_alone_gets_every_slot(fair, limit):
    put_fair(fair, BIG, 100)

    assert limit == len(take(fair, limit))


@pytest.mark.parametrize("shares", [(1, 100), (1, 2, 3, 50), (20, 20, 20), (1,) * 30 + (40,), (33, 33, 34)])
def test_a_tenant_with_few_jobs_leaves_its_slots_to_the_others(fair, shares):
    for n, share in enumerate(shares):
        put_fair(fair, f"t{n}", share)

    assert min(60, sum(shares)) == len(take(fair, 60))
    assert sum(shares) - min(60, sum(shares)) == len(take(fair, 100))


def test_a_claim_that_is_not_full_takes_all(fair):
    for n in range(300):
        put_fair(fair, f"t{n:03}")

    claimed = [len(take(fair, 200)) for _ in range(3)]

    assert [200, 100, 0] == claimed


# Beside other jobs


def test_a_higher_priority_comes_first(fair):
    put_fair(fair, BIG, 5)
    urgent = put_fair(fair, BIG, 3, priority=5)
    put_fair(fair, SMALL, 1)
    lowest = put_fair(fair, SMALL, 1, priority=-5)

    claimed = take(fair, 100)

    assert urgent == sorted(ids(claimed)[:3])
    assert lowest == ids(claimed)[-1:]
    assert 10 == len(claimed)


def test_turns_are_taken_inside_of_a_queue(fair):
    put_fair(fair, "a", 5, queue="q")
    put_fair(fair, "b", 5, queue="q")
    put_fair(fair, "b", 5, queue="r")

    assert {"a": 2, "b": 2} == Counter(tenants(take(fair, 4, queues=("q",))))
    assert {"b": 4} == Counter(tenants(take(fair, 4, queues=("r",))))
    assert 7 == len(take(fair, 100))


def test_only_the_wanted_types_are_claimed(fair):
    put_fair(fair, "a", 3)
    other = put(fair, "other").id

    assert [other] == ids(take(fair, 10, types={"other": None}))
    assert [] == take(fair, 10, types={"other": None})
    assert 3 == len(take(fair, 10, types={"fair": None}))


def test_a_fair_type_stands_where_its_oldest_jobs_stand(fair, clock):
    """Between types age decides, as ever. Inside of the fair one, whose turn it is goes in the place of the oldest."""
    old = put_fair(fair, BIG, 3)
    clock.advance(1)
    plain = [put(fair, "plain").id for _ in range(2)]
    clock.advance(1)
    new = put_fair(fair, SMALL, 1)

    claimed = take(fair, 5)

    assert {BIG: 2, SMALL: 1, "": 2} == Counter(tenants(claimed))
    assert sorted([*old, *plain, *new]) == sorted(ids([*claimed, *take(fair, 5)]))


@pytest.mark.parametrize("limit", [1, 4, 50])
def test_an_unfair_type_of_the_same_priority_is_not_starved(fair, clock, limit):
    for n in range(60):
        put_fair(fair, f"t{n % 7}")
        put(fair, "plain")
        clock.advance(0.001)

    plain = 0
    for _ in range(120 // limit + 1):
        plain += sum(c.type == "plain" for c in take(fair, limit))
    assert 60 == plain
    assert {} == waiting(fair)


def test_a_limited_fair_type_keeps_to_its_limit(fair):
    fair.publish([TypePolicy(type="fair", fair="tenant", concurrency=3)])
    put_fair(fair, BIG, 20)
    put_fair(fair, SMALL, 1)
    other = put(fair, "other").id

    claimed = take(fair, 10)

    assert {"fair": 3, "other": 1} == Counter(c.type for c in claimed)
    assert other in ids(claimed)
    assert [] == take(fair, 10)
    settle_one(fair, next(c for c in claimed if c.type == "fair"), COMPLETED)
    assert 1 == len(take(fair, 10))


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_a_limit_per_tenant_holds_and_the_others_take_turns(fair, limit):
    limits = as_json([Limit("one each", concurrency=1, per="tenant")])
    fair.publish([TypePolicy(type="fair", fair="tenant", limits=limits)])
    put_fair(fair, BIG, 30)
    for tenant in "abc":
        put_fair(fair, tenant, 2)

    done: Counter[str] = Counter()
    while running := [c for _ in range(12) for c in take(fair, limit)]:
        assert len(running) == len(set(tenants(running)))  # each once
        fair.settle([(c, COMPLETED) for c in running])
        done.update(tenants(running))
        if sum(done.values()) == 8:
            assert {BIG: 2, "a": 2, "b": 2, "c": 2} == done
    assert {BIG: 30, "a": 2, "b": 2, "c": 2} == done


def test_two_fair_types_are_both_served(fair):
    fair.publish([TypePolicy(type="second", fair="tenant")])
    for type in ("fair", "second"):
        for tenant in "ab":
            put_fair(fair, tenant, 10, type=type)

    claimed = [c for _ in range(8) for c in take(fair, 5)]

    assert 40 == len(claimed)
    assert {} == waiting(fair)


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


# Stats and why


def test_fair_jobs_are_counted_as_queued_with_the_oldest(fair, clock):
    oldest = clock()
    put_fair(fair, "b", 3)
    clock.advance(1)
    put_fair(fair, "a", 2, delay=MINUTE)
    put_fair(fair, "a", 2)
    put_fair(fair, "a", 1, priority=4)

    [found] = fair.queue_stats()

    assert (6, 2) == (found.counts["queued"], found.counts["scheduled"])
    assert (oldest, clock() + MINUTE, True) == (found.oldest_due, found.next_due, found.exact)


def test_a_job_is_ahead_of_another_type_wherever_it_waits(fair, clock):
    enlist(fair, types=("fair", "plain"))
    put_fair(fair, "a", 3, priority=1)
    put_fair(fair, "a", 2)
    put_fair(fair, "b", 2, fair="")
    clock.advance(1)
    job = put(fair, "plain").id

    assert 7 == fair.job_facts(job).ahead


def test_a_fair_job_knows_who_takes_turns_with_it(fair, clock):
    enlist(fair, types=("fair",))
    put_fair(fair, "a", 3, priority=1)
    for tenant in "abc":
        put_fair(fair, tenant, 4)
    clock.advance(1)
    [job] = put_fair(fair, "b")

    facts = fair.job_facts(job)

    assert ((3, 4), 3) == (facts.turns, facts.ahead)
    assert fair.job_facts(put(fair, "plain").id).turns is None


def test_why_says_who_takes_turns(fair):
    enlist(fair, types=("fair",))
    for tenant in ("a", "b", "b"):
        [job] = put_fair(fair, tenant)
    [reason] = explain(fair.job_facts(job)).reasons

    assert (ReasonCode.TURNS, {"tenants": 2, "before": 1}) == (reason.code, reason.data)
    assert (
        "the tenants of type 'fair' take turns: 2 tenants with due jobs, and 1 of its own jobs comes first"
        == reason.text
    )
    [later] = put_fair(fair, "a", delay=MINUTE)
    assert [ReasonCode.NOT_DUE] == [reason.code for reason in explain(fair.job_facts(later)).reasons]


def test_nothing_is_in_the_way_of_the_only_job(fair):
    enlist(fair, types=("fair",))
    [job] = put_fair(fair, "a")

    assert [ReasonCode.NEXT_LOOK] == [reason.code for reason in explain(fair.job_facts(job)).reasons]


def test_why_tells_a_tenant_nothing_of_the_others(fair):
    enlist(fair, types=("fair",))
    put_fair(fair, "a", 3)
    [job] = put_fair(fair, "b")
    [reason] = for_tenant(explain(fair.job_facts(job)), fair.get(job)).reasons

    assert (ReasonCode.TURNS, {}) == (reason.code, reason.data)
    assert not any(character.isdigit() for character in reason.text + reason.way_out)


# Several at once


def test_two_handles_at_once_get_different_jobs(open_store):
    first, second = open_store(), open_store()
    first.publish([TypePolicy(type="fair", fair="tenant")])
    for tenant in "abcdefgh":
        put_fair(first, tenant, 50)

    def all_of(store: Any) -> list[str]:
        found: list[str] = []
        while claimed := take(store, 10):
            found += ids(claimed)
            if len(claimed) < 10 and len(found) < 150:  # others were faster: it goes on at once
                assert 0.0 == claimed.due.in_seconds
        return found

    mine, theirs = at_once(lambda: all_of(first), lambda: all_of(second))

    assert 400 == len({*mine, *theirs}) == len(mine) + len(theirs)
    assert [] == take(first)


def test_each_handle_begins_with_a_tenant_by_chance(open_store):
    """Otherwise many short-lived processes, as of `treadle tick`, would serve the first tenants only."""
    first = open_store()
    first.publish([TypePolicy(type="fair", fair="tenant")])
    for n in range(8):
        put_fair(first, f"t{n}", 60)

    firsts = {take(open_store(), 1)[0].tenant for _ in range(60)}

    assert len(firsts) >= 4


@pytest.mark.only("postgresql")
def test_a_claim_does_not_wait_for_jobs_that_another_transaction_has_locked(fair):
    put_fair(fair, "a", 1)
    put_fair(fair, "b", 1)
    put_fair(fair, "c", 1, fair="")
    with closing(by_hand(fair)) as users:
        users.execute("SELECT 1 FROM treadle.ready WHERE tenant <> 'b' FOR UPDATE")

        claimed = take(fair, 10)

        assert (["b"], None) == (tenants(claimed), claimed.due.in_seconds)
        users.rollback()
    assert ["a", "c"] == sorted(tenants(take(fair, 10)))


@pytest.mark.only("postgresql")
def test_a_claim_goes_on_with_the_next_tenants_if_others_have_the_first(fair):
    for n in range(40):
        put_fair(fair, f"t{n:02}")
    with closing(by_hand(fair)) as users:
        take(fair, 1)
        next_ones = sorted(row[0] for row in select(fair, "SELECT tenant FROM treadle.ready"))
        start = next(iter(fair.database.cursors.turn.values()))
        locked = [t for t in (*next_ones, *next_ones) if t > start][:10] if start < next_ones[-1] else next_ones[:10]
        users.execute("SELECT 1 FROM treadle.ready WHERE tenant = ANY(%s) FOR UPDATE", [locked])

        assert 10 == len(take(fair, 10))
        users.rollback()


def test_new_ids_of_fair_jobs_are_stored_once(fair):
    job = new_job("fair", tenant="a", fair="tenant", delay=0)

    assert [job.id] == ids(fair.insert([job])) == ids(fair.insert([job]))
    assert job.id < new_id()
    assert 1 == len(take(fair))
