"""Races of dedupe modes: concurrent callers get exactly the jobs that the mode says, also in open transactions."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from asyncio import to_thread
from collections import Counter

import pytest

from tests.conformance.helpers import (
    FAILED,
    RETRIED,
    at_once,
    by_hand,
    check_keys,
    everything,
    ids,
    new_job,
    on_postgres,
    put,
    select,
    settle_one,
    take,
)
from tests.conformance.keyed_jobs import DEBOUNCE, REJECT, REPLACE, STARTED, THROTTLE, call, keyed
from tests.eventually import eventually
from treadle import Treadle, clock
from treadle.errors import KeyHeld, StoreBusy
from treadle.filters import Filter
from treadle.job import Status
from treadle.outcome import COMPLETED, Outcome, OutcomeKind
from treadle.stores import open_store as open_by_url

MODES = {"return": {}, "replace": REPLACE, "debounce": DEBOUNCE, "throttle": THROTTLE, "reject": REJECT}
FEW = (6, 4)
MANY = (64, 1000)
"""Callers, and keys that each of them uses once."""


@pytest.fixture
def users(open_store):
    """A user's own connection, with an open transaction."""
    store = open_store()
    store.open()
    connection = by_hand(store)
    yield connection
    connection.close()


def storm(handles, mode, size):
    """Every caller enqueues each key once. Return what each got: ids, and None for a key that was held."""
    callers, keys = size

    def calls(store, n):
        found = []
        for i in range(keys):
            try:
                found.append(call(store, MODES[mode], f"key-{(i + n * 7) % keys}").id)
            except KeyHeld:
                found.append(None)
        return found

    return at_once(*(lambda n=n: calls(handles[n % len(handles)], n) for n in range(callers)))


def check_storm(store, mode, size, answers):
    callers, keys = size
    jobs = {job.id: job for job in jobs_of(store)}
    got = Counter(id for found in answers for id in found)
    waiting = {id for id, job in jobs.items() if job.status is Status.PENDING}
    assert keys == len(waiting)
    if mode in ("return", "throttle"):
        assert ({callers}, waiting) == (set(got.values()), set(got))
        assert waiting == set(jobs)
    elif mode == "reject":
        assert (callers - 1) * keys == got.pop(None)
        assert ({1}, waiting) == (set(got.values()), set(got))
        assert waiting == set(jobs)
    else:
        assert ({1}, set(jobs)) == (set(got.values()), set(got))
        assert callers * keys == len(jobs)
        check_replaced(jobs)
    check_keys(store)


def jobs_of(store):
    found, before = [], None
    while True:
        page = store.jobs(Filter(), 10_000, before)
        found += page.jobs
        if page.next is None:
            return found
        before = page.next


def check_replaced(jobs):
    """Each replaced job names the next one, and no two name the same."""
    errors = [job.error for job in jobs.values() if job.status is Status.CANCELLED]
    assert len(set(errors)) == len(errors)
    assert {error.removeprefix("replaced by ") for error in errors} <= set(jobs)


@pytest.mark.parametrize("mode", MODES)
def test_concurrent_callers_get_exactly_the_jobs_that_the_mode_says(open_store, mode):
    handles = [open_store() for _ in range(3)]
    handles[0].open()

    answers = storm(handles, mode, FEW)

    check_storm(handles[0], mode, FEW, answers)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
def test_many_concurrent_callers_get_exactly_the_jobs_that_the_mode_says(open_store, mode):
    handles = [open_store() for _ in range(4)]
    handles[0].open()

    answers = storm(handles, mode, MANY)

    check_storm(handles[0], mode, MANY, answers)


@pytest.mark.parametrize("mode", ["replace", "debounce"])
def test_concurrent_callers_leave_one_successor_of_each_running_holder(open_store, mode):
    handles = [open_store() for _ in range(3)]
    keys = FEW[1]
    handles[0].insert([new_job(dedupe=f"key-{i}") for i in range(keys)])
    running = take(handles[0])

    storm(handles, mode, FEW)

    waiting = [job.id for job in everything(handles[0]) if job.status is Status.PENDING]
    assert ([], keys) == (take(handles[0]), len(waiting))
    handles[1].settle([(claimed, COMPLETED) for claimed in running])
    assert mode == "debounce" or set(waiting) == set(ids(take(handles[0])))


def replaced_while_it_runs(handles, callers, calls):
    """Callers replace while a worker claims and settles. Return the jobs at the end."""
    stop = threading.Event()

    def work(store):
        aside, last = [], False
        while not last or aside:
            last = stop.is_set() and not aside
            claimed = [*aside, *take(store, 5)]
            last = last and not claimed
            aside = [one for one, _ in store.settle([(one, COMPLETED) for one in claimed]).set_aside]

    workers = [threading.Thread(target=work, args=(handles[n],)) for n in range(2)]
    for worker in workers:
        worker.start()
    done = at_once(
        *(
            lambda n=n: [call(handles[n % len(handles)], REPLACE, f"key-{i % 3}").id for i in range(calls)]
            for n in range(callers)
        )
    )
    stop.set()
    for worker in workers:
        worker.join()
    assert [] == [answer for answer in done if isinstance(answer, Exception)]
    return {job.id: job for job in jobs_of(handles[0])}


def check_run(jobs, total):
    """Every call stored a job, which ran or was replaced by a later one that ran."""
    assert total == len(jobs)
    assert {Status.COMPLETED, Status.CANCELLED} >= {job.status for job in jobs.values()}
    check_replaced(jobs)


def test_no_job_is_lost_that_replaces_another_while_workers_claim_and_settle(open_store):
    handles = [open_store() for _ in range(3)]
    handles[0].open()

    jobs = replaced_while_it_runs(handles, callers=4, calls=15)

    check_run(jobs, 4 * 15)
    check_keys(handles[0])


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_no_job_is_lost_in_a_storm_of_replacements(open_store):
    handles = [open_store() for _ in range(4)]
    handles[0].open()

    jobs = replaced_while_it_runs(handles, callers=16, calls=500)

    check_run(jobs, 16 * 500)
    if on_postgres(handles[0]):
        [(deadlocks,)] = select(handles[0], "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert 0 == deadlocks


def in_a_process(url, mode, n):
    store = open_by_url(url)
    found = storm([store], mode, (2, 3))
    store.close()
    return found


@pytest.mark.parametrize("mode", ["replace", "throttle"])
def test_processes_get_exactly_the_jobs_that_the_mode_says(open_store, mode):
    store = open_store()
    store.open()

    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.starmap(in_a_process, [(store.url, mode, n) for n in range(2)])

    check_storm(store, mode, (4, 3), [answers for part in found for answers in part])


# In the user's own transaction


@pytest.mark.needs("joins_transactions")
@pytest.mark.parametrize("commits", [True, False])
def test_a_users_transaction_replaces_when_it_commits(store, users, commits):
    first = call(store)
    (second,) = store.insert([keyed()], users)

    users.commit() if commits else users.rollback()

    assert [second.id if commits else first.id] == ids(take(store))
    assert commits == (store.get(second.id) is not None)


@pytest.mark.needs("joins_transactions")
def test_a_rejected_job_leaves_the_users_transaction_usable(store, users):
    holder = call(store, REJECT)
    (other,) = store.insert([new_job()], users)

    with pytest.raises(KeyHeld):
        store.insert([new_job(), keyed(REJECT)], users)

    users.commit()
    assert {holder.id, other.id} == set(ids(everything(store)))


@pytest.mark.only("postgresql")
def test_a_claim_does_not_wait_for_a_transaction_that_replaces_a_job(store, users):
    call(store)
    other = put(store)
    (second,) = store.insert([keyed()], users)

    assert [other.id] == ids(take(store))
    users.commit()
    assert [second.id] == ids(take(store))


@pytest.mark.only("postgresql")
def test_a_job_does_not_start_before_the_transaction_that_counts_on_it_ends(store, users):
    """Otherwise the change of that transaction would be lost: the job starts without it, and no other one comes."""
    first = call(store, STARTED)
    (same,) = store.insert([keyed(STARTED)], users)

    assert (first.id, []) == (same.id, take(store))
    users.commit()
    assert [first.id] == ids(take(store))


@pytest.mark.only("postgresql")
def test_a_settle_whose_key_is_locked_is_set_aside_and_the_rest_goes_on(store, users):
    first, other = call(store), put(store)
    claimed = {one.id: one for one in take(store)}
    (second,) = store.insert([keyed()], users)

    settled = store.settle([(one, COMPLETED) for one in claimed.values()])

    assert ([other.id], [], [first.id]) == (
        [one.id for one, _ in settled.written],
        settled.lost,
        [one.id for one, _ in settled.set_aside],
    )
    assert (Status.PROCESSING, Status.COMPLETED) == (store.get(first.id).status, store.get(other.id).status)
    users.commit()
    assert settle_one(store, claimed[first.id], COMPLETED)
    assert [second.id] == ids(take(store))


@pytest.mark.only("postgresql")
def test_a_settle_whose_follow_up_needs_a_locked_key_is_set_aside_and_the_rest_goes_on(store, users):
    first, second, other = (put(store) for _ in range(3))
    claimed = {one.id: one for one in take(store)}
    (holder,) = store.insert([new_job(dedupe="k")], users)
    ended = [
        (claimed[first.id], Outcome(OutcomeKind.COMPLETED, follow_ups=(new_job(dedupe="k"),))),
        (claimed[second.id], Outcome(OutcomeKind.COMPLETED, follow_ups=(new_job(dedupe="free"),))),
        (claimed[other.id], COMPLETED),
    ]

    settled = store.settle(ended)

    assert {second.id, other.id} == {one.id for one, _ in settled.written}
    assert [first.id] == [one.id for one, _ in settled.set_aside]
    users.commit()
    assert [first.id] == [one.id for one, _ in store.settle(settled.set_aside).written]
    assert holder.id in ids(take(store))


@pytest.mark.only("postgresql")
def test_only_the_end_of_a_job_needs_its_key(store, users):
    first = call(store)
    (claimed,) = take(store)
    store.insert([keyed()], users)

    assert not store.settle([(claimed, RETRIED)]).set_aside
    assert Status.PENDING is store.get(first.id).status


@pytest.mark.only("postgresql")
def test_a_rescue_leaves_a_job_whose_key_is_locked_to_the_next_one(store, users, clock):
    first, other = call(store, max_attempts=1), put(store, max_attempts=1)
    take(store, lease_for=1)
    store.insert([keyed()], users)
    clock.advance(60)

    assert 1 == store.rescue()
    assert (Status.PROCESSING, Status.FAILED) == (store.get(first.id).status, store.get(other.id).status)
    users.rollback()
    assert 1 == store.rescue()
    assert Status.FAILED is store.get(first.id).status


@pytest.mark.only("postgresql")
def test_a_lease_by_hand_waits_for_the_transaction_that_has_locked_its_key(store, users, monkeypatch):
    td = Treadle(store.url)
    td._use(store)
    call(store)
    [lease] = td.claim(1)
    store.insert([keyed()], users)
    monkeypatch.setattr("treadle.lease.PATIENCE", 0)
    with pytest.raises(StoreBusy):
        lease.complete()

    users.commit()
    lease.complete()

    assert Status.COMPLETED is store.get(lease.job.id).status


@pytest.mark.only("postgresql")
def test_a_worker_settles_the_others_while_a_transaction_has_locked_a_key(open_store, users):
    store = open_store(clock=clock.now)
    td = Treadle(store.url)
    td._use(store)
    go = asyncio.Event()

    @td.job
    async def index(doc: str) -> None:
        await go.wait()

    first = index.using(dedupe="doc").enqueue(doc="a")
    others = [index.enqueue(doc=str(n)) for n in range(3)]

    async def run() -> None:
        async with td.worker(concurrency=10):
            await to_thread(eventually, lambda: td.get(first.id).status is Status.PROCESSING)
            store.insert([keyed(key="doc", type="index", payload='{"doc":"b"}')], users)
            go.set()
            await to_thread(eventually, lambda: all(td.get(job.id).status is Status.COMPLETED for job in others))
            assert Status.PROCESSING is td.get(first.id).status
            users.commit()
            await to_thread(eventually, lambda: {job.status for job in td.jobs()} == {Status.COMPLETED})

    asyncio.run(run())


@pytest.mark.only("postgresql")
def test_a_cancel_and_a_replace_of_the_same_job_do_not_deadlock(open_store):
    handles = [open_store() for _ in range(2)]
    handles[0].open()
    for _ in range(10):
        job = call(handles[0])
        answers = at_once(lambda job=job: handles[0].cancel(job.id), lambda: call(handles[1]))
        assert not isinstance(answers[1], Exception)
    [(deadlocks,)] = select(handles[0], "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert 0 == deadlocks


def test_a_running_holder_that_fails_while_it_is_replaced_loses_no_successor(open_store):
    ours, theirs = open_store(), open_store()
    ours.open()
    for _ in range(10):
        call(ours)
        (claimed,) = take(ours)

        def settle(claimed=claimed):
            while ours.settle([(claimed, FAILED)]).set_aside:
                pass

        answers = at_once(settle, lambda: call(theirs))
        (successor,) = take(ours)
        assert answers[1].id == successor.id
        settle(successor)
