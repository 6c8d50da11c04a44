"""Pauses: nothing of a paused queue, type or tenant is claimed, others lose nothing, and it all comes back."""

from __future__ import annotations

import threading
from contextlib import closing
from itertools import count
from typing import Any

import pytest

from tests.conformance.helpers import (
    MINUTE,
    at_once,
    by_hand,
    enlist,
    ids,
    limit,
    new_job,
    on_postgres,
    put,
    put_many,
    select,
    settle_one,
    take,
)
from treadle import Limit
from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.errors import WorkerLost, WorkerQuiet
from treadle.job import Status
from treadle.outcome import COMPLETED, RELEASED
from treadle.pauses import NewPause, Target
from treadle.stores import claim_order, parking
from treadle.stores.base import ClaimRequest, TypePolicy
from treadle.stores.claim_order import Cursors

MAIL, EMBED, ACME = Target(queue="mail"), Target(type="embed"), Target(tenant="acme")


def pause(store: Any, target: Target, **options: Any) -> Any:
    return store.pause(NewPause(target=target, by="ann", **options))


def put_one_of(store: Any, target: Target, **options: Any) -> str:
    """A job that the target holds."""
    names = {kind: name for kind in ("queue", "tenant") if (name := getattr(target, kind))}
    return put(store, target.type or "noop", **names, **options).id


def parked(store: Any) -> list[tuple[str, int]]:
    return select(store, "SELECT parked, count(*) FROM treadle.ready WHERE parked <> '' GROUP BY parked ORDER BY 1")


def due(store: Any, **options: Any) -> Any:
    return store.due(ClaimRequest(limit=1, **options))


@pytest.fixture(params=[MAIL, EMBED, ACME], ids=lambda target: target.kind)
def target(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_nothing_of_what_is_paused_is_claimed(store, target):
    held, free = put_one_of(store, target, priority=5), put(store).id
    pause(store, target)

    assert [free] == ids(take(store, 10))
    assert [] == ids(take(store, 10))
    assert Status.PENDING == store.get(held).status


def test_a_resumed_job_is_claimed(store, target):
    held = put_one_of(store, target)
    pause(store, target)
    take(store, 10)
    store.resume(target)

    assert [held] == ids(take(store, 10))
    assert [] == store.pauses()


def test_a_job_that_is_enqueued_during_a_pause_waits_for_its_end(store, target):
    pause(store, target)
    held = put_one_of(store, target)

    assert [] == take(store)
    assert not due(store).now
    store.resume(target)
    assert due(store).now
    assert [held] == ids(take(store))


def test_a_pause_ends_by_itself(store, clock, target):
    held = put_one_of(store, target)
    end = clock() + MINUTE
    pause(store, target, until=end)

    assert [] == take(store)
    assert (False, end) == (due(store).now, due(store).next_at)
    clock.advance(60)
    assert due(store).now
    assert [held] == ids(take(store))
    assert [] == store.pauses()


def test_the_end_of_a_pause_is_not_later_than_a_job_that_is_due_before(store, clock):
    put(store, delay=10 * SECOND)
    pause(store, MAIL, until=clock() + MINUTE)

    assert clock() + 10 * SECOND == due(store).next_at


def test_pauses_are_listed_with_who_and_why(store, clock, target):
    made = pause(store, target, reason="provider down", until=clock() + MINUTE)

    assert [made] == store.pauses()
    assert (target, "ann", "provider down") == (made.target, made.by, made.reason)
    assert (60.0, False) == ((made.until - made.since).total_seconds(), made.draining)


def test_a_second_pause_replaces_all_but_the_beginning(store, clock, target):
    first = pause(store, target, reason="provider down", until=clock() + MINUTE)
    clock.advance(10)
    pause(store, target, reason="still down")

    [found] = store.pauses()
    assert (first.since, "still down", None) == (found.since, found.reason, found.until)


def test_a_pause_after_one_that_has_ended_begins_anew(store, clock, target):
    put_one_of(store, target)
    first = pause(store, target, until=clock() + MINUTE)
    take(store)
    clock.advance(120)
    second = pause(store, target)

    assert 120 == (second.since - first.since).total_seconds()
    assert [] == take(store)


def test_a_pause_that_has_ended_when_it_is_stored_holds_nothing(store, clock, target):
    """Who stores it may have waited for another transaction."""
    held = put_one_of(store, target)
    made = pause(store, target, until=clock())

    assert (target, made.since) == (made.target, made.until)
    assert [] == store.pauses()
    assert [held] == ids(take(store))


def test_resume_returns_the_pause_that_it_ended(store, target):
    made = pause(store, target)

    assert made == store.resume(target)
    assert store.resume(target) is None


def test_what_runs_goes_on_and_its_retry_waits(store, target):
    held = put_one_of(store, target)
    [running] = take(store)
    pause(store, target)

    assert 1 == store.running_of(target)
    store.settle([(running, RELEASED)])
    assert [] == take(store)
    assert 0 == store.running_of(target)
    store.resume(target)
    assert [held] == ids(take(store))


def test_a_claim_by_hand_and_a_retried_job_obey_a_pause(store, target):
    held = put_one_of(store, target)
    settle_one(store, take(store)[0], COMPLETED)
    pause(store, target)
    store.retry(held)
    store.run_now(held)

    assert [] == take(store, worker="", lease_for=MINUTE)


def test_two_pauses_hold_until_both_are_over(store):
    held = put(store, "embed", queue="mail", tenant="acme").id
    for each in (MAIL, EMBED, ACME):
        pause(store, each)
    take(store)
    for each in (MAIL, ACME):
        store.resume(each)
        assert [] == take(store)
    store.resume(EMBED)

    assert [held] == ids(take(store))


def test_a_pause_survives_a_new_handle(open_store, target):
    first = open_store()
    put_one_of(first, target)
    pause(first, target)
    first.close()

    again = open_store()
    assert [target] == [found.target for found in again.pauses()]
    assert [] == take(again)


# Parking


def test_jobs_of_a_paused_tenant_are_parked_when_a_claim_meets_them(store):
    put_many(store, 3, tenant="acme")
    free = put(store).id
    pause(store, ACME)

    assert [free] == ids(take(store, 1))
    assert [("tenant:acme", 3)] == parked(store)
    store.resume(ACME)
    while store.put_back_parked():
        pass
    assert [] == parked(store)
    assert 3 == len(take(store, 10))


def test_a_job_for_later_is_not_parked(store):
    put(store, tenant="acme", delay=MINUTE)
    pause(store, ACME)

    assert [] == take(store)
    assert [] == parked(store)


def test_the_order_among_others_stays(store):
    """Those of the paused tenant are first, in between, and in every priority."""
    expected = []
    for priority in (2, 1, 0):
        put_many(store, 3, "a", tenant="acme", priority=priority)
        expected.append(put(store, "a", priority=priority).id)
        put_many(store, 2, "b", tenant="acme", priority=priority)
        expected.append(put(store, "b", priority=priority).id)
    pause(store, ACME)

    assert expected[:4] == ids(take(store, 4))
    assert expected[4:] == ids(take(store, 4))


def test_a_claim_parks_a_bounded_number_and_the_next_ones_the_rest(store, monkeypatch):
    for module in ("sqlite", "postgres"):
        monkeypatch.setattr(f"treadle.stores.{module}.insert_claim_settle.MOST_PARKED", 5)
    put_many(store, 12, tenant="acme", priority=1)
    free = put(store).id
    pause(store, ACME)

    claimed = [*take(store, 1)]
    assert 5 <= sum(n for _, n in parked(store)) <= 10
    assert due(store).now
    for _ in range(3):
        claimed += take(store, 1)
    assert [free] == ids(claimed)
    assert [("tenant:acme", 12)] == parked(store)


def test_a_claim_looks_a_bounded_number_of_times_however_many_ranges_a_paused_tenant_has(store, monkeypatch):
    store.insert([new_job(tenant="acme", priority=n) for n in range(1, 61)])
    free = put(store).id
    pause(store, ACME)
    looks, look = [], Cursors.looked
    monkeypatch.setattr(Cursors, "looked", lambda *given: looks.append(1) or look(*given))

    claims = []
    while not any(claims):
        claims.append(take(store, 1))
        assert 0.0 == claims[-1].due.in_seconds if not claims[-1] else True
        assert len(looks) <= 25 * len(claims)
    assert [free] == ids(claims[-1])


def test_a_limited_type_is_not_held_back_by_a_paused_tenant(store):
    limit(store, "noop", 1)
    put_many(store, 20, tenant="acme")
    free = put(store).id
    pause(store, ACME)

    assert [free] == ids(take(store, 5))


def test_jobs_of_a_paused_tenant_with_a_key_of_a_limit_hold_back_nobody(store):
    store.publish([TypePolicy(type="noop", limits=as_json([Limit("api", concurrency=5, per="tenant")]))])
    put_many(store, 100, tenant="acme")
    free = put(store, tenant="umbrella").id
    pause(store, ACME)

    assert [free] == ids(take(store, 5))
    assert [("tenant:acme", 100)] == parked(store)
    assert take(store).due.in_seconds is None


def test_parked_jobs_come_back_in_chunks(store, monkeypatch):
    put_many(store, 12, tenant="acme")
    pause(store, ACME)
    take(store)
    store.resume(ACME)
    monkeypatch.setattr(parking.put_back, "__defaults__", (5,))

    assert [5, 5, 2, 0] == [store.put_back_parked() for _ in range(4)]


def test_claims_put_back_what_was_left_parked(store, monkeypatch):
    """Who resumed it died before it was done."""
    put_many(store, 12, tenant="acme")
    pause(store, ACME)
    take(store)
    store.resume(ACME)
    monkeypatch.setattr(parking.put_back, "__defaults__", (5,))

    assert [5, 5, 2, 0] == [len(take(store, 10)) for _ in range(4)]
    assert [] == select(store, "SELECT tenant FROM treadle.pauses")


@pytest.mark.only("postgresql")
def test_no_claim_hurries_for_parked_jobs_that_a_user_has_locked(store):
    """A transaction of the user's may stay open for long: each claim at once would find nothing, and begin again."""
    held = put(store, tenant="acme").id
    pause(store, ACME)
    take(store)
    with closing(by_hand(store)) as users:
        users.execute("SELECT 1 FROM treadle.ready FOR UPDATE")
        store.resume(ACME)
        claimed = take(store)
        assert ([], None) == (claimed, claimed.due.in_seconds)
        users.rollback()

    assert [held] == ids(take(store))


def test_a_claim_after_which_parked_jobs_may_be_left_is_followed_by_another(store, monkeypatch):
    put_many(store, 12, tenant="acme")
    pause(store, ACME)
    take(store)
    store.resume(ACME)
    monkeypatch.setattr(parking.put_back, "__defaults__", (5,))

    assert 0.0 == take(store).due.in_seconds


@pytest.mark.by_hand
def test_the_chore_puts_back_what_no_pause_explains(store, by_hand):
    put_many(store, 3, tenant="acme")
    pause(store, ACME)
    take(store)
    by_hand("DELETE FROM treadle_pauses")

    assert 3 == store.put_back_parked()
    assert 3 == len(take(store, 5))


def test_parked_jobs_are_listed_counted_cancelled_and_deleted_like_others(store):
    stored = put_many(store, 3, tenant="acme")
    pause(store, ACME)
    take(store)

    [row] = store.queue_stats()
    assert (3, None) == (row.counts["queued"], row.oldest_due)
    store.cancel(stored[0].id)
    store.delete(stored[1].id)
    assert Status.PENDING == store.run_now(stored[2].id).status
    store.resume(ACME)
    assert [stored[2].id] == ids(take(store, 5))


# Races


def pause_while_claiming(open_store: Any, target: Target, tries: int) -> None:
    """Workers claim and enqueue all the time. After the commit of the pause, a new claim finds nothing of it."""
    stores = [open_store() for _ in range(3)]
    stopped = threading.Event()

    def work(store: Any) -> None:
        while not stopped.is_set():
            store.insert([new_job(target.type or "noop", queue=target.queue or "q", tenant=target.tenant)])
            for claimed in take(store, 5):
                settle_one(store, claimed, COMPLETED)

    def try_it() -> None:
        store = stores[-1]
        try:
            for _ in range(tries):
                pause(store, target)
                claimed = take(store, 5)
                wrong = [c for c in claimed if target.holds(c.queue, c.type, c.tenant)]
                assert [] == wrong
                store.resume(target)
                for c in claimed:
                    settle_one(store, c, COMPLETED)
        finally:
            stopped.set()

    answers = at_once(try_it, *(lambda store=store: work(store) for store in stores[:-1]))
    assert [None] * len(answers) == answers


def test_no_claim_that_begins_after_a_pause_takes_a_paused_job(open_store, target):
    pause_while_claiming(open_store, target, 25)


@pytest.mark.torture
def test_no_claim_that_begins_after_a_pause_takes_a_paused_job_ten_thousand_times(open_store, target):
    pause_while_claiming(open_store, target, 10_000)


def test_a_claim_with_an_old_look_takes_nothing_of_what_was_paused_since(open_store, target, monkeypatch):
    """On PostgreSQL, a process remembers what a full look found while looks are expensive."""
    first, second = open_store(), open_store()
    put_one_of(first, target)
    put_one_of(first, target)
    assert 1 == len(take(first, 1))
    monkeypatch.setattr("treadle.stores.claim_order.CHEAP", -1.0)
    monkeypatch.setattr("treadle.stores.claim_order.Cursors.may_look", lambda self: False)
    pause(second, target)

    assert [] == take(first, 1)


def test_pauses_and_resumes_at_once_leave_nothing_parked(open_store):
    stores = [open_store() for _ in range(3)]
    put_many(stores[0], 30, tenant="acme")

    def change(store: Any) -> None:
        for _ in range(5):
            pause(store, ACME)
            for claimed in take(store, 3):
                store.settle([(claimed, RELEASED)])
            store.resume(ACME)

    assert [None] * 3 == at_once(*(lambda store=store: change(store) for store in stores))
    while stores[0].put_back_parked():
        pass
    assert 30 == len(take(stores[0], 50))


# Quiet workers


def test_a_quiet_worker_claims_nothing(store):
    worker = enlist(store, "w")
    held = put(store).id
    assert store.set_quiet(worker, True)

    with pytest.raises(WorkerQuiet, match=f"treadle workers resume {worker}"):
        take(store, worker=worker)
    assert store.beat(worker).quiet
    assert store.workers()[0].quiet_at is not None
    assert store.set_quiet(worker, False)
    assert not store.beat(worker).quiet
    assert [held] == ids(take(store, worker=worker))


def test_a_quiet_worker_can_be_declared_dead(store):
    worker = enlist(store, "w")
    store.set_quiet(worker, True)
    assert 0 == store.declare_dead(worker, "gone")

    with pytest.raises(WorkerLost):
        take(store, worker=worker)
    assert not store.set_quiet(worker, True)


# Drain


def test_who_drains_knows_of_claims_that_began_before(store):
    """On PostgreSQL a claim may commit after the pause that it does not know of. Elsewhere there is one writer."""
    store.open()
    assert frozenset() == store.claiming()
    if not on_postgres(store):
        return
    with closing(by_hand(store)) as connection:
        connection.execute("DELETE FROM treadle.leases WHERE false")
        [claim] = before = store.claiming()
        assert claim
        connection.rollback()
        assert frozenset() == before & store.claiming()


@pytest.mark.only("sqlite", "postgresql")
def test_a_claim_that_may_not_look_yet_does_not_wait_for_the_end_of_a_pause(store, clock, monkeypatch):
    """Looks are expensive, and there may be a job that the last one did not see."""
    monkeypatch.setattr(claim_order, "CHEAP", 0)
    monkeypatch.setattr(Cursors, "may_claim_at_once", lambda _: False)  # that looks each time
    store.open()
    store.database.cursors = Cursors(clock=count(step=0.5).__next__)  # half a second of CPU counts as one
    put(store, queue="mail")
    pause(store, MAIL, until=clock() + 60 * MINUTE)

    dues = [take(store).due for _ in range(3)]
    assert dues[-1].now
    assert dues[-1].in_seconds < 10
