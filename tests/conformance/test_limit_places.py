"""Places that become free while others claim: the next job goes, though a claim cannot see what is not committed."""

from __future__ import annotations

import threading
import time

import pytest

from tests.conformance.helpers import at_once, check_consistency, ids, put_many, settle_one, take
from treadle import Limit
from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.outcome import COMPLETED, Outcome, OutcomeKind
from treadle.pauses import NewPause, Target
from treadle.stores import claim_order, limiting
from treadle.stores.base import TypePolicy
from treadle.stores.postgres.connection import Transaction


def declare(store, concurrency):
    store.publish([TypePolicy(type="noop", limits=as_json([Limit("api", concurrency, per="tenant")]))])


def before(monkeypatch, fragment, call):
    """Call it once, before the next statement that has this in it."""
    left, execute = [call], Transaction.execute

    def patched(tx, statement, *parameters):
        if fragment in statement and left:
            left.pop()()
        return execute(tx, statement, *parameters)

    monkeypatch.setattr(Transaction, "execute", patched)
    return left


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("commits", [True, False])
def test_a_job_goes_that_was_parked_while_a_user_completed_the_one_before_it(store, users, commits):
    declare(store, 1)
    first, second = put_many(store, 2, tenant="acme")
    (running,) = take(store, 1)
    store.complete_within(running, COMPLETED, users)

    assert [] == take(store)
    assert [] == take(store)
    if commits:
        users.commit()
    else:
        users.rollback()
        assert [] == take(store)
        assert settle_one(store, running, COMPLETED)

    assert [second.id] == ids(take(store))
    assert first.id == running.id
    check_consistency(store)


@pytest.mark.only("postgresql")
def test_a_job_goes_whose_place_becomes_free_just_before_it_is_parked(store, open_store, monkeypatch):
    other = open_store()
    declare(store, 1)
    _, second = put_many(store, 2, tenant="acme")
    (running,) = take(other, 1)
    left = before(monkeypatch, "SET parked = m.parked", lambda: settle_one(other, running, COMPLETED))

    assert [] == take(store)
    assert [] == left
    assert [second.id] == ids(take(store))


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("commits", [True, False])
def test_both_places_are_used_again_though_one_is_freed_by_a_user(store, users, commits):
    declare(store, 2)
    put_many(store, 5, tenant="acme")
    one, other = take(store, 2)
    store.complete_within(one, COMPLETED, users)
    assert [] == take(store)
    assert settle_one(store, other, COMPLETED)
    assert 1 == len(take(store))
    if commits:
        users.commit()
    else:
        users.rollback()
        assert [] == take(store)
        assert settle_one(store, one, COMPLETED)

    assert 1 == len(take(store))


@pytest.mark.only("postgresql")
def test_a_parked_job_that_another_transaction_has_locked_is_not_forgotten(store, users, clock):
    declare(store, 1)
    _, second = put_many(store, 2, tenant="acme")
    (running,) = take(store)
    users.execute("SELECT 1 FROM treadle.ready FOR UPDATE")
    assert settle_one(store, running, COMPLETED)
    assert [] == take(store)
    users.commit()
    clock.advance(1)

    assert [second.id] == ids(take(store))


ACME = Target(tenant="acme")
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('treadle api' || chr(31) || %s, 0))"


@pytest.mark.only("postgresql")
def test_of_places_that_are_freed_together_those_that_another_claim_has_locked_come_later(store, users, clock):
    declare(store, 1)
    jobs = put_many(store, 2, tenant="acme") + put_many(store, 2, tenant="umbrella")
    running = take(store, 4)
    assert [] == take(store)
    store.settle([(one, COMPLETED) for one in running])
    users.execute(LOCK, ["acme"])

    assert [jobs[3].id] == ids(take(store))
    users.commit()
    clock.advance(1)
    assert [jobs[1].id] == ids(take(store))
    check_consistency(store)


@pytest.mark.parametrize("looked_at", [1, 200])
def test_jobs_of_a_paused_tenant_do_not_use_the_places_of_a_key_that_others_share(store, monkeypatch, looked_at):
    monkeypatch.setattr(limiting, "MOST_BESIDE", looked_at)
    store.publish([TypePolicy(type="noop", limits=as_json([Limit("api", 1, per="subject")]))])
    first, *theirs = put_many(store, 6, tenant="acme", subject="call")
    ours = put_many(store, 2, tenant="umbrella", subject="call")
    (running,) = take(store)
    assert [] == take(store)
    store.pause(NewPause(target=ACME, by="ann"))
    assert settle_one(store, running, COMPLETED)

    found = []
    while not found:
        found = take(store)
        assert found or found.due.now
    assert (first.id, [ours[0].id]) == (running.id, ids(found))
    store.resume(ACME)
    assert settle_one(store, found[0], COMPLETED)
    rest = []
    while found := take(store) or take(store):
        rest += ids(found)
        assert settle_one(store, found[0], COMPLETED)
    assert sorted([*ids(theirs), ours[1].id]) == sorted(rest)
    check_consistency(store)


def test_a_job_that_may_no_longer_start_does_not_use_a_free_place(store, clock):
    declare(store, 1)
    put_many(store, 1, tenant="acme")
    (running,) = take(store)
    put_many(store, 3, tenant="acme", start_within=SECOND)
    (last,) = put_many(store, 1, tenant="acme")
    assert [] == take(store)
    clock.advance(2)
    assert settle_one(store, running, COMPLETED)

    found = []
    while not found:
        found = take(store, 1)
        assert found or found.due.now
    assert [last.id] == ids(found)
    check_consistency(store)


@pytest.mark.parametrize("keys", ["[null]", "[1, true]", "[]"])
def test_an_opening_that_was_broken_by_hand_stops_no_claim(store, by_hand, keys):
    declare(store, 1)
    _, second = put_many(store, 2, tenant="acme")
    (running,) = take(store)
    assert [] == take(store)
    assert settle_one(store, running, COMPLETED)
    by_hand(f"UPDATE treadle_openings SET keys = '{keys}'")

    found = take(store)
    store.open_limits()  # the chore
    assert [second.id] == ids(found or take(store))


@pytest.mark.only("postgresql")
def test_a_lease_whose_key_was_deleted_by_hand_stops_no_claim(store, by_hand):
    declare(store, 1)
    _, second = put_many(store, 2, tenant="acme")
    (running,) = take(store)
    assert [] == take(store)
    by_hand("UPDATE treadle_leases SET limit_key = NULL")
    assert settle_one(store, running, COMPLETED)

    take(store)
    store.open_limits()
    assert [second.id] == ids(take(store))


@pytest.mark.parametrize("most", [1, 2, 100])
def test_a_claim_comes_to_some_of_the_places_that_are_free_and_the_next_one_to_the_rest(store, monkeypatch, most):
    monkeypatch.setattr(limiting, "MOST_OPENINGS", most)
    declare(store, 1)
    for n in range(6):
        put_many(store, 2, tenant=f"t{n}")
    running = []
    while some := take(store, 12):
        running += some
    assert 6 == len(running)
    for n in (0, 2, 4):
        store.settle([(one, COMPLETED) for one in running[n : n + 2]])

    first, *rest = [take(store, 12) for _ in range(6)]

    assert min(most, 6) == len(first)
    assert 6 == len(first) + sum(map(len, rest))
    check_consistency(store)


@pytest.mark.only("postgresql")
def test_a_claim_takes_what_it_puts_back_though_looks_are_expensive(store, open_store, monkeypatch):
    declare(store, 1)
    _, second = put_many(store, 2, tenant="acme")
    (running,) = take(store)
    assert settle_one(store, running, COMPLETED)
    monkeypatch.setattr(claim_order, "CHEAP", -1.0)
    monkeypatch.setattr(claim_order.Cursors, "next_look", lambda _: 1.0)

    assert [second.id] == ids(take(open_store()))


@pytest.mark.only("postgresql")
def test_a_claim_that_has_come_to_a_limit_without_a_key_does_not_wait_for_others(store, clock, monkeypatch):
    """They lock the limits in another order: it could be a deadlock."""
    store.publish([TypePolicy(type="noop", limits=as_json([Limit("a", 5), Limit("b", 5)]))])
    put_many(store, 2)
    (running,) = take(store, 1)
    assert settle_one(store, running, Outcome(OutcomeKind.SNOOZED, charged=0, holds="b", delay=SECOND))
    assert [] == take(store)
    clock.advance(2)
    waits = before(monkeypatch, "SELECT k.name, k.key, pg_advisory_xact_lock", lambda: None)

    assert 2 == len(take(store))
    assert 1 == len(waits)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_job_is_left_behind_when_all_claim_and_settle_at_once(open_store, concurrency):
    """Nobody looks after what was missed here: there are no chores."""
    stores = [open_store() for _ in range(3)]
    declare(stores[0], concurrency)
    for n in range(40):
        put_many(stores[0], 3, tenant=f"t{n % 3}")
    left, lock = [120], threading.Lock()
    until = time.monotonic() + 60

    def work(store):
        while left[0] and time.monotonic() < until:
            for one in take(store, 4):
                assert settle_one(store, one, COMPLETED)
                with lock:
                    left[0] -= 1

    assert [None] * 3 == at_once(*(lambda store=store: work(store) for store in stores))
    assert [0] == left
    check_consistency(stores[0])
