"""The number of round trips: statements that belong together are sent together."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.conformance.helpers import enlist, new_job, put_many, take
from tests.conformance.keyed_jobs import DEBOUNCE, REJECT, REPLACE, THROTTLE, call
from treadle import Limit, Rate, Treadle
from treadle.batch import NewBatch, member
from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.errors import KeyHeld
from treadle.job import Reschedule, Status
from treadle.outcome import COMPLETED, Outcome, OutcomeKind
from treadle.pauses import NewPause, Target
from treadle.schedule import NewSchedule, Rule
from treadle.steps import NewStep
from treadle.stores.base import ClaimRequest, TypePolicy
from treadle.stores.libsql.hrana import _names
from treadle.stores.libsql.store import LibSQLStore
from treadle.waits import NewSignal, NewWait
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


def test_steps_take_two_round_trips_however_many_they_are(store):
    put_many(store, 50)
    claimed = take(store, 50)
    steps = [(c, NewStep("plan", value="1")) for c in claimed]

    assert (2, [None]) == round_trips(store, lambda: store.save_steps(steps[:1]))
    assert (2, [None] * 49) == round_trips(store, lambda: store.save_steps(steps[1:]))


def test_a_signal_takes_three_round_trips_and_the_match_that_lets_its_waiters_go_seven(store):
    put_many(store, 50)
    waiting = Outcome(OutcomeKind.SUSPENDED, charged=0, waits=(NewWait("signal", "go", "ok"),))
    claimed = take(store, 50)

    assert (2, []) == round_trips(store, lambda: store.settle([(c, waiting) for c in claimed]).lost)
    assert 3 == round_trips(store, lambda: store.signal(NewSignal("go", "1")))[0]
    assert (7, True) == round_trips(store, lambda: store.match() > 0)
    assert 50 == len(take(store))


def test_a_claim_of_limited_jobs_takes_eleven_round_trips_however_many_keys_they_have(store):
    limits = [Limit("api", 2, per="tenant"), Limit("rate", rate=Rate(1000, burst=1000))]
    store.publish([TypePolicy(type="noop", limits=as_json(limits))])
    store.insert([new_job(tenant=f"t{n % 25}") for n in range(100)])

    for n, trips in ((50, 11), (0, 4)):  # the first parks those that do not fit, the second finds nothing
        assert (trips, n) == round_trips(store, lambda: len(take(store, 100)))


def test_a_pause_and_a_resume_take_two_round_trips_and_a_claim_beside_it_six(store):
    put_many(store, 50)
    store.insert([new_job(queue="mail") for _ in range(50)])

    assert 2 == round_trips(store, lambda: store.pause(NewPause(target=Target(queue="mail"), by="ann")))[0]
    assert (6, 50) == round_trips(store, lambda: len(take(store, 100)))
    assert 2 == round_trips(store, lambda: store.resume(Target(queue="mail")))[0]


def test_a_reschedule_takes_four_round_trips_and_the_expiry_of_fifty_jobs_five(store):
    [job] = put_many(store, 1)
    store.insert([new_job(start_within=1, delay=0) for _ in range(50)])

    assert 4 == round_trips(store, lambda: store.reschedule(job.id, Reschedule(priority=3)))[0]
    assert (5, 50) == round_trips(store, lambda: store.expire(50))


def test_a_prune_takes_three_round_trips_per_chunk(store):
    """They look for old jobs, look for their history, and delete and commit. The last one finds none, and prunes other
    records."""
    store = LibSQLStore(store.url, clock=lambda: clock[0])
    clock = [1_800_000_000 * SECOND]
    put_many(store, 50)
    assert not store.settle([(c, COMPLETED) for c in take(store, 50)]).lost
    clock[0] += 60 * SECOND

    for trips, n in ((3, 25), (3, 25), (4, 0)):
        assert (trips, n) == round_trips(store, lambda: store.prune((Status.COMPLETED,), SECOND, 25))


def test_a_batch_is_stored_in_two_round_trips_and_closed_in_four(store):
    jobs = tuple(member(new_job(), "b", "") for _ in range(50))
    new = NewBatch(name="b", jobs=jobs, then=new_job("then"))

    assert 2 == round_trips(store, lambda: store.insert_batch(new))[0]
    claimed = take(store, 50)
    assert (2, []) == round_trips(store, lambda: store.settle([(c, COMPLETED) for c in claimed]).lost)
    assert (4, True) == round_trips(store, lambda: store.match() > 0)
    assert ["then"] == [c.type for c in take(store)]
