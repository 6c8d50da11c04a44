"""The backlog over time: a sample a minute of what waits and runs."""

from __future__ import annotations

from tests.conformance.helpers import DAY, HOUR, at_once, put, put_many, take
from treadle.clock import MINUTE, SECOND, to_datetime
from treadle.job import Backlog


def backlog(store, clock, step=60, back=HOUR):
    now = clock() // SECOND
    return store.backlog(now - back // SECOND, now + 1, step)


def test_a_minute_is_sampled_once(store, clock):
    put_many(store, 3), put(store, delay=HOUR)
    take(store, 1)

    assert [1, 0] == [store.sample_backlog() for _ in range(2)]
    put(store)
    clock.advance(59)
    assert 0 == store.sample_backlog()
    assert [Backlog(to_datetime(clock() // MINUTE * MINUTE), 2, 1, 1)] == backlog(store, clock)
    clock.advance(1)
    assert 1 == store.sample_backlog()
    assert [2, 3] == [row.queued for row in backlog(store, clock)]


def test_a_step_has_the_most_of_its_minutes(store, clock):
    clock.advance(-(clock() // SECOND % 300))
    for n in range(5):
        put_many(store, n)
        store.sample_backlog()
        clock.advance(60)

    (row,) = backlog(store, clock, step=300)
    assert 10 == row.queued
    assert 5 == len(backlog(store, clock))
    assert [] == backlog(store, clock, back=0)


def test_old_samples_are_pruned_whatever_the_retention_is(store, clock):
    store.sample_backlog()
    clock.advance(91 * DAY // SECOND)
    store.sample_backlog()
    store.prune((), 0, 10)

    assert 1 == len(backlog(store, clock, back=200 * DAY))


def test_two_workers_at_once_write_one_sample(open_store, clock):
    ours, theirs = open_store(), open_store()
    put_many(ours, 5)

    assert 1 == sum(at_once(ours.sample_backlog, theirs.sample_backlog))
    assert [5] == [row.queued for row in backlog(ours, clock)]
