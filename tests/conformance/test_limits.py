"""Limits are exact over live leases: they are never exceeded, and a free slot is used at once."""

from __future__ import annotations

from functools import partial

import pytest

from tests.conformance.helpers import (
    EVERY_OUTCOME,
    at_once,
    enlist,
    ids,
    limit,
    put,
    put_many,
    settle_one,
    take,
)
from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.declarations import spec_of
from treadle.filters import Filter
from treadle.job import Status
from treadle.limits import Limit, LimitChange
from treadle.outcome import COMPLETED
from treadle.stores.base import TypePolicy
from treadle.stores.limiting import SOON
from treadle.stores.shared import claim_settle
from treadle.stores.shared.expiry import expire


def test_no_more_jobs_are_leased_than_the_limit(open_store):
    ours, theirs = open_store(), open_store()
    limit(ours, "noop", 3)
    put_many(ours, 10)

    assert 2 == len(take(ours, 2))
    assert 1 == len(take(theirs, 5))
    assert [] == take(ours)


@pytest.mark.parametrize("outcome", EVERY_OUTCOME, ids=lambda outcome: outcome.kind.value)
def test_a_freed_slot_is_used_at_once(store, outcome):
    limit(store, "noop", 1)
    put_many(store, 2)
    (claimed,) = take(store)
    assert [] == take(store)

    settle_one(store, claimed, outcome)

    assert 1 == len(take(store))


def test_the_slots_of_a_worker_that_was_declared_dead_are_free(store):
    limit(store, "noop", 2)
    enlist(store, "w1")
    put_many(store, 4)
    take(store, worker="w1")

    store.declare_dead("w1", "the process died")

    assert 2 == len(take(store))


def test_a_type_at_its_limit_does_not_hold_up_the_others(store):
    limit(store, "full", 1)
    put_many(store, 5, "full", priority=9)
    others = put_many(store, 3, "free")

    assert 1 + 3 == len(take(store))
    assert {"full": 1, "free": 3} == {row["type"]: row["count"] for row in _processing(store)}
    assert set(ids(others)) < set(ids(store.jobs(Filter(statuses=(Status.PROCESSING,)), 10).jobs))


def _processing(store):
    return [row for row in store.counts(("type", "status")).rows if row["status"] == "processing"]


def test_the_limit_counts_jobs_of_all_queues(store):
    limit(store, "noop", 2)
    for queue in ("a", "b", "c"):
        put_many(store, 2, queue=queue)

    assert 2 == len(take(store, queues=("a", "b")))
    assert [] == take(store, queues=("c",))


def test_the_limit_counts_jobs_of_all_priorities(store):
    limit(store, "noop", 2)
    for priority in (1, 2, 3):
        put(store, priority=priority)

    assert [3, 2] == [store.get(c.id).priority for c in take(store)]


def test_a_limit_of_zero_lets_nothing_run(store):
    limit(store, "noop", 0)
    put(store)

    assert [] == take(store)


def test_a_limit_can_be_removed(store):
    limit(store, "noop", 1)
    put_many(store, 3)
    take(store)

    limit(store, "noop", None)

    assert 2 == len(take(store))


def test_a_limit_below_the_number_of_running_jobs_lets_them_finish(store):
    put_many(store, 5)
    running = take(store, 4)

    limit(store, "noop", 2)

    assert [] == take(store)
    store.settle([(claimed, COMPLETED) for claimed in running[:2]])
    assert [] == take(store)
    store.settle([(running[2], COMPLETED)])
    assert 1 == len(take(store))


@pytest.mark.only("postgresql")
def test_a_claim_that_looks_again_does_not_wait_for_types_that_others_have_locked(store, users, clock, monkeypatch):
    """Types are locked in the order of their names. One that it has locked already may come after these."""
    for type in ("a", "b"):
        limit(store, type, 1)
    put(store, "b", start_within=SECOND)
    clock.advance(1)
    added: list[str] = []

    def expire_while_others_claim(*given):
        added.append(put(store, "a").id)
        users.execute("SELECT pg_advisory_xact_lock(hashtextextended('treadle type:a' || chr(31), 0))")
        return expire(*given)

    with monkeypatch.context() as patched:
        patched.setattr(claim_settle, "expire", expire_while_others_claim)
        claimed = take(store)
    assert ([], True) == (claimed, claimed.due.now)
    assert claimed.due.in_seconds == SOON / SECOND
    users.rollback()
    assert added == ids(take(store))


def test_each_type_has_its_own_limit(store):
    store.publish([TypePolicy(type="a", concurrency=1), TypePolicy(type="b", concurrency=2)])
    put_many(store, 3, "a")
    put_many(store, 3, "b")

    claimed = take(store)

    assert ["a", "b", "b"] == sorted(c.type for c in claimed)


# What code declares


def test_of_several_declarations_the_newest_of_a_live_worker_wins(store, clock):
    old, newer = (
        TypePolicy(type="noop", concurrency=n, limits=as_json([Limit("openai", concurrency=n)])) for n in (5, 20)
    )

    def start(worker, policy):
        enlist(store, worker, types=("noop",), declared={"noop": spec_of(policy)})
        store.publish([policy])
        clock.advance(1)

    def in_force():
        return {limit.name: limit.concurrency for limit in store.limits()}

    start("w1", old)
    start("w2", newer)
    assert in_force() == {"openai": 20, "type:noop": 20}
    store.declare_dead("w1", "it restarts")
    start("w3", old)  # during the deployment
    assert in_force() == {"openai": 20, "type:noop": 20}
    store.declare_dead("w2", "rolled back")
    assert store.publish([old]) == 1
    assert in_force() == {"openai": 5, "type:noop": 5}
    start("w4", newer)
    assert in_force() == {"openai": 20, "type:noop": 20}
    store.change_limit(LimitChange(name="openai", concurrency=7, by="ann"))
    start("w5", TypePolicy(type="noop", concurrency=30, limits=as_json([Limit("openai", concurrency=30)])))
    assert in_force() == {"openai": 7, "type:noop": 30}


def test_declaring_the_same_again_writes_nothing(store):
    policies = [TypePolicy(type=f"t{n}", concurrency=n + 1) for n in range(1_000)]
    assert store.publish(policies) == 1_000

    assert store.publish(policies) == 0
    assert len(store.policies()) == 1_000


def test_workers_that_start_at_once_declare_their_types_without_a_deadlock(open_store):
    stores = [open_store() for _ in range(4)]
    types = [f"t{n}" for n in range(50)]

    def declare(store, concurrency, order):
        for _ in range(5):
            store.publish([TypePolicy(type=type, concurrency=concurrency) for type in order])

    at_once(*(partial(declare, store, n + 1, types[:: (-1) ** n]) for n, store in enumerate(stores)))

    (limit,) = {policy.concurrency for policy in stores[0].policies().values()}
    assert limit in range(1, 5)
