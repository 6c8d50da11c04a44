"""Reschedule: a waiting job moves to another time, priority or queue, and stays there through retries."""

from __future__ import annotations

import contextlib

import pytest

from tests.conformance.helpers import (
    FAILED,
    HOUR,
    RETRIED,
    SNOOZED,
    at_once,
    enlist,
    finish,
    ids,
    put,
    put_and_take,
    put_many,
    settle_one,
    snapshot,
    take,
)
from treadle import bulk
from treadle.bulk import Bulk
from treadle.clock import SECOND, to_datetime
from treadle.errors import JobNotFound, WrongStatus
from treadle.filters import EVERYTHING, parse
from treadle.ids import new_id
from treadle.job import Reschedule, Status
from treadle.outcome import CANCELLED, COMPLETED, RELEASED, Outcome, OutcomeKind

MOVED = Reschedule(priority=7, queue="fast")
ended = pytest.mark.parametrize("outcome", [COMPLETED, FAILED, CANCELLED], ids=lambda outcome: outcome.kind.value)


def place(job):
    return job.queue, job.priority


def test_an_unknown_job_raises_an_error_that_shows_the_id(store):
    id = new_id()

    with pytest.raises(JobNotFound, match=id):
        store.reschedule(id, MOVED)


def test_a_waiting_job_moves_to_another_time(store, clock):
    job = put(store, queue="slow", priority=1)
    clock.advance(1)

    moved = store.reschedule(job.id, Reschedule(run_at=clock() + HOUR))

    assert moved == store.get(job.id)
    assert (to_datetime(clock() + HOUR), to_datetime(clock())) == (moved.run_at, moved.updated_at)
    assert ("slow", 1) == place(moved)
    assert [] == take(store)
    clock.advance(3600)
    assert [job.id] == ids(take(store))


def test_a_delay_counts_from_the_time_of_the_database(store, clock):
    job = put(store, delay=HOUR)
    clock.advance(10)

    assert to_datetime(clock() + 60 * SECOND) == store.reschedule(job.id, Reschedule(delay=60 * SECOND)).run_at


def test_a_job_moves_to_another_priority_and_queue(store, clock):
    first, second = put(store, queue="slow"), put(store, queue="fast", priority=3)

    moved = store.reschedule(first.id, MOVED)

    assert ("fast", 7) == place(moved)
    assert first.run_at == moved.run_at
    assert [] == take(store, queues=("slow",))
    assert [first.id, second.id] == ids(take(store, queues=("fast",)))


def test_every_reader_shows_where_it_is(store, by_hand):
    job = put(store, queue="slow", tenant="acme")
    store.reschedule(job.id, MOVED)

    found = [store.jobs(parse(text), 10).jobs for text in ("queue:fast", "queue:fast tenant:acme", "queue:slow")]
    assert [[job.id], [job.id], []] == [ids(jobs) for jobs in found]
    assert [{"queue": "fast", "count": 1}] == store.counts(("queue",), EVERYTHING).rows
    assert [{"queue": "fast", "count": 1}] == store.counts(("queue",), parse("tenant:acme")).rows
    assert ["fast"] == [row.queue for row in store.queue_stats()]
    assert [("fast", 7)] == by_hand("SELECT queue, priority FROM treadle_job")


@pytest.mark.parametrize("outcome", [RETRIED, SNOOZED, RELEASED], ids=lambda outcome: outcome.kind.value)
def test_it_keeps_its_place_through_another_run(store, clock, outcome):
    job = put(store, queue="slow")
    store.reschedule(job.id, MOVED)
    (claimed,) = take(store)
    assert "fast" == claimed.queue
    assert ("fast", 7) == place(store.get(job.id))

    settle_one(store, claimed, outcome)
    other = put(store, queue="fast", priority=6)

    assert ("fast", 7) == place(store.get(job.id))
    assert [job.id, other.id] == ids(take(store))


def test_it_keeps_its_place_through_its_end_and_a_retry_by_hand(store):
    job = put(store, queue="slow")
    store.reschedule(job.id, MOVED)
    settle_one(store, take(store)[0], FAILED)
    assert ("fast", 7) == place(store.get(job.id))

    assert ("fast", 7) == place(store.retry(job.id))
    assert [] == take(store, queues=("slow",))
    assert [job.id] == ids(take(store, queues=("fast",)))


def test_it_keeps_its_place_when_its_worker_dies(store):
    job = put(store, queue="slow")
    store.reschedule(job.id, MOVED)
    take(store, worker=enlist(store))
    store.declare_dead("w1", "killed", started=())

    assert ("fast", 7) == place(store.get(job.id))
    assert [job.id] == ids(take(store, queues=("fast",)))


def test_its_usage_is_that_of_its_new_queue(store, clock):
    job = put(store, queue="slow")
    store.reschedule(job.id, MOVED)
    settle_one(store, take(store)[0], COMPLETED)

    (used,) = store.usage(0, clock() // SECOND + 60, 60, ("queue",))
    assert (("fast",), 1) == (used.key, used.runs)
    assert ("fast", 7) == place(store.get(job.id))


def test_a_retrying_job_is_rescheduled_and_keeps_its_attempts(store, clock):
    claimed = put_and_take(store)
    settle_one(store, claimed, Outcome(OutcomeKind.RETRIED, delay=HOUR, error="later"))

    moved = store.reschedule(claimed.id, Reschedule(delay=0))

    assert (Status.PENDING, 1, "later") == (moved.status, moved.attempts, moved.error)
    assert 2 == take(store)[0].attempt


@ended
def test_an_ended_job_is_refused_and_the_error_names_retry(store, outcome):
    job = finish(store, outcome)
    before = snapshot(store)

    with pytest.raises(WrongStatus, match=f"cannot reschedule job {job.id}: it is {job.status}.*td.retry"):
        store.reschedule(job.id, MOVED)

    assert before == snapshot(store)


def test_a_running_job_is_refused(store):
    claimed = put_and_take(store)
    before = snapshot(store)

    with pytest.raises(WrongStatus, match="it runs already"):
        store.reschedule(claimed.id, MOVED)

    assert before == snapshot(store)


@pytest.mark.by_hand
def test_a_job_whose_row_was_deleted_by_hand_waits_again(store, by_hand):
    job = put(store, queue="slow")
    by_hand("DELETE FROM treadle_ready")

    store.reschedule(job.id, MOVED)

    assert [job.id] == ids(take(store, queues=("fast",)))


def test_a_claim_and_a_reschedule_at_once_do_not_lose_or_repeat_a_job(open_store):
    ours, theirs = open_store(), open_store()
    jobs = put_many(ours, 40, queue="slow")

    def move():
        moved = []
        for job in jobs:
            with contextlib.suppress(WrongStatus):
                moved.append(theirs.reschedule(job.id, MOVED).id)
        return moved

    def work():
        held = []
        while some := take(ours, 3, queues=("slow",)):
            held += some
        return held

    moved, held = at_once(move, work)

    assert sorted(ids(jobs)) == sorted([*moved, *ids(held)])
    assert sorted(moved) == sorted(ids(take(theirs, queues=("fast",))))


# Many


def test_all_that_match_are_rescheduled(store, clock, monkeypatch):
    monkeypatch.setattr(bulk, "CHUNK", 4)
    jobs, kept = put_many(store, 10, queue="slow"), put(store)
    settle_one(store, take(store, 1, queues=("slow",))[0], COMPLETED)
    now = clock()
    work = Bulk(store, "reschedule", parse("queue:slow"), changes=Reschedule(delay=HOUR, queue="fast"))
    for _ in work:
        clock.advance(1)

    assert (10, 9, 1) == (work.total, work.done, work.skipped)
    found = [store.get(job.id) for job in jobs]
    assert {(to_datetime(now + HOUR), "fast")} == {(job.run_at, job.queue) for job in found if not job.status.is_final}
    assert kept == store.get(kept.id)
