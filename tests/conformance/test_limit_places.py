"""Places that become free while others claim: the next job goes, though a claim cannot see what is not committed."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from tests.conformance.helpers import at_once, by_hand, check_consistency, ids, put, put_many, select, settle_one, take
from treadle import Limit
from treadle.codec import as_json
from treadle.outcome import COMPLETED
from treadle.stores.base import TypePolicy
from treadle.stores.limiting import LATER


def declare(store, concurrency):
    store.publish([TypePolicy(type="noop", limits=as_json([Limit("api", concurrency, per="tenant")]))])


def openings(store):
    return [tuple(row) for row in select(store, "SELECT name, key FROM treadle.openings")]


@pytest.mark.only("postgresql", "sqlite")
def test_nothing_is_written_for_places_that_no_job_awaits(store):
    declare(store, 2)
    put_many(store, 2, tenant="acme")
    put_many(store, 1, tenant="umbrella")
    running = take(store)
    assert 3 == len(running)

    assert all(settle_one(store, one, COMPLETED) for one in running)
    assert [] == openings(store)


@pytest.mark.only("postgresql", "sqlite")
def test_a_place_is_awaited_whether_it_was_taken_before_the_job_was_parked_or_after(store):
    declare(store, 2)
    jobs = put_many(store, 4, tenant="acme")
    first, second = take(store, 1), take(store, 100)
    assert [*ids(first), *ids(second)] == ids(jobs[:2])

    assert settle_one(store, first[0], COMPLETED)
    assert [("api", "acme")] == openings(store)
    (third,) = take(store)
    assert settle_one(store, second[0], COMPLETED)
    (fourth,) = take(store)
    assert settle_one(store, third, COMPLETED)
    assert settle_one(store, fourth, COMPLETED)
    assert [] == take(store)
    assert [] == openings(store)
    check_consistency(store)


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("commits", [True, False])
def test_a_job_goes_that_was_parked_while_a_user_completed_the_one_before_it(store, users, clock, commits):
    """The claim that parks it sees neither whether the place will be free, nor waits for it. It comes again."""
    declare(store, 1)
    first, second = put_many(store, 2, tenant="acme")
    (running,) = take(store, 1)
    store.complete_within(running, COMPLETED, users)

    assert [] == take(store)
    assert [] == take(store)  # comes to the opening, and finds the place as it was
    clock.advance(LATER / 1e6)
    assert [] == take(store)
    if commits:
        users.commit()
    else:
        users.rollback()
        clock.advance(LATER / 1e6)
        assert [] == take(store)
        assert settle_one(store, running, COMPLETED)
    clock.advance(LATER / 1e6)

    assert [second.id] == ids(take(store))
    assert first.id == running.id
    check_consistency(store)


@pytest.mark.only("postgresql")
def test_who_ends_a_job_waits_for_the_claim_that_parks_another_behind_it(store):
    """Else neither would see what the other has written."""
    declare(store, 1)
    put(store, tenant="acme")
    (running,) = take(store)
    waiting = put(store, tenant="acme")
    with closing(by_hand(store)) as claim:
        claim.execute("UPDATE treadle.lease_keys SET awaited = 1")
        claim.execute("UPDATE treadle.ready SET parked = 'limit:api' || chr(31) || 'acme'")
        ends = threading.Thread(target=lambda: settle_one(store, running, COMPLETED))
        ends.start()
        while not select(store, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'"):
            assert ends.is_alive()
        claim.commit()
        ends.join()

    assert [waiting.id] == ids(take(store))


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
