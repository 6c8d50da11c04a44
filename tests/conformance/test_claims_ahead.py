"""A claim of many types finds jobs for the next claims, too. What happens to these jobs until then counts."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import ids, limit, new_job, settle_one, take
from treadle import Limit
from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.errors import StoreUnusable
from treadle.job import Reschedule, Status
from treadle.outcome import COMPLETED, RELEASED, Outcome, OutcomeKind
from treadle.pauses import NewPause, Target
from treadle.stores import claim_order
from treadle.stores.base import ClaimRequest, TypePolicy
from treadle.stores.claim_order import ClaimOrder
from treadle.stores.postgres.insert_claim_settle import Transitions
from treadle.stores.postgres.insert_claim_settle_sql import READ_RANGES

pytestmark = pytest.mark.only("sqlite", "postgresql")


@pytest.fixture(autouse=True)
def looks_that_cost(monkeypatch, cheap_looks):
    """Looks cost enough that not every claim makes one, and too little to be rationed."""
    monkeypatch.setattr(claim_order, "CHEAP", -1)
    monkeypatch.setattr(claim_order, "EXPENSIVE", 1e9)
    monkeypatch.setattr(claim_order, "EVERY", 1e9)


@pytest.fixture
def ahead(monkeypatch):
    """How many jobs each claim took that an earlier one had found."""
    taken, take_ahead = [], ClaimOrder.take_ahead

    def counting(order, *args):
        found = take_ahead(order, *args)
        taken.append(len(found))
        return found

    monkeypatch.setattr(ClaimOrder, "take_ahead", counting)
    return taken


def many_types(store):
    return store.insert([new_job(f"type-{n % 50}") for n in range(600)])


def take_all(*stores):
    taken = []
    while some := [claimed for store in stores for claimed in take(store, 70)]:
        taken += some
    return taken


@pytest.mark.parametrize("limited", ["nothing", "another type"])
def test_one_claim_finds_the_jobs_of_several(open_store, ahead, limited):
    ours = open_store()
    if limited == "another type":
        limit(ours, "limited", 3)
    jobs = many_types(ours)

    assert [ids(jobs[n : n + 20]) for n in range(0, 200, 20)] == [ids(take(ours, 20)) for _ in range(10)]

    assert sum(ahead) >= 150


@pytest.mark.parametrize("limited", ["nothing", "another type", "one of them"])
def test_what_others_have_taken_is_taken_from_behind_it(open_store, limited):
    ours, theirs = open_store(), open_store()
    if limited != "nothing":
        limit(ours, "limited" if limited == "another type" else "type-7", 1_000)
    jobs = many_types(ours)
    taken = take(ours, 40)
    assert ids(jobs[:40]) == ids(taken)

    others = take(theirs, 80)
    assert ids(jobs[40:120]) == ids(others)
    taken += take(ours, 40)
    taken += take_all(ours, theirs)

    assert sorted(ids(jobs)) == sorted(ids([*taken, *others]))


def test_two_processes_that_find_the_same_jobs_take_each_once(open_store, ahead):
    ours, theirs = open_store(), open_store()
    jobs = many_types(ours)

    taken = take_all(ours, theirs)

    assert sorted(ids(jobs)) == sorted(ids(taken))
    assert any(ahead)


def retry_later(theirs, claimed):
    later = Outcome(OutcomeKind.RETRIED, error="ValueError: not today", delay=3600 * SECOND)
    assert not theirs.settle([(c, later) for c in claimed]).lost


def move_to_another_queue(theirs, claimed):
    assert not theirs.settle([(c, RELEASED) for c in claimed]).lost
    for c in claimed:
        theirs.reschedule(c.id, Reschedule(queue="other"))


@pytest.mark.parametrize("change", [retry_later, move_to_another_queue])
def test_what_may_not_run_any_more_is_not_taken(open_store, change):
    """Others run the same jobs, which then wait for a later moment, or in another queue."""
    ours, theirs = open_store(), open_store()
    jobs = many_types(ours)
    taken = take(ours, 40, queues=("default",))
    others = take(theirs, 80, queues=("default",))
    assert ids(jobs[40:120]) == ids(others)

    change(theirs, others)
    while some := take(ours, 40, queues=("default",)):
        taken += some

    assert sorted({*ids(jobs)} - {*ids(others)}) == sorted(ids(taken))


def test_a_cancelled_job_is_not_taken(open_store, ahead):
    ours, theirs = open_store(), open_store()
    jobs = many_types(ours)
    take(ours, 20)

    theirs.cancel(jobs[25].id)

    assert jobs[25].id not in ids(take(ours, 20))
    assert Status.CANCELLED is ours.get(jobs[25].id).status
    assert 579 == len(take_all(ours)) + 20
    assert any(ahead)


@pytest.mark.parametrize("what", ["queue", "type", "tenant"])
def test_what_is_paused_is_not_taken(open_store, what):
    ours, theirs = open_store(), open_store()
    jobs = ours.insert([new_job(f"type-{n % 50}", tenant="acme" if n % 50 == 25 else "") for n in range(600)])
    target = {"queue": Target(queue="default"), "type": Target(type="type-25"), "tenant": Target(tenant="acme")}[what]
    taken = take(ours, 20)

    theirs.pause(NewPause(target=target, by="ann"))

    rest = take_all(ours)
    assert (0 if what == "queue" else 568) == len(rest)
    assert not {*ids(rest)} & {*ids(jobs[25::50])}
    theirs.resume(target)
    while ours.due(ClaimRequest(limit=1)).now:
        rest += take_all(ours)
    assert sorted(ids(jobs)) == sorted(ids([*taken, *rest]))


@pytest.mark.parametrize("who", ["this process", "another process"])
def test_a_limit_that_came_later_is_not_exceeded(open_store, ahead, who):
    ours, theirs = open_store(), open_store()
    many_types(ours)
    take(ours, 20)

    limit(ours if who == "this process" else theirs, "type-25", 1)

    taken = take_all(ours)
    assert 1 == len([c for c in taken if c.type == "type-25"])
    assert 580 - 11 == len(taken)
    assert settle_one(ours, next(c for c in taken if c.type == "type-25"), COMPLETED)
    assert ["type-25"] == [c.type for c in take_all(ours)]


def test_a_job_that_expired_meanwhile_is_not_taken(open_store, clock, ahead):
    ours = open_store()
    jobs = ours.insert([new_job(f"type-{n % 50}", start_within=SECOND if n == 25 else None) for n in range(600)])
    take(ours, 20)

    clock.advance(2)

    assert 579 == len(take_all(ours))
    assert Status.CANCELLED is ours.get(jobs[25].id).status


def test_a_claim_that_was_rolled_back_hides_no_jobs(open_store, monkeypatch):
    ours = open_store()
    jobs = many_types(ours)
    taken = take(ours, 20)

    with monkeypatch.context() as patch:
        patch.setattr(type(ours.database), "_commit", broken, raising=False)
        patch.setattr(type(ours.database), "commit", broken, raising=False)
        with pytest.raises(StoreUnusable):
            take(ours, 20)

    assert sorted(ids(jobs)) == sorted(ids([*taken, *take_all(ours)]))


def broken(*_):
    raise StoreUnusable("here", "it broke", "wait")


@pytest.mark.only("postgresql")
def test_a_claim_that_others_were_faster_than_reads_few_times(open_store, monkeypatch):
    """All ranges begin later than it knew: it must not find that out one by one."""
    ours, theirs = open_store(), open_store()
    monkeypatch.setattr(claim_order, "CLAIMS_AHEAD", 0)
    jobs = many_types(ours)
    take(ours, 20)
    others = take(theirs, 310)
    reads, value = [], Transitions.value
    monkeypatch.setattr(Transitions, "value", lambda tx, sql, *row: reads.append(sql) or value(tx, sql, *row))

    taken = [take(ours, 20) for _ in range(10)]

    assert ids(jobs[330:530]) == [id for claimed in taken for id in ids(claimed)]
    assert 310 == len(others)
    assert reads.count(READ_RANGES) <= 15


# What was found ahead is not bypassed


def two_priorities(store):
    """100 urgent jobs of 50 types, and 100 others."""
    urgent = store.insert([new_job(f"type-{n % 50}", priority=1) for n in range(100)])
    store.insert([new_job(f"type-{n % 50}") for n in range(100)])
    return urgent


def test_the_next_jobs_follow_one_that_was_cancelled(open_store):
    store = open_store()
    urgent = two_priorities(store)
    assert ids(urgent[:20]) == ids(take(store, 20))

    store.cancel(urgent[20].id)

    assert ids(urgent[21:41]) == ids(take(store, 20))


def test_the_next_jobs_follow_those_that_others_have_taken(open_store):
    ours, theirs = open_store(), open_store()
    urgent = two_priorities(ours)
    take(ours, 20)
    assert ids(urgent[20:30]) == ids(take(theirs, 10))

    assert ids(urgent[30:50]) == ids(take(ours, 20))


def test_the_next_jobs_follow_those_that_have_no_place(open_store):
    store = open_store()
    limit_by_tenant = as_json([Limit("k", concurrency=1, per="tenant")])
    store.publish([TypePolicy(type="keyed", limits=limit_by_tenant)])
    keyed = store.insert([new_job("keyed", tenant="t", priority=1) for _ in range(3)])
    urgent = two_priorities(store)

    assert ids([keyed[0], *urgent[:19]]) == ids(take(store, 20))
    assert ids(urgent[19:39]) == ids(take(store, 20))


@pytest.mark.parametrize("priority", [9, 0])
@pytest.mark.parametrize("who", ["this process", "another process"])
def test_a_place_that_becomes_free_is_used_by_the_next_claim(open_store, ahead, who, priority):
    ours, theirs = open_store(), open_store()
    limit(theirs, "limited", 1)
    limited = theirs.insert([new_job("limited", priority=priority) for _ in range(3)])
    many_types(theirs)
    (first,) = take(ours, 1)
    assert limited[0].id == first.id
    take(ours, 20)
    take(ours, 20)
    assert ahead[-1]

    assert settle_one(ours if who == "this process" else theirs, first, COMPLETED)

    assert limited[1].id in ids(take(ours, 20))
