"""Fairness: the tenants of a type take turns, no slot stays free, and what is not fair is as before."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conformance.fairness.helpers import BIG, SMALL, drain, put_fair, tenants, waiting
from tests.conformance.helpers import ids, put, settle_one, take
from treadle.codec import as_json
from treadle.limits import Limit
from treadle.outcome import COMPLETED
from treadle.stores.base import TypePolicy

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
