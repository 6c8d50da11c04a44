"""Races of two stores on one database, in threads: no two callers get the same job."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress

import pytest

from tests.conformance.helpers import (
    DAY,
    HOUR,
    at_once,
    enlist,
    everything,
    ids,
    limit,
    new_job,
    put,
    put_and_take,
    put_many,
    settle_one,
    take,
)
from treadle.errors import LeaseLost, WorkerLost, WrongStatus
from treadle.filters import Filter
from treadle.job import Status
from treadle.outcome import COMPLETED, RELEASED
from treadle.stores.base import ClaimRequest


def test_racing_claims_never_share_a_job(open_store):
    handles = [open_store() for _ in range(2)]
    put_many(handles[0], 400)

    def claim_all(store):
        claimed = []
        while bite := take(store, 7):
            claimed += bite
        return claimed

    hauls = at_once(*(lambda store=handles[i % 2]: claim_all(store) for i in range(4)))

    claimed = [c for haul in hauls for c in haul]
    assert 400 == len(claimed) == len(set(ids(claimed))) == len({c.number for c in claimed})


def test_racing_claims_never_exceed_a_limit(open_store):
    handles = [open_store() for _ in range(2)]
    limit(handles[0], "noop", 3)
    put_many(handles[0], 120)
    highest: list[int] = []

    def work(store):
        done = 0
        while True:
            claimed = take(store, 2)
            highest.append(len(store.jobs(Filter(statuses=(Status.PROCESSING,)), 100)))
            store.settle([(c, COMPLETED) for c in claimed])
            done += len(claimed)
            if not claimed and not store.due(ClaimRequest(limit=1)).now and not _waiting(store):
                return done

    done = at_once(*(lambda store=handles[i % 2]: work(store) for i in range(4)))

    assert 120 == sum(done)
    assert max(highest) <= 3


def _waiting(store):
    return [row for row in store.counts(("status",)).rows if row["status"] == "pending"]


def test_racing_enqueues_of_one_key_make_one_job(open_store):
    handles = [open_store() for _ in range(2)]
    handles[0].open()

    def enqueue(store):
        return [put(store, dedupe=f"key-{i}").id for i in range(40)]

    answers = at_once(*(lambda store=handles[i % 2]: enqueue(store) for i in range(4)))

    assert [answers[0]] * 4 == answers
    assert 40 == len(everything(handles[0]))


def test_racing_repeats_of_one_enqueue_make_one_job(open_store):
    handles = [open_store() for _ in range(2)]
    new = new_job()

    answers = at_once(*(lambda store=handles[i % 2]: store.insert([new]) for i in range(4)))

    assert [[new.id]] * 4 == [ids(answer) for answer in answers]
    assert [{"count": 1}] == handles[0].counts(()).rows


def test_each_job_ends_once_when_several_callers_settle_it(open_store):
    """The worker completes, the rescuer returns, a person cancels: one of them wins, and the records are consistent."""
    ours, theirs = open_store(), open_store()
    for i in range(30):
        worker = enlist(ours, f"w{i}")
        claimed = put_and_take(ours, worker=worker, max_attempts=1)
        calls = (
            lambda c=claimed: settle_one(ours, c, COMPLETED),
            lambda w=worker: theirs.declare_dead(w, "the process died"),
            lambda c=claimed: theirs.cancel(c.id),
        )
        completed, rescued, cancelled = at_once(*calls)

        status = ours.get(claimed.id).status
        assert (Status.COMPLETED if completed else Status.FAILED) == status
        assert (completed, rescued) in ((True, 0), (False, 1))
        assert isinstance(cancelled, WrongStatus) or cancelled.status is Status.PROCESSING


def test_a_worker_declared_dead_during_a_claim_either_has_the_jobs_or_gets_an_error(open_store):
    ours, theirs = open_store(), open_store()
    for i in range(30):
        worker = enlist(ours, f"w{i}")
        job = put(ours)

        claimed, returned = at_once(
            lambda w=worker: take(ours, worker=w), lambda w=worker: theirs.declare_dead(w, "gone")
        )

        if isinstance(claimed, WorkerLost):
            assert 0 == returned
        else:
            assert ([job.id], 1) == (ids(claimed), returned)
        assert Status.PENDING == ours.get(job.id).status
        ours.delete(job.id)


def test_store_calls_of_all_kinds_in_threads_leave_the_records_consistent(open_store):
    handles = [open_store() for _ in range(2)]
    limit(handles[0], "noop", 8)
    put_many(handles[0], 60, max_attempts=2)
    everyone = ids(everything(handles[0]))

    def churn(i):
        store, worker = handles[i % 2], enlist(handles[i % 2], f"w{i}")
        for round in range(25):
            claimed = take(store, 3, worker=worker)
            store.settle([(c, (COMPLETED, RELEASED)[round % 2]) for c in claimed[:2]])
            for verb, id in zip(("cancel", "retry", "retry"), everyone[round * 2 + i :], strict=False):
                with suppress(WrongStatus):
                    getattr(store, verb)(id)
        store.declare_dead(worker, "stopped")

    answers = at_once(*(lambda i=i: churn(i) for i in range(4)))

    assert [None] * 4 == answers
    assert 60 == len(everything(handles[0]))
    assert {"pending", "completed", "cancelled", "failed"} >= {r["status"] for r in handles[0].counts(("status",)).rows}


def test_many_threads_can_use_one_store(store):
    def work(i):
        for _ in range(20):
            put(store, f"type-{i}")
            (claimed,) = take(store, 1, types={f"type-{i}": None})
            store.beat(workers[i])
            assert settle_one(store, claimed, COMPLETED)
            assert Status.COMPLETED == store.get(claimed.id).status

    workers = [enlist(store, f"w{i}") for i in range(4)]
    answers = at_once(*(lambda i=i: work(i) for i in range(4)))

    assert [None] * 4 == answers
    assert [{"status": "completed", "count": 80}] == store.counts(("status",)).rows


def test_many_stores_that_open_a_new_database_at_once_all_succeed(open_store):
    """Each of them tries to create the tables."""
    handles = [open_store() for _ in range(8)]

    answers = at_once(*(lambda store=store: put(store).status for store in handles))

    assert [Status.PENDING] * 8 == answers
    assert 8 == len(everything(handles[0]))


def test_of_an_open_transaction_of_a_job_and_a_caller_that_takes_the_job_one_wins(open_store, request):
    """Where there is one writer, that is the transaction. On PostgreSQL, it is the first to delete the lease."""
    ours, theirs = open_store(), open_store()
    enlist(ours, "w1")
    claimed = put_and_take(ours, worker="w1")
    inside, returned = threading.Event(), []

    def declare_dead():
        inside.wait()
        returned.append(theirs.declare_dead("w1", "stood still"))

    rescuer = threading.Thread(target=declare_dead)
    rescuer.start()
    lost = 0
    try:
        with ours.transaction(claimed, lambda: COMPLETED):
            inside.set()
    except LeaseLost:
        lost = 1
    rescuer.join()

    assert [lost] == returned
    assert lost == 0 or "postgresql" in request.node.name
    assert (Status.PENDING if lost else Status.COMPLETED) == ours.get(claimed.id).status


def test_a_transaction_of_a_worker_that_lost_the_lease_is_refused(open_store):
    ours, theirs = open_store(), open_store()
    claimed = put_and_take(ours)
    theirs.complete([claimed.id])

    with pytest.raises(LeaseLost), ours.transaction(claimed, lambda: COMPLETED):
        pass

    assert Counter({"completed": 1}) == Counter({r["status"]: r["count"] for r in ours.counts(("status",)).rows})


# Limits


def test_two_claims_at_once_share_a_limit(open_store):
    ours, theirs = open_store(), open_store()
    limit(ours, "noop", 3)
    put_many(ours, 300, queue="q")
    put_many(ours, 300, queue="r")

    for _ in range(200):
        hauls = at_once(lambda: take(ours, 2), lambda: take(theirs, 3))
        claimed = [c for haul in hauls for c in haul]
        assert 3 == len(claimed) == len(set(ids(claimed)))
        ours.settle([(c, COMPLETED) for c in claimed])


def test_a_limit_counts_jobs_that_others_settle_at_the_same_time(open_store):
    ours, theirs = open_store(), open_store()
    limit(ours, "noop", 2)
    put_many(ours, 150)
    held = take(ours)

    for _ in range(50):
        settled, claimed = at_once(lambda held=held: ours.settle([(c, COMPLETED) for c in held]), lambda: take(theirs))
        assert not settled.lost
        assert len(claimed) in (0, 2)
        held = claimed or take(ours)
        assert 2 == len(held) == len(ours.jobs(Filter(statuses=(Status.PROCESSING,)), 10))


# A person and a worker act on the same job


def test_a_job_that_is_cancelled_while_it_is_claimed_is_cancelled_or_flagged(open_store):
    ours, theirs = open_store(), open_store()
    for _ in range(50):
        job = put(ours)
        claimed, cancelled = at_once(lambda: take(ours), lambda id=job.id: theirs.cancel(id))

        if cancelled.status is Status.CANCELLED:
            assert [] == claimed
        else:
            assert (Status.PROCESSING, [job.id]) == (cancelled.status, ids(claimed))
            assert settle_one(ours, claimed[0], RELEASED)
        assert Status.CANCELLED == ours.get(job.id).status


def test_a_job_that_is_deleted_while_it_is_claimed_is_either_gone_or_leased(open_store):
    ours, theirs = open_store(), open_store()
    for _ in range(50):
        job = put(ours, dedupe="k")
        claimed, deleted = at_once(lambda: take(ours), lambda id=job.id: theirs.delete(id))

        if isinstance(deleted, WrongStatus):
            assert [job.id] == ids(claimed)
            assert settle_one(ours, claimed[0], COMPLETED)
        else:
            assert ([], None) == (claimed, ours.get(job.id))


def test_a_job_that_is_retried_while_others_claim_is_claimed_once(open_store):
    ours, theirs = open_store(), open_store()
    job = put(ours)
    for _ in range(50):
        assert settle_one(ours, take(ours)[0], COMPLETED)

        claimed, first, second = at_once(lambda: take(ours), lambda: theirs.retry(job.id), lambda: ours.retry(job.id))

        assert [WrongStatus] == [type(answer) for answer in (first, second) if isinstance(answer, Exception)]
        assert [] == claimed or [job.id] == ids(claimed)
        if claimed:
            assert settle_one(ours, claimed[0], RELEASED)
        assert Status.PENDING == ours.get(job.id).status


def test_a_job_that_is_reconciled_while_it_is_claimed_stays_completed(open_store):
    ours, theirs = open_store(), open_store()
    for _ in range(50):
        job = put(ours)
        claimed, completed = at_once(lambda: take(ours), lambda id=job.id: theirs.complete([id]))

        assert 1 == completed
        assert Status.COMPLETED == ours.get(job.id).status
        assert [] == [c for c in claimed if settle_one(ours, c, COMPLETED)]


def test_two_prunes_at_once_share_the_old_jobs(open_store, clock):
    ours, theirs = open_store(), open_store()
    put_many(ours, 40)
    ours.settle([(c, COMPLETED) for c in take(ours)])
    clock.now += DAY

    def prune(store):
        pruned = 0
        while n := store.prune((Status.COMPLETED,), HOUR, 7):
            pruned += n
        return pruned

    assert 40 == sum(at_once(lambda: prune(ours), lambda: prune(theirs)))
    assert [] == everything(ours)
