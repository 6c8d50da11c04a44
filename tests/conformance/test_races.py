"""Two handles on one database, in threads: nobody gets what another has."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress

import pytest

from tests.conformance.helpers import (
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
from windlass.errors import LeaseLost, WorkerLost, WrongStatus
from windlass.job import Status
from windlass.outcome import COMPLETED, RELEASED
from windlass.stores.base import Filter, Wanted


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
            if not claimed and not store.due(Wanted(limit=1)).now and not _waiting(store):
                return done

    done = at_once(*(lambda store=handles[i % 2]: work(store) for i in range(4)))

    assert 120 == sum(done)
    assert max(highest) <= 3


def _waiting(store):
    return [row for row in store.counts(("status",)) if row["status"] == "pending"]


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
    assert [{"count": 1}] == handles[0].counts(())


def test_of_racing_settlements_each_job_ends_once(open_store):
    """The worker completes, the rescuer returns, a person cancels: one of them wins, the books balance."""
    ours, theirs = open_store(), open_store()
    for i in range(30):
        worker = enlist(ours, f"w{i}")
        claimed = put_and_take(ours, worker=worker, max_attempts=1)
        calls = (
            lambda c=claimed: settle_one(ours, c, COMPLETED),
            lambda w=worker: theirs.bury(w, "the process died"),
            lambda c=claimed: theirs.cancel(c.id),
        )
        completed, rescued, cancelled = at_once(*calls)

        status = ours.get(claimed.id).status
        assert (Status.COMPLETED if completed else Status.FAILED) == status
        assert (completed, rescued) in ((True, 0), (False, 1))
        assert isinstance(cancelled, WrongStatus) or cancelled.status is Status.PROCESSING


def test_a_worker_that_is_buried_while_it_claims_has_the_jobs_or_learns_of_its_death(open_store):
    ours, theirs = open_store(), open_store()
    for i in range(30):
        worker = enlist(ours, f"w{i}")
        job = put(ours)

        claimed, buried = at_once(lambda w=worker: take(ours, worker=w), lambda w=worker: theirs.bury(w, "gone"))

        if isinstance(claimed, WorkerLost):
            assert 0 == buried
        else:
            assert ([job.id], 1) == (ids(claimed), buried)
        assert Status.PENDING == ours.get(job.id).status
        ours.delete(job.id)


def test_verbs_of_all_kinds_in_threads_leave_the_books_in_balance(open_store):
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
        store.bury(worker, "stopped")

    answers = at_once(*(lambda i=i: churn(i) for i in range(4)))

    assert [None] * 4 == answers
    assert 60 == len(everything(handles[0]))
    assert {"pending", "completed", "cancelled", "failed"} >= {r["status"] for r in handles[0].counts(("status",))}


def test_one_handle_serves_many_threads(store):
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
    assert [{"status": "completed", "count": 80}] == store.counts(("status",))


def test_many_who_open_a_new_database_at_once_all_succeed(open_store):
    """Each of them would like to create the tables."""
    handles = [open_store() for _ in range(8)]

    answers = at_once(*(lambda store=store: put(store).status for store in handles))

    assert [Status.PENDING] * 8 == answers
    assert 8 == len(everything(handles[0]))


def test_a_transaction_shuts_out_those_who_would_take_the_job(open_store):
    ours, theirs = open_store(), open_store()
    enlist(ours, "w1")
    claimed = put_and_take(ours, worker="w1")
    inside, buried = threading.Event(), []

    def bury():
        inside.wait()
        buried.append(theirs.bury("w1", "stood still"))

    rescuer = threading.Thread(target=bury)
    rescuer.start()
    with ours.transaction(claimed, lambda: COMPLETED):
        inside.set()
    rescuer.join()

    assert [0] == buried
    assert Status.COMPLETED == ours.get(claimed.id).status


def test_a_transaction_of_one_who_was_overtaken_is_refused(open_store):
    ours, theirs = open_store(), open_store()
    claimed = put_and_take(ours)
    theirs.complete([claimed.id])

    with pytest.raises(LeaseLost), ours.transaction(claimed, lambda: COMPLETED):
        pass

    assert Counter({"completed": 1}) == Counter({r["status"]: r["count"] for r in ours.counts(("status",))})
