"""Claims that continue where the last one ended. Jobs behind that position are found by the rules of `cursor.py`."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.conformance.helpers import (
    RETRIED,
    ids,
    limit,
    new_job,
    put,
    put_many,
    settle_one,
    take,
)
from treadle.clock import SECOND
from treadle.errors import StoreUnusable
from treadle.outcome import COMPLETED, RELEASED, Outcome, OutcomeKind
from treadle.stores import claim_order as cursor
from treadle.stores.base import ClaimRequest
from treadle.stores.claim_order import Cursors
from treadle.stores.postgres.connection import Database

pytestmark = pytest.mark.only("postgresql")


class Time:
    """A clock whose seconds pass only when a test advances it."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    time = Time()
    monkeypatch.setattr(cursor, "time", time)
    return time


@pytest.fixture(autouse=True)
def looks_that_cost(monkeypatch, cheap_looks):
    """Looks cost enough that not every claim makes one, and too little to be rationed."""
    monkeypatch.setattr(cursor, "CHEAP", -1)
    monkeypatch.setattr(cursor, "EXPENSIVE", 1e9)


@pytest.fixture
def begun(open_store, time, clock):
    """A store that has claimed two of ten jobs, another store, the two jobs, and the ids of the others."""
    ours, theirs = open_store(), open_store()
    jobs = put_many(theirs, 10)
    clock.advance(10)
    claimed = take(ours, 2)
    assert ids(jobs[:2]) == ids(claimed)
    return ours, theirs, claimed, ids(jobs[2:])


def test_a_claim_continues_where_the_last_one_ended(begun):
    ours, _, _, waiting = begun

    assert waiting[:3] == ids(take(ours, 3))
    assert waiting[3:] == ids(take(ours))
    assert [] == take(ours)


def give_back(theirs, claimed, clock):
    assert settle_one(theirs, claimed[0], RELEASED)
    return claimed[0].id


def put_before(theirs, claimed, clock):
    return put(theirs, run_at=clock() - 60 * SECOND).id


def put_more_urgent(theirs, claimed, clock):
    return put(theirs, priority=5).id


def run_now(theirs, claimed, clock):
    return theirs.run_now(put(theirs, priority=5, delay=3600 * SECOND).id).id


BEHIND = [give_back, put_before, put_more_urgent, run_now]


@pytest.mark.parametrize("fall", BEHIND, ids=lambda fall: fall.__name__)
def test_a_job_behind_the_cursor_is_found_by_a_claim_that_found_too_few(begun, clock, fall):
    ours, theirs, claimed, waiting = begun
    behind = fall(theirs, claimed, clock)

    assert waiting[:7] == ids(take(ours, 7))
    assert {behind, waiting[7]} == set(ids(take(ours, 2)))


@pytest.mark.parametrize("fall", BEHIND, ids=lambda fall: fall.__name__)
def test_a_job_behind_the_cursor_is_found_within_a_second(begun, clock, time, fall):
    ours, theirs, claimed, waiting = begun
    behind = fall(theirs, claimed, clock)

    time.now += 0.9
    assert waiting[:1] == ids(take(ours, 1))
    time.now += 0.2
    assert [behind] == ids(take(ours, 1))


@pytest.mark.parametrize("fall", BEHIND, ids=lambda fall: fall.__name__)
def test_a_job_that_this_process_put_behind_the_cursor_is_found_at_once(begun, clock, fall):
    ours, _, claimed, waiting = begun

    behind = fall(ours, claimed, clock)

    assert [behind] == ids(take(ours, 1))
    assert waiting[:1] == ids(take(ours, 1))


def test_a_retried_job_comes_after_jobs_that_waited_longer(begun):
    ours, theirs, claimed, waiting = begun
    assert settle_one(theirs, claimed[0], RETRIED)

    assert [*waiting, claimed[0].id] == ids(take(ours))


def test_a_job_that_an_outcome_delayed_is_found_when_it_is_due(begun, clock):
    ours, theirs, claimed, waiting = begun
    assert settle_one(theirs, claimed[0], Outcome(OutcomeKind.RETRIED, delay=5 * SECOND, error="later"))
    assert waiting == ids(take(ours))

    clock.advance(5)

    assert [claimed[0].id] == ids(take(ours))


def test_a_job_that_is_retried_by_hand_is_found(begun):
    ours, theirs, claimed, waiting = begun
    assert settle_one(theirs, claimed[0], COMPLETED)
    theirs.retry(claimed[0].id)

    assert [*waiting, claimed[0].id] == ids(take(ours))


def test_run_now_is_found_in_a_queue_that_had_no_due_jobs(open_store, time):
    """The cursor had seen that the first job of the queue is due later."""
    ours, theirs = open_store(), open_store()
    put(theirs, delay=3600 * SECOND)
    job = put(theirs, delay=7200 * SECOND)
    assert [] == take(ours)

    theirs.run_now(job.id)

    time.now += 1
    assert [job.id] == ids(take(ours))


def test_a_job_that_is_committed_late_is_found(open_store, clock, time):
    """It sorts before jobs that were claimed in the meantime."""
    ours, theirs = open_store(), open_store()
    theirs.open()
    with psycopg.connect(theirs.url) as users:
        (late,) = theirs.insert([new_job()], users)
        clock.advance(1)
        first, second, third = put_many(theirs, 3)
        assert [first.id] == ids(take(ours, 1))
        users.commit()

    assert [second.id] == ids(take(ours, 1))
    assert {late.id, third.id} == set(ids(take(ours, 2)))


def test_a_claim_that_was_rolled_back_hides_no_jobs(begun, monkeypatch):
    ours, _, _, waiting = begun

    def broken(self, connection):
        raise StoreUnusable("here", "it broke", "wait")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "commit", broken)
        with pytest.raises(StoreUnusable):
            take(ours, 4)

    assert set(waiting) == set(ids(take(ours)))


def test_rows_that_another_claim_locked_and_gave_up_are_found(begun):
    ours, _, _, waiting = begun
    with psycopg.connect(ours.url) as other:
        other.execute("SELECT 1 FROM treadle.ready WHERE id = %s FOR UPDATE", [waiting[0]])
        assert waiting[1:3] == ids(take(ours, 2))

    assert set(waiting) - set(waiting[1:3]) == set(ids(take(ours)))


def test_a_new_type_and_a_new_queue_are_found(begun):
    ours, theirs, _, waiting = begun
    other, elsewhere = put(theirs, "other"), put(theirs, queue="elsewhere")

    assert {*waiting, other.id, elsewhere.id} == set(ids(take(ours)))


def test_a_limit_holds_in_a_claim_from_known_ranges(open_store, time):
    """Such a claim counts again, under the lock of the type."""
    ours, theirs = open_store(), open_store()
    limit(ours, "noop", 3)
    put_many(ours, 10)
    claimed = take(ours, 1)

    assert 2 == len(take(theirs))
    assert [] == take(ours)
    assert settle_one(theirs, claimed[0], COMPLETED)
    assert 1 == len(take(ours))


@pytest.mark.needs("notices_commits")
def test_a_listener_looks_again_after_a_notification(begun, open_store, clock):
    ours, _, claimed, _ = begun
    watch = ours.watch()
    behind = put_before(open_store(), claimed, clock)  # from a process that has not notified a moment ago

    while not ours.database.cursors.look_first():
        assert watch.wait(10)
    assert [behind] == ids(take(ours, 1))
    watch.close()


def test_every_job_is_claimed_once_by_processes_that_each_have_a_cursor(open_store, time, monkeypatch):
    handles = [open_store() for _ in range(3)]
    put_many(handles[0], 150)
    given_back: list[str] = []
    lock = threading.Lock()

    def work(store):
        done = []
        while claimed := take(store, 7):
            back = claimed[0]
            with lock:
                again = back.id not in given_back and len(given_back) < 20
                given_back.extend([back.id] if again else [])
            outcomes = [(c, RELEASED if c is back and again else COMPLETED) for c in claimed]
            assert not store.settle(outcomes).lost
            done += [c.id for c, outcome in outcomes if outcome is COMPLETED]
        return done

    threads = [threading.Thread(target=lambda store=store: hauls.append(work(store))) for store in handles]
    hauls: list[list[str]] = []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hauls.append(work(handles[0]))  # jobs that the last one gave back when the others were gone

    done = [id for haul in hauls for id in haul]
    assert 150 == len(done) == len(set(done))


# How often


def looked(cursors, seconds, time):
    def look():
        time.now += seconds
        return []

    cursors.looked(look, ClaimRequest(limit=1))


def test_expensive_looks_take_a_tenth_of_the_time(time, monkeypatch):
    monkeypatch.setattr(cursor, "EXPENSIVE", 0.02)
    cursors = Cursors()
    for _ in range(2):  # a single slow look may be a coincidence
        looked(cursors, 0.5, time)
    began, looks = time.now, 0

    while time.now < began + 100:
        cursors.stale = True
        if cursors.look_first():
            looked(cursors, 0.5, time)
            looks += 1
        time.now += 0.01

    assert 18 <= looks <= 20


def test_cheap_looks_are_made_before_every_claim(time, monkeypatch):
    monkeypatch.setattr(cursor, "CHEAP", 0.002)
    cursors = Cursors()
    for seconds in (0.001, 5.0):  # a single slow look may be a coincidence
        looked(cursors, seconds, time)
        assert cursors.look_first()


def test_the_order_is_kept_for_the_same_types_and_queues_only(time):
    cursors = Cursors()
    looked(cursors, 0.5, time)
    looked(cursors, 0.5, time)

    assert cursors.kept(ClaimRequest(limit=9)) is not None
    assert cursors.kept(ClaimRequest(limit=1, types={"t": None})) is None
    assert cursors.kept(ClaimRequest(limit=1, queues=("q",))) is None
