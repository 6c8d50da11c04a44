"""The order of claims: higher priority, then earlier run_at, then id, across queues and types."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.helpers import FakeClock, ids, limit, new_job, put, put_many, settle_one, take
from treadle import stores
from treadle.clock import SECOND
from treadle.outcome import COMPLETED


def test_higher_priority_comes_first_across_types_and_queues(store):
    low, high, middle = put(store, "a", priority=-1), put(store, "b", queue="q", priority=9), put(store, "c")

    assert ids([high, middle, low]) == ids(take(store))


@pytest.mark.parametrize("types", [1, 2])
def test_a_claim_takes_jobs_of_any_number_of_priorities(store, types):
    """Each priority is read on its own. How many rows are read of it must not grow from one to the next."""
    jobs = [new_job(f"t{n % types}", priority=-n) for n in range(150)]
    store.insert([*jobs, *(new_job("later", priority=n, delay=3600 * SECOND) for n in range(100))])

    assert ids(jobs) == ids(take(store, 200))
    assert [] == take(store)


def test_within_a_priority_the_older_job_comes_first_across_types(store, clock):
    jobs = []
    for type in ("c", "a", "b"):
        jobs.append(put(store, type))
        clock.advance(1)

    assert ids(jobs) == ids(take(store))


def test_older_means_due_for_longer_and_not_created_earlier(store, clock):
    later = put(store, delay=2 * SECOND)
    sooner = put(store, delay=1 * SECOND)
    clock.advance(5)

    assert ids([sooner, later]) == ids(take(store))


def test_among_jobs_with_the_same_run_at_the_id_decides(store):
    jobs = put_many(store, 10)

    assert sorted(ids(jobs)) == ids(take(store))


def test_several_small_claims_keep_the_order(store):
    jobs = [put(store, type, priority=p) for p in (1, 0) for type in ("a", "b", "a")]

    bites = [take(store, 2) for _ in range(3)]

    assert sorted(ids(jobs[:3])) + sorted(ids(jobs[3:])) == [c.id for bite in bites for c in bite]


def test_scheduled_jobs_do_not_hold_up_due_jobs(store):
    put(store, priority=9, delay=60 * SECOND)
    due = put(store, priority=0)

    assert [due.id] == ids(take(store))


def test_a_type_at_its_limit_is_skipped_and_claimed_later(store):
    limit(store, "full", 1)
    first, second = put_many(store, 2, "full", priority=5)
    other = put(store, "other")
    claimed = take(store)
    assert [first.id, other.id] == ids(claimed)

    settle_one(store, claimed[0], COMPLETED)

    assert [second.id] == ids(take(store))


TYPES, QUEUES = ("a", "b", "c"), ("q", "r")
jobs = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(TYPES),
            "queue": st.sampled_from(QUEUES),
            # The last two are the limits of the column on PostgreSQL. `enqueue` allows much less.
            "priority": st.integers(-2, 2) | st.sampled_from([-(1 << 31), (1 << 31) - 1]),
            "delay": st.integers(-3, 3),
        }
    ),
    max_size=25,
)
limits = st.dictionaries(st.sampled_from(TYPES), st.integers(0, 4))
claims = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.none() | st.sets(st.sampled_from(TYPES)),
        st.sets(st.sampled_from(QUEUES)),
    ),
    max_size=4,
)


def expected(waiting, wanted, room, now):
    """The same claim, written as a sort and a loop."""
    size, types, queues = wanted
    chosen = []
    for job in sorted(waiting, key=lambda job: (-job.priority, job.run_at, job.id)):
        may_run = (types is None or job.type in types) and (not queues or job.queue in queues)
        if may_run and job.run_at <= now and len(chosen) < size and room.get(job.type, 1) > 0:
            chosen.append(job)
            if job.type in room:
                room[job.type] -= 1
    return chosen


@pytest.mark.only("sqlite")
@settings(max_examples=150)
@given(jobs, limits, claims)
def test_the_order_of_claims_is_that_of_a_sort(another, jobs, limits, claims):
    check_order(another(), jobs, limits, claims)


@pytest.mark.only("postgresql", "libsql")
@settings(max_examples=40)  # a round trip to a server takes ten times as long as a call
@given(jobs, limits, claims)
def test_the_order_of_claims_is_that_of_a_sort_on_a_server(another, jobs, limits, claims):
    check_order(another(), jobs, limits, claims)


def check_order(url, jobs, limits, claims):
    clock = FakeClock()
    store = stores.open_store(url, clock=clock)
    for type, concurrency in limits.items():
        limit(store, type, concurrency)
    waiting = [new_job(**{**job, "delay": None, "run_at": clock() + job["delay"]}) for job in jobs]
    store.insert(waiting)

    running = Counter()
    for wanted in claims:
        room = {type: most - running[type] for type, most in limits.items()}
        chosen = expected(waiting, wanted, room, clock())
        size, types, queues = wanted
        named = None if types is None else dict.fromkeys(types)
        claimed = take(store, size, types=named, queues=tuple(queues))

        assert ids(chosen) == ids(claimed)
        running.update(job.type for job in chosen)
        waiting = [job for job in waiting if job not in chosen]
    store.close()
