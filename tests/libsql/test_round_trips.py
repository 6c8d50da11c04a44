"""The number of round trips: statements that belong together are sent together."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.conformance.helpers import enlist, new_job, put_many, take
from tests.conformance.keyed_jobs import DEBOUNCE, REJECT, REPLACE, THROTTLE, call
from treadle import Treadle
from treadle.clock import SECOND
from treadle.errors import KeyHeld
from treadle.outcome import COMPLETED
from treadle.schedule import NewSchedule, Rule
from treadle.stores.base import ClaimRequest
from treadle.stores.libsql.hrana import _names
from treadle.stores.libsql.store import LibSQLStore
from treadle.worker import ahead
from treadle.worker.executor import AsyncSlots


@pytest.fixture
def store(libsql_url):
    store = LibSQLStore(libsql_url)
    store.open()
    store.database.now()
    return store


def round_trips(store, call):
    before = store.database.requests
    answer = call()
    return store.database.requests - before, answer


def test_a_bulk_enqueue_takes_one_round_trip(store):
    assert 1 == round_trips(store, lambda: store.insert([new_job() for _ in range(1000)]))[0]


def test_enqueues_that_share_a_commit_take_one_round_trip(store):
    assert 1 == round_trips(store, lambda: store.insert_groups([[new_job()] for _ in range(64)]))[0]


def test_a_claim_takes_four_round_trips(store):
    """They look, read the ranges, move the rows and read them, and count and commit."""
    put_many(store, 500)
    worker = enlist(store)

    n, claimed = round_trips(store, lambda: take(store, 500, worker=worker))

    assert (4, 500) == (n, len(claimed))


def test_a_settle_takes_two_round_trips(store):
    put_many(store, 500)
    claimed = take(store, 500)

    assert (2, []) == round_trips(store, lambda: store.settle([(c, COMPLETED) for c in claimed]).lost)


def test_an_idle_worker_looks_in_one_round_trip_and_beats_in_two(store):
    worker = enlist(store)

    assert 1 == round_trips(store, lambda: store.due(ClaimRequest(limit=1)))[0]
    assert 1 == round_trips(store, lambda: store.cancelled(worker))[0]
    assert 1 == round_trips(store, lambda: store.counts(("status",)).rows)[0]
    assert 2 == round_trips(store, lambda: store.beat(worker))[0]


def test_a_beat_that_moves_deadlines_takes_no_more_round_trips(store):
    worker = enlist(store)
    put_many(store, 50)
    claimed = take(store, 50, worker=worker, types={"noop": 60 * SECOND})

    for left in (60, 90):  # nothing to write, and all of them to write
        assert 2 == round_trips(store, lambda left=left: store.beat(worker, [(c, left * SECOND) for c in claimed]))[0]


def test_an_idle_worker_looks_for_schedules_in_one_round_trip_and_fires_fifty_in_five(store):
    """They look, read what has not ended, move on, look for the ids, and store and commit."""
    store = LibSQLStore(store.url, clock=lambda: clock[0])
    clock = [1_800_000_000 * SECOND]
    for n in range(50):
        store.put_schedule(NewSchedule(name=f"s{n}", type="noop", rule=Rule(every=60 * SECOND)))

    assert 1 == round_trips(store, store.next_fire)[0]
    clock[0] += 60 * SECOND
    assert (5, (50, False)) == round_trips(store, lambda: store.fire(51))


def test_a_drain_moves_at_least_fifty_jobs_per_round_trip(libsql_url, monkeypatch):
    """The settings exclude effects of a busy machine: smaller claims for slow handlers, claims ahead by how fast jobs
    end, and heartbeats."""
    monkeypatch.setattr(AsyncSlots, "YIELD_AFTER", 60)
    monkeypatch.setattr(ahead, "MOST", 0)
    td = Treadle(libsql_url)

    @td.job
    async def noop(n: int) -> None: ...

    td.enqueue_many([noop.request(n=n) for n in range(10_000)])

    async def drain() -> None:
        async with td.worker(concurrency=500, beat=60) as worker:
            await worker.drained()

    n, _ = round_trips(td.store, lambda: asyncio.run(drain()))

    assert [{"status": "completed", "count": 10_000}] == td.counts()
    assert 10_000 / n >= 50


def test_a_list_leaves_no_transaction_open(store):
    """A list reads in one transaction. If it stayed open, the server could not checkpoint its log."""
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


def test_a_settle_of_jobs_with_dedupe_keys_takes_no_more_round_trips(store):
    store.insert([new_job(dedupe=f"key-{n}") for n in range(20)])
    claimed = take(store, 20)

    assert (2, []) == round_trips(store, lambda: store.settle([(c, COMPLETED) for c in claimed]).lost)


@pytest.mark.parametrize(("how", "most"), [({}, 3), (THROTTLE, 3), (REJECT, 2), (REPLACE, 5), (DEBOUNCE, 5)])
def test_an_enqueue_with_a_dedupe_key_takes_few_round_trips(store, how, most):
    """Nobody else can write between them. Two if the key is free."""

    def enqueue():
        with contextlib.suppress(KeyHeld):
            call(store, how, "key")

    assert [2, most] == [round_trips(store, enqueue)[0] for _ in range(2)]
