"""Workers as others see them: rows, beats, and leases that a worker does not know about."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import (
    enlist,
    ids,
    place_of,
    put_and_take,
    put_many,
    skip_outside,
    take,
    writing,
)
from treadle.clock import SECOND
from treadle.errors import WorkerLost
from treadle.job import Status
from treadle.stores.postgres.connection import Connection
from treadle.stores.postgres.store import PostgresStore


def numbers(claimed):
    return {c.number for c in claimed}


def test_a_registered_worker_is_visible_to_all(open_store, clock):
    ours, theirs = open_store(), open_store()

    enlist(ours, "w1", queues=("a", "b"), types=("noop",), host={"pid": 7, "boot": "x"}, version="1.2")

    (worker,) = theirs.workers()
    assert ("w1", "host-w1", 10, ("a", "b"), ("noop",)) == (
        worker.id,
        worker.name,
        worker.concurrency,
        worker.queues,
        worker.types,
    )
    assert ({"pid": 7, "boot": "x"}, "1.2", 0, 0) == (worker.host, worker.version, worker.beats, worker.leases)
    assert (clock(), clock()) == (worker.started_at, worker.seen_at)


def test_workers_are_listed_oldest_first_with_their_leases(store, clock):
    enlist(store, "old")
    clock.advance(1)
    enlist(store, "new")
    put_many(store, 3)
    take(store, 2, worker="new")

    assert [("old", 0), ("new", 2)] == [(w.id, w.leases) for w in store.workers()]


def test_a_beat_counts_up_and_returns_the_counts_of_all_workers(store, clock):
    enlist(store, "w1")
    enlist(store, "w2")

    assert {"w1": 1, "w2": 0} == store.beat("w1").workers
    clock.advance(5)
    assert {"w1": 2, "w2": 0} == store.beat("w1").workers
    assert [clock(), clock() - 5 * SECOND] == [w.seen_at for w in store.workers()]


def test_a_beat_returns_the_leases_of_the_worker_and_which_are_cancelled(store):
    enlist(store, "w1")
    enlist(store, "w2")
    kept, cancelled = put_and_take(store, worker="w1"), put_and_take(store, worker="w1")
    put_and_take(store, worker="w2")
    store.cancel(cancelled.id)

    assert {kept.number: False, cancelled.number: True} == store.beat("w1").leases


def test_a_beat_with_nothing_to_write_asks_nothing_more(store, monkeypatch):
    """On PostgreSQL, where each statement is a round trip, it is one in any case."""
    enlist(store, "w1")
    put_many(store, 3)
    claimed = take(store, worker="w1", types={"noop": 60 * SECOND})
    statements = count_statements(store, monkeypatch)

    for left, more in ((), 0), ((60, 60, 60), 0), ((90, 60, 0), 1):
        del statements[:]
        store.beat("w1", [(c, n * SECOND) for c, n in zip(claimed, left, strict=False)])
        needed = 1 if isinstance(store, PostgresStore) else 3 + more
        assert needed == len([s for s in statements if "treadle" in s])


def count_statements(store, monkeypatch):
    skip_outside()
    statements = []
    kind = Connection if isinstance(store, PostgresStore) else store.database.read("read", type)

    def counted(name):
        execute = getattr(kind, name)

        def count(tx, sql, *parameters, **options):
            statements.append(sql)
            return execute(tx, sql, *parameters, **options)

        return count

    for name in {"execute", "execute_prepared"} & set(dir(kind)):
        monkeypatch.setattr(kind, name, counted(name))
    return statements


def test_cancelled_leases_are_read_without_a_lock(open_store):
    ours, theirs = open_store(), open_store()
    enlist(ours, "w1")
    enlist(ours, "w2")
    put_and_take(ours, worker="w1")
    mine, other = put_and_take(ours, worker="w1"), put_and_take(ours, worker="w2")
    for claimed in (mine, other):
        theirs.cancel(claimed.id)

    with writing(theirs):
        assert [mine.number] == ours.cancelled("w1")
        assert [] == ours.cancelled("nobody")


def test_a_beat_of_a_worker_that_was_declared_dead_says_so(store):
    enlist(store, "w1")
    store.declare_dead("w1", "stood still")

    with pytest.raises(WorkerLost) as lost:
        store.beat("w1")

    assert "w1" == lost.value.worker
    assert [] == store.workers()


def test_leases_that_a_worker_does_not_know_are_returned_without_charge(store):
    """The reply to its claim was lost: the leases name this worker, but it will never run the jobs."""
    enlist(store, "w1")
    put_many(store, 3)
    known, *unknown = take(store, worker="w1")

    assert 2 == store.release_unheld("w1", numbers(unknown))

    assert [(Status.PENDING, 0)] * 2 == [place_of(store, id) for id in ids(unknown)]
    assert (Status.PROCESSING, 1) == place_of(store, known.id)


def test_leases_of_another_worker_are_not_returned(store):
    enlist(store, "w1")
    enlist(store, "w2")
    theirs = put_and_take(store, worker="w2")

    assert 0 == store.release_unheld("w1", {theirs.number})
    assert Status.PROCESSING == store.get(theirs.id).status
