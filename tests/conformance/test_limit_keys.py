"""Limits with keys and rates: exact, all or none, and a full key costs the others nothing."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.conformance.helpers import (
    at_once,
    by_hand,
    check_consistency,
    enlist,
    ids,
    on_postgres,
    put,
    put_many,
    select,
    settle_one,
    take,
)
from treadle import Limit, Rate
from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.filters import parse
from treadle.limits import LimitChange
from treadle.management import all_problems
from treadle.outcome import COMPLETED, RELEASED, UNSTARTED, Outcome, OutcomeKind
from treadle.redact import Redactor
from treadle.stores.base import ClaimRequest, TypePolicy
from treadle.stores.limiting import MOST_IN_VAIN
from treadle.stores.parking import MOST_PARKED
from treadle.stores.postgres.insert_claim_settle import Transitions

PER_TENANT = Limit("api", concurrency=2, per="tenant")
RATED = Limit("api", rate=Rate(1, per=10, burst=1), per="tenant")


def declare(store, *limits, types=("noop",), **options):
    store.publish([TypePolicy(type=type, limits=as_json(limits), **options) for type in types])


def finish(store, claimed):
    for one in claimed:
        assert settle_one(store, one, COMPLETED)


def parked(store):
    return select(store, "SELECT id FROM treadle.ready WHERE parked <> '' ORDER BY id")


def test_no_more_jobs_of_a_key_run_than_the_limit(open_store):
    ours, theirs = open_store(), open_store()
    declare(ours, PER_TENANT)
    put_many(ours, 5, tenant="acme")
    put_many(ours, 5, tenant="umbrella")

    first, second = take(ours, 3), take(theirs, 10)

    assert 4 == len(first) + len(second)
    assert ["acme", "acme", "umbrella", "umbrella"] == sorted(c.tenant for c in (*first, *second))
    assert [] == take(ours)


def test_a_full_key_is_met_once(store):
    declare(store, PER_TENANT)
    put_many(store, 10, tenant="acme")
    assert 2 == len(take(store))
    assert 8 == len(parked(store))
    free = put(store, tenant="umbrella")
    assert [free.id] == ids(take(store, 1))


@pytest.mark.parametrize(
    "outcome", [COMPLETED, RELEASED, Outcome(OutcomeKind.FAILED), Outcome(OutcomeKind.SNOOZED, delay=60 * SECOND)]
)
def test_the_commit_that_frees_a_place_lets_the_next_job_go(store, outcome):
    declare(store, Limit("api", concurrency=1, per="tenant"))
    jobs = put_many(store, 3, tenant="acme")
    (first,) = take(store)
    assert [] == take(store)

    assert settle_one(store, first, outcome)

    expected = jobs[0] if outcome is RELEASED else jobs[1]
    assert [expected.id] == ids(take(store))
    assert [] == take(store)
    check_consistency(store)


def test_freed_places_go_to_the_most_urgent(store):
    declare(store, Limit("api", concurrency=1, per="tenant"))
    put(store, tenant="acme")
    (running,) = take(store)
    low, high = put(store, tenant="acme"), put(store, tenant="acme", priority=5)
    assert [] == take(store)
    for expected in (high, low):
        assert settle_one(store, running, COMPLETED)
        (running,) = take(store)
        assert expected.id == running.id


def test_jobs_with_and_without_keys_are_claimed_in_one_order(store):
    declare(store, Limit("api", 10, per="tenant"))
    jobs = [put(store, type, tenant="acme") for type in ("noop", "plain", "noop", "plain", "noop")]

    assert ids(jobs) == ids(take(store))


def test_a_job_takes_a_place_of_all_its_limits_or_of_none(store):
    declare(store, Limit("a", concurrency=2, per="tenant"), Limit("b", concurrency=1, per="subject"))
    one, two = (put(store, tenant="acme", subject="same") for _ in range(2))
    other = put(store, tenant="acme", subject="other")

    claimed = take(store)

    assert [one.id, other.id] == ids(claimed)
    assert settle_one(store, claimed[1], COMPLETED)
    assert [] == take(store), "subject 'same' is still full"
    assert settle_one(store, claimed[0], COMPLETED)
    assert [two.id] == ids(take(store))


def test_a_place_that_a_job_cannot_use_goes_to_the_next(store):
    """A place of `a` becomes free. The first job that waits for it lacks one of `b`, and the second does not."""
    declare(store, Limit("a", concurrency=1, per="tenant"), Limit("b", concurrency=1, per="subject"))
    put(store, tenant="x", subject="s")
    put(store, tenant="y", subject="t")
    on_x, _ = take(store)
    put(store, tenant="x", subject="t")
    second = put(store, tenant="x", subject="u")
    assert [] == take(store)

    assert settle_one(store, on_x, COMPLETED)

    claimed = [*take(store), *take(store)]
    assert [second.id] == ids(claimed)


def test_a_limit_is_shared_by_types(store):
    declare(store, Limit("api", concurrency=3), types=("a", "b"))
    put_many(store, 5, "a")
    put_many(store, 5, "b")
    claimed = take(store)
    assert 3 == len(claimed)
    finish(store, claimed[:1])
    assert 1 == len(take(store, types={"b": None}))
    assert [] == take(store)


def test_a_claim_in_which_one_type_takes_the_last_place_leaves_the_other(store):
    declare(store, Limit("api", concurrency=2), types=("a", "b"))
    put_many(store, 2, "b")
    urgent = put_many(store, 2, "a", priority=1)
    claimed = take(store)
    assert [job.id for job in urgent] == ids(claimed)
    finish(store, claimed)
    assert ["b", "b"] == [c.type for c in take(store)]


def test_a_place_is_used_by_the_type_that_a_worker_knows(store):
    """Jobs of type `a` are parked first, and nobody runs them now."""
    declare(store, Limit("api", concurrency=1, per="tenant"), types=("a", "b"))
    put(store, "a", tenant="acme")
    (running,) = take(store)
    put_many(store, 3, "a", tenant="acme")
    mine = put(store, "b", tenant="acme", queue="other")
    assert [] == take(store)
    assert settle_one(store, running, COMPLETED)
    assert [mine.id] == ids(take(store, types={"b": None}, queues=("other",)))


def test_concurrency_of_a_type_and_a_limit_both_hold(store):
    declare(store, Limit("api", concurrency=2, per="tenant"), concurrency=3)
    for tenant in ("x", "y"):
        put_many(store, 5, tenant=tenant)
    claimed = take(store)
    assert 3 == len(claimed)
    assert ["x", "x", "y"] == sorted(c.tenant for c in claimed)


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        ('{"account":{"id":"a1"}}', "a1"),
        ('{"account":{"id":17}}', "17"),
        ('{"account":{"id":1.50}}', "1.5"),
        ('{"account":{"id":true}}', "true"),
        ('{"account":{"id":"Ünïcode \\u0001"}}', "Ünïcode \x01"),
        ('{"account":{"id":null}}', ""),
        ('{"account":{"id":{"deep":1}}}', ""),
        ('{"account":[1,2]}', ""),
        ('{"account":"text"}', ""),
        ("{}", ""),
        ('{"account":{"id":"' + "x" * 300 + '"}}', "x" * 200),
    ],
)
def test_the_key_is_a_value_of_the_payload(store, payload, key):
    declare(store, Limit("api", concurrency=1, per="payload.account.id"))
    jobs = [put(store, payload=payload) for _ in range(2)]
    assert [jobs[0].id] == ids(take(store))
    assert [(key,)] == [tuple(row) for row in select(store, "SELECT key FROM treadle.limited_leases")]
    assert [] == take(store)


def test_more_full_jobs_than_one_claim_parks_are_parked_by_the_next(store):
    declare(store, Limit("api", concurrency=1, per="tenant"))
    jobs = put_many(store, MOST_PARKED + 50, tenant="acme")
    free = put(store, tenant="umbrella")
    first = take(store, 2)
    assert jobs[0].id == first[0].id
    if len(first) == 1:
        assert first.due.now
        first += take(store, 1)
    assert free.id == first[1].id
    check_consistency(store)


def test_a_job_that_expires_or_is_cancelled_while_parked_takes_no_place(store, clock):
    declare(store, Limit("api", concurrency=1, per="tenant"))
    put(store, tenant="acme")
    (running,) = take(store)
    late = put(store, tenant="acme", start_within=SECOND)
    gone, last = put(store, tenant="acme"), put(store, tenant="acme")
    assert [] == take(store)
    store.cancel(gone.id)
    clock.advance(2)
    store.expire(10)
    assert settle_one(store, running, COMPLETED)
    assert [last.id] == ids(take(store))
    assert "expired" in store.get(late.id).error


def test_a_job_that_a_claim_finds_expired_takes_no_place(store, clock):
    declare(store, Limit("api", concurrency=1, per="tenant"))
    put(store, tenant="x", start_within=SECOND)
    clock.advance(2)
    late = put(store, tenant="x").id

    assert [late] == ids([*take(store), *take(store)])
    assert 1 == len(select(store, "SELECT id FROM treadle.limited_leases"))
    check_consistency(store)


def test_a_chore_finds_places_that_nobody_was_told_of(store):
    """The job that was let go for the free place was cancelled."""
    declare(store, Limit("api", concurrency=1, per="tenant"))
    jobs = put_many(store, 3, tenant="acme")
    (running,) = take(store)
    assert settle_one(store, running, COMPLETED)
    assert [] == take(store, types={"other": None})  # comes to the opening, and runs nothing
    store.cancel(jobs[1].id)
    assert [] == take(store)

    assert (1, "") == store.open_limits()

    assert [jobs[2].id] == ids(take(store))


def test_jobs_of_a_limit_that_no_code_declares_any_more_are_let_go(store):
    declare(store, Limit("api", concurrency=1, per="tenant"))
    jobs = put_many(store, 4, tenant="acme")
    (running,) = take(store)
    declare(store)
    store.open_limits()
    assert ids(jobs[1:]) == ids(take(store))
    assert settle_one(store, running, COMPLETED)
    assert [] == select(store, "SELECT name FROM treadle.limited_leases")


def test_a_key_whose_lease_was_deleted_by_hand_counts_nothing_and_is_removed(store, by_hand):
    declare(store, Limit("api", concurrency=1, per="tenant"))
    job = put(store, tenant="acme")
    by_hand(
        "INSERT INTO treadle_lease_keys (name, key, id, lease, tenant) VALUES (?, ?, ?, ?, ?)",
        *("api", "acme", job.id, 0, "acme"),
    )

    (running,) = take(store)

    assert job.id == running.id
    store.open_limits()
    assert [(running.number,)] == [tuple(row) for row in select(store, "SELECT lease FROM treadle.limited_leases")]


def test_the_places_of_a_dead_worker_are_free(store):
    enlist(store)
    declare(store, Limit("api", concurrency=1, per="tenant"))
    jobs = put_many(store, 2, tenant="acme")
    assert 1 == len(take(store, worker="w1"))
    store.declare_dead("w1", "gone")
    assert [jobs[0].id] == ids(take(store))


@pytest.mark.parametrize("types", [("noop",), ("a", "b")])
def test_claims_at_once_never_exceed_a_key(open_store, types):
    stores = [open_store() for _ in range(4)]
    declare(stores[0], Limit("api", concurrency=3, per="tenant"), Limit("all", concurrency=7), types=types)
    for n in range(60):
        put(stores[0], types[n % len(types)], tenant=f"t{n % 4}")
    running: list = []
    for _ in range(40):
        found = at_once(*(lambda store=store: take(store, 4) for store in stores))
        for claimed in found:
            running += claimed
        by_tenant = [sum(c.tenant == f"t{n}" for c in running) for n in range(4)]
        assert max(by_tenant) <= 3
        assert len(running) <= 7
        ended, running = running[:4], running[4:]
        finish(stores[0], ended)
        if not running and not ended:
            break
    assert not running
    assert [] == parked(stores[0])


# At run time


def test_a_change_wins_over_the_code_until_it_is_unset(store):
    declare(store, PER_TENANT)
    put_many(store, 10, tenant="acme")
    put_many(store, 10, tenant="umbrella")
    claimed = take(store)
    assert 4 == len(claimed)

    state = store.change_limit(LimitChange(name="api", key="acme", concurrency=5, by="ann"))

    assert ("ann", 5, 2, PER_TENANT) == (state.changed_by, state.concurrency, state.running, state.declared)
    more = take(store)
    assert ["acme"] * 3 == [c.tenant for c in more]
    declare(store, PER_TENANT)
    assert [] == take(store)
    assert store.unset_limit("api", "acme")
    assert not store.unset_limit("api", "acme")
    finish(store, [*claimed, *more][-1:])
    assert [] == take(store), "4 of 2 run"


def test_a_change_without_a_key_holds_for_all_keys_that_have_none_of_their_own(store):
    declare(store, PER_TENANT)
    for tenant in ("x", "y"):
        put_many(store, 9, tenant=tenant)
    take(store)
    store.change_limit(LimitChange(name="api", key="x", concurrency=3))
    store.change_limit(LimitChange(name="api", concurrency=4))
    assert ["x", "y", "y"] == sorted(c.tenant for c in take(store))
    assert [("api", "", 4, 7), ("api", "x", 3, 3)] == [
        (state.name, state.key, state.concurrency, state.running) for state in store.limits()
    ]


def test_lowering_a_limit_stops_nobody(store):
    declare(store, concurrency=5)
    put_many(store, 9)
    claimed = take(store)
    [state] = [store.change_limit(LimitChange(name="type:noop", concurrency=3))]
    assert (5, 3, 2) == (state.running, state.concurrency, state.over)
    finish(store, claimed[:2])
    assert [] == take(store)
    finish(store, claimed[2:3])
    assert 1 == len(take(store))


# Rates


def test_a_rate_starts_no_more_than_its_burst_and_then_one_at_a_time(store, clock):
    declare(store, Limit("api", rate=Rate(1, per=10, burst=2)))
    put_many(store, 5)
    first = take(store)
    assert 2 == len(first)
    assert 10 == pytest.approx(first.due.in_seconds)
    clock.advance(9.9)
    assert [] == take(store)
    clock.advance(0.1)
    assert 1 == len(take(store))
    clock.advance(100)
    assert 2 == len(take(store)), "no more than the burst, however long it was quiet"


def test_a_rate_is_counted_by_key(store, clock):
    declare(store, RATED)
    for tenant in ("x", "y"):
        put_many(store, 3, tenant=tenant)
    first = take(store)
    assert ["x", "y"] == [c.tenant for c in first]
    assert 10 == pytest.approx(first.due.in_seconds), "nobody has to poll"
    again = take(store)
    assert ([], 10) == (again, pytest.approx(again.due.in_seconds))
    clock.advance(10)
    assert ["x", "y"] == [c.tenant for c in take(store)]
    finish(store, first)
    assert [] == take(store), "the end of a job is no start"
    clock.advance(10)
    assert ["x", "y"] == [c.tenant for c in take(store)]
    assert [] == parked(store)


def test_a_claim_that_was_not_started_is_given_back_and_a_retry_costs_a_start(store, clock):
    declare(store, RATED)
    put_many(store, 1, tenant="x")
    (claimed,) = take(store)
    assert settle_one(store, claimed, UNSTARTED)
    (claimed,) = take(store)
    assert settle_one(store, claimed, Outcome(OutcomeKind.RETRIED, error="once more"))
    assert [] == take(store)
    clock.advance(10)
    assert 1 == len(take(store))


@pytest.mark.parametrize("rate", [Rate(7, per=3, burst=2), Rate(100, per=1, burst=5), Rate(3, per=1)])
def test_no_window_has_more_starts_than_burst_and_rate(store, clock, rate):
    declare(store, Limit("api", rate=rate, per="tenant"))
    put_many(store, 400, tenant="x")
    starts: list[int] = []
    began = clock()
    while clock() < began + 4 * rate.per * SECOND and len(starts) < 300:
        claimed = take(store, 50)
        starts += [clock()] * len(claimed)
        clock.advance(max(0.001, claimed.due.in_seconds or 0.001) if claimed.due else 0.001)
    window = rate.per * SECOND
    most = max(sum(at <= other < at + window for other in starts) for at in starts)
    assert most <= rate.count + rate.burst
    allowed = rate.burst + (clock() - began) / window * rate.count
    assert len(starts) >= 0.95 * min(allowed, 300) - 1


@pytest.mark.only("postgresql")
def test_a_claim_does_not_read_all_jobs_whose_keys_other_claims_have_locked(store, monkeypatch):
    """Several claims that do would keep each other's keys locked, and none of them would take a job."""
    declare(store, Limit("api", concurrency=1, per="tenant"))
    put_many(store, 500, tenant="x")
    reads, read = [], Transitions.limit_values
    monkeypatch.setattr(Transitions, "limit_values", lambda tx, ids, paths: reads.append(ids) or read(tx, ids, paths))

    with closing(by_hand(store)) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtextextended('treadle api' || chr(31) || 'x', 0))")
        claimed = take(store, 2)
        other.rollback()  # the lock of a connection that is closed may last until the server has noticed

    assert ([], True) == (claimed, claimed.due.now)
    assert MOST_IN_VAIN == len(reads)
    assert 1 == len(take(store, 2))


# A service that asks to come back later

HELD = Outcome(OutcomeKind.SNOOZED, delay=30 * SECOND, charged=0, holds="")


def test_a_key_is_held_back(store, clock):
    declare(store, Limit("api", concurrency=5, per="tenant"))
    put_many(store, 3, tenant="x")
    other = put_many(store, 2, tenant="y")
    held, *_ = take(store, 1)
    assert settle_one(store, held, HELD)

    claimed = take(store)

    assert ids(other) == ids(claimed)
    assert 30 == pytest.approx(claimed.due.in_seconds)
    clock.advance(30)
    assert 3 == len(take(store))


def test_unset_lets_a_key_go_that_is_held_back(store):
    declare(store, Limit("api", concurrency=5, per="tenant"))
    for tenant in "xy":
        put_many(store, 3, tenant=tenant)
    for held in take(store):
        assert settle_one(store, held, HELD)
    waiting = {tenant: put_many(store, 2, tenant=tenant) for tenant in "xy"}
    assert [] == take(store)
    assert ["x", "y"] == [state.key for state in store.limits() if state.held_until is not None]

    assert store.unset_limit("api", "x")

    assert not store.unset_limit("api", "x")
    assert ["y"] == [state.key for state in store.limits() if state.held_until is not None]
    claimed = take(store)
    assert ids(waiting["x"]) == ids(claimed)
    assert 30 == pytest.approx(claimed.due.in_seconds)


def test_unset_lets_a_limit_without_a_key_go_that_is_held_back(store):
    declare(store, concurrency=5)
    put_many(store, 3)
    held, *_ = take(store, 1)
    assert settle_one(store, held, HELD)
    assert [] == take(store)

    assert store.unset_limit("type:noop", "")

    assert 2 == len(take(store))


def test_a_limit_of_a_type_is_held_back(store, clock):
    declare(store, concurrency=5)
    put_many(store, 3)
    held, *_ = take(store, 1)
    assert settle_one(store, held, HELD)
    claimed = take(store)
    assert ([], 30) == (claimed, pytest.approx(claimed.due.in_seconds))
    clock.advance(30)
    assert 3 == len(take(store))


@pytest.mark.parametrize(
    ("holds", "free"), [("", ("y", "s")), ("rated", ("y", "s")), ("plain", ("x", "z")), ("unknown", ("x", "s"))]
)
def test_only_the_limit_that_is_named_or_those_with_a_rate_are_held_back(store, holds, free):
    rated = Limit("rated", rate=Rate(100, per=1, burst=100), per="tenant")
    declare(store, rated, Limit("plain", concurrency=50, per="subject"))
    put(store, tenant="x", subject="s")
    (claimed,) = take(store, 1)
    assert settle_one(store, claimed, Outcome(OutcomeKind.SNOOZED, delay=30 * SECOND, charged=0, holds=holds))

    for tenant in "xy":
        for subject in "sz":
            put(store, tenant=tenant, subject=subject)

    found = {(c.tenant, c.subject) for c in take(store)}
    held = {"": ("x", None), "rated": ("x", None), "plain": (None, "s"), "unknown": (None, None)}[holds]
    every = {(tenant, subject) for tenant in "xy" for subject in "sz"}
    assert {(t, s) for t, s in every if t != held[0] and s != held[1]} == found
    assert free in found


def test_without_a_limit_it_is_a_snooze(store, clock):
    put_many(store, 2)
    held, *_ = take(store, 1)
    assert settle_one(store, held, HELD)
    assert 1 == len(take(store))
    clock.advance(30)
    assert [held.id] == ids(take(store))


def test_rows_broken_by_hand_stop_no_claim(store):
    declare(store, PER_TENANT)
    put_many(store, 3, tenant="x")
    with closing(by_hand(store)) as connection:
        table = "treadle.types" if on_postgres(store) else "treadle_types"
        connection.execute(f"UPDATE {table} SET limits = 'no JSON'")
        connection.commit()
    store.change_limit(LimitChange(name="api", concurrency=1))
    assert 3 == len(take(store)), "no limit can be read"


def test_a_chore_deletes_buckets_that_are_full(store, clock):
    declare(store, RATED)
    put_many(store, 2, tenant="x")
    (claimed,) = take(store)
    assert settle_one(store, claimed, UNSTARTED)
    store.open_limits()
    assert 2 == len(select(store, "SELECT seq FROM treadle.buckets"))
    clock.advance(11)
    store.open_limits()
    assert [] == select(store, "SELECT seq FROM treadle.buckets")


@pytest.mark.only("sqlite")
def test_a_clock_that_steps_back_delays_no_rate(store, clock):
    declare(store, RATED)
    put_many(store, 3, tenant="x")
    assert 1 == len(take(store))
    clock.advance(-3_600)
    again = take(store)
    assert ([], True) == (again, again.due.in_seconds <= 10)
    clock.advance(10)
    assert 1 == len(take(store))


def test_due_knows_of_places(store, clock):
    declare(store, Limit("api", rate=Rate(1, per=10, burst=1)))
    put_many(store, 2)
    assert store.due(ClaimRequest(limit=1)).now
    take(store)
    due = store.due(ClaimRequest(limit=1))
    assert (False, 10) == (due.now, pytest.approx(due.in_seconds))


# Problems


def problems(store, code):
    found = all_problems(store, store.queue_stats(), store.workers(), store.pauses(), Redactor())
    return [one for one in found if one.code == code]


def wait(store, clock, seconds):
    """Time passes, and the worker lives."""
    clock.advance(seconds)
    store.beat("w1")


def test_a_full_key_for_which_jobs_wait_too_long_is_a_problem(store, clock):
    enlist(store, "w1", types=("noop",))
    declare(store, PER_TENANT)
    put_many(store, 5, tenant="acme")
    wait(store, clock, 1)
    put_many(store, 3, tenant="umbrella")
    take(store, worker="w1")
    wait(store, clock, 299)
    assert [] == problems(store, "limited")
    wait(store, clock, 100)

    (problem,) = problems(store, "limited")

    how_long = "jobs wait, the oldest for 6m 40s, as do jobs of 1 more key"
    assert problem.text == f"{how_long}: limit 'api' of 2 is full for tenant='acme'"
    assert problem.next.endswith("treadle limits set api, with --key KEY --concurrency N")
    assert parse(problem.filter).tenants == ("acme",)


def test_a_key_that_is_a_secret_is_hidden_in_problems(store, clock):
    enlist(store, "w1", types=("noop",))
    declare(store, Limit("api", concurrency=1, per="payload.api_key"))
    put_many(store, 2, payload='{"api_key": "sk-very-secret"}')
    take(store, worker="w1")
    wait(store, clock, 400)

    (problem,) = problems(store, "limited")

    assert "sk-very-secret" not in str(problem)


@pytest.mark.parametrize("per", [None, "tenant"])
def test_problems_say_when_a_rate_starts_the_next_job(store, clock, per):
    enlist(store, "w1", types=("noop",))
    declare(store, Limit("api", rate=Rate(1, per=1000, burst=1), per=per))
    put_many(store, 3, tenant="acme")
    take(store, worker="w1")
    wait(store, clock, 400)

    (problem,) = problems(store, "limited" if per else "slow")

    where = " for tenant='acme'" if per else ""
    both = f"{problem.text}; {problem.next}"
    assert f"limit 'api' starts no more{where} now, 1 in 1000 s, burst 1: the next at " in both
    assert ", in 10m" in both
    assert "--rate COUNT/TIME" in both
    assert "more workers" not in both


def test_problems_name_a_key_that_is_held_back(store, clock):
    enlist(store, "w1", types=("noop",))
    declare(store, PER_TENANT)
    put_many(store, 3, tenant="acme")
    claimed = take(store, worker="w1")
    settle_one(store, claimed[0], Outcome(OutcomeKind.SNOOZED, charged=0, delay=900 * SECOND, holds=""))
    take(store, worker="w1")
    wait(store, clock, 400)

    (problem,) = problems(store, "limited")

    assert "limit 'api' is held back for tenant='acme': a job was rate limited, and the next starts at " in problem.text
    assert problem.next == "wait until then; to let it go: treadle limits unset api --key KEY"
