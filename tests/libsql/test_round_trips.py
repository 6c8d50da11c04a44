"""A remote statement is a journey: what is asked together travels together."""

from __future__ import annotations

import asyncio

import pytest

from tests.conformance.helpers import enlist, new_job, put_many, take
from treadle import Treadle
from treadle.outcome import COMPLETED
from treadle.stores.base import ClaimRequest
from treadle.stores.libsql.hrana import _names
from treadle.stores.libsql.store import LibSQLStore
from treadle.worker.executor import AsyncSlots


@pytest.fixture
def store(libsql_url):
    store = LibSQLStore(libsql_url)
    store.open()
    store.database.now()
    return store


def journeys(store, call):
    before = store.database.requests
    answer = call()
    return store.database.requests - before, answer


def test_a_bulk_enqueue_is_one_journey(store):
    assert 1 == journeys(store, lambda: store.insert([new_job() for _ in range(1000)]))[0]


def test_a_group_of_callers_is_one_journey(store):
    assert 1 == journeys(store, lambda: store.insert_groups([[new_job()] for _ in range(64)]))[0]


def test_a_claim_is_four(store):
    """Look; read the ranges; move the rows and read them; count and commit."""
    put_many(store, 500)
    worker = enlist(store)

    n, claimed = journeys(store, lambda: take(store, 500, worker=worker))

    assert (4, 500) == (n, len(claimed))


def test_a_settle_is_two(store):
    put_many(store, 500)
    claimed = take(store, 500)

    assert (2, []) == journeys(store, lambda: store.settle([(c, COMPLETED) for c in claimed]).lost)


def test_a_look_of_an_idle_worker_is_one_and_a_beat_is_two(store):
    worker = enlist(store)

    assert 1 == journeys(store, lambda: store.due(ClaimRequest(limit=1)))[0]
    assert 1 == journeys(store, lambda: store.cancelled(worker))[0]
    assert 1 == journeys(store, lambda: store.counts(("status",)).rows)[0]
    assert 2 == journeys(store, lambda: store.beat(worker))[0]


def test_a_drain_moves_at_least_fifty_jobs_per_journey(libsql_url, monkeypatch):
    """Handlers that a busy machine makes slow are claimed in smaller lots, and beats come with time: neither here."""
    monkeypatch.setattr(AsyncSlots, "YIELD_AFTER", 60)
    td = Treadle(libsql_url)

    @td.job
    async def noop(n: int) -> None: ...

    td.enqueue_many([noop.request(n=n) for n in range(5000)])

    async def drain() -> None:
        async with td.worker(concurrency=500, beat=60) as worker:
            await worker.drained()

    n, _ = journeys(td.store, lambda: asyncio.run(drain()))

    assert [{"status": "completed", "count": 5000}] == td.counts()
    assert 5000 / n >= 50


def test_nothing_is_left_open_by_a_list(store):
    """A list reads in a transaction, for one moment; an open one would hold the server's log."""
    put_many(store, 3)
    from treadle.filters import Filter

    store.jobs(Filter(), 10)

    assert 3 == len(take(store))


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT :a, :b, :a", ("a", "b")),
        ("SELECT ':no', \":no\", :yes -- :no", ("yes",)),
        ("SELECT strftime('%H:%M', :at)", ("at",)),
        ("SELECT ?1, ?2", ("1", "2")),
        ("SELECT @a, $b, [:no], `:no` /* :no\n:no */", ("a", "b")),
        ("SELECT 1", ()),
    ],
)
def test_parameters_are_those_of_the_statement(sql, names):
    assert names == _names(sql)
