"""Bulk actions: they change the selected jobs and no others."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.conformance.helpers import (
    FAILED,
    HOUR,
    at_once,
    everything,
    finish,
    ids,
    place_of,
    put,
    put_many,
    settle_one,
    take,
)
from tests.eventually import eventually
from treadle import bulk
from treadle import ids as job_ids
from treadle.bulk import Bulk
from treadle.errors import BadOption, CountMoved
from treadle.filters import EVERYTHING, Filter, parse
from treadle.job import Status
from treadle.outcome import COMPLETED, RELEASED
from treadle.stores.shared import manage, search


def carry_out(store, action, text, **how):
    work = Bulk(store, action, parse(text), **how)
    for _ in work:
        pass
    return work


def results(work):
    return work.total, work.done, work.skipped


def ended(store, n, **options):
    """Failed jobs."""
    jobs = put_many(store, n, **options)
    store.settle([(claimed, FAILED) for claimed in take(store, n)])
    return jobs


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(bulk, "CHUNK", 4)


def test_failed_jobs_are_retried(store, clock):
    jobs = ended(store, 10)
    kept = finish(store, COMPLETED)
    clock.advance(1)

    assert (10, 10, 0) == results(carry_out(store, "retry", "status:failed"))

    assert {(Status.PENDING, 0)} == {place_of(store, job.id) for job in jobs}
    assert kept == store.get(kept.id)
    assert set(ids(jobs)) == set(ids(take(store)))


def test_scheduled_jobs_run_now(store, clock):
    jobs = put_many(store, 6, delay=HOUR)
    settle_one(store, [put(store), *take(store)][1], RELEASED)

    assert (6, 6, 0) == results(carry_out(store, "run_now", "status:scheduled"))

    assert {clock()} == {int(store.get(job.id).run_at.timestamp() * 1e6) for job in jobs}
    assert 7 == len(take(store))


def test_waiting_jobs_are_cancelled_and_running_ones_are_flagged(store):
    running = put_many(store, 3)
    held = take(store)
    put_many(store, 6)

    assert (9, 9, 0) == results(carry_out(store, "cancel", "status:pending,processing"))

    assert 6 == len(store.jobs(Filter(statuses=("cancelled",)), 100))
    assert sorted(c.number for c in held) == sorted(store.cancelled(""))
    assert set(ids(running)) == set(ids(store.jobs(Filter(statuses=("processing",)), 100)))


def test_jobs_are_deleted(store):
    ended(store, 5, type="old")
    kept = put(store)

    assert (5, 5, 0) == results(carry_out(store, "delete", "type:old"))

    assert [kept] == everything(store)


def test_jobs_that_do_not_allow_the_action_are_skipped(store):
    ended(store, 3, type="a")
    put_many(store, 2, type="a")

    assert (5, 3, 2) == results(carry_out(store, "retry", "type:a"))
    assert (5, 5, 0) == results(carry_out(store, "run_now", "type:a"))
    take(store, 1)
    assert (5, 4, 1) == results(carry_out(store, "delete", "type:a"))
    assert 1 == len(everything(store))


def test_only_one_of_two_jobs_with_the_same_dedupe_key_is_retried(store):
    first = finish(store, FAILED, dedupe="k")
    second = finish(store, FAILED, dedupe="k")

    assert (2, 1, 1) == results(carry_out(store, "retry", "status:failed"))

    assert (Status.FAILED, Status.PENDING) == (store.get(first.id).status, store.get(second.id).status)


def test_a_job_that_changes_between_the_search_and_its_turn_is_left_alone(store, monkeypatch):
    """Between the search and the lock, another caller retried it. It waits now, and must not be deleted."""
    jobs = ended(store, 3)
    look = search.jobs
    changed = []

    def look_and_change(tx, wanted, limit, before):
        page = look(tx, wanted, limit, before)
        if before and not changed:
            changed.append(jobs[1].id)
            manage.retry(tx, jobs[1].id)
            manage.delete(tx, jobs[2].id)
        return page

    monkeypatch.setattr(manage.search, "jobs", look_and_change)

    assert (3, 1, 2) == results(carry_out(store, "delete", "status:failed"))
    assert [(jobs[1].id, Status.PENDING)] == [(job.id, job.status) for job in everything(store)]


def test_jobs_that_stop_matching_between_two_batches_are_not_touched(store):
    jobs = ended(store, 8)
    work = Bulk(store, "delete", parse("status:failed"))
    work.step()
    store.retry(jobs[0].id)

    for _ in work:
        pass

    assert [jobs[0].id] == ids(everything(store))
    assert (8, 7) == (work.total, work.done)


def test_jobs_that_are_stored_after_a_bulk_action_began_are_left_alone(store):
    put_many(store, 5)
    work = Bulk(store, "cancel", parse("status:pending"))
    later = put_many(store, 5)
    for _ in work:
        put(store)

    assert (5, 5, 0) == results(work)
    assert {Status.PENDING} == {store.get(job.id).status for job in later}


def test_jobs_from_a_host_whose_clock_is_ahead_are_included(store, monkeypatch):
    """Their ids sort after all ids that this host makes."""
    with monkeypatch.context() as ahead:
        ahead.setattr(job_ids.time, "time_ns", lambda now=job_ids.time.time_ns: now() + 60 * 10**9)
        put_many(store, 2)
    job_ids._after_fork()  # ids of this process continue from there
    put_many(store, 2)

    assert (4, 4, 0) == results(carry_out(store, "cancel", "status:pending"))


def test_a_bulk_action_changes_nothing_if_the_count_differs_from_the_expected_one(store):
    put_many(store, 3)

    with pytest.raises(CountMoved, match="expected 2 matching jobs, found 3"):
        Bulk(store, "cancel", parse("status:pending"), expected=2)

    assert {Status.PENDING} == {job.status for job in everything(store)}
    assert (3, 3, 0) == results(carry_out(store, "cancel", "status:pending", expected=3))


def test_a_bulk_action_reports_its_progress(store):
    put_many(store, 10)
    work = Bulk(store, "cancel", parse("status:pending"))

    assert [(4, 0), (8, 0), (10, 0)] == [(work.done, work.skipped) for work in work]
    assert (10, True, None) == (work.total, work.exact, work.position)
    assert [] == list(work)


def test_a_search_in_steps_reaches_all_jobs(store, monkeypatch):
    monkeypatch.setattr(search, "SEARCHED", 5)
    monkeypatch.setattr(search, "FIRST_LOOK", 2)
    for n in range(30):
        put(store, "rare" if n % 10 == 0 else "noop")

    assert (3, 3, 0) == results(carry_out(store, "cancel", "status:pending type:rare"))


def test_two_bulk_actions_at_once_change_each_job_once(open_store):
    stores = [open_store(), open_store()]
    ended(stores[0], 30)

    works = at_once(*(lambda store=store: carry_out(store, "retry", "status:failed") for store in stores))

    assert 30 == sum(work.done for work in works)
    assert {Status.PENDING} == {job.status for job in everything(stores[0])}


def test_a_worker_can_run_jobs_during_a_bulk_action(open_store):
    """Each job is either run or cancelled."""
    ours, theirs = open_store(), open_store()
    put_many(ours, 60)

    def work():
        done = 0
        while held := take(theirs, 7):
            done += len(held) - len(theirs.settle([(claimed, COMPLETED) for claimed in held]).lost)
        return done

    work_done, cancelled = at_once(work, lambda: carry_out(ours, "cancel", "status:pending"))

    statuses = [job.status for job in everything(ours)]
    assert work_done == statuses.count(Status.COMPLETED)
    assert cancelled.done == statuses.count(Status.CANCELLED)
    assert 60 == work_done + cancelled.done


def test_a_bulk_action_without_a_filter_or_with_an_unknown_action_is_refused(store):
    with pytest.raises(BadOption, match="say which"):
        Bulk(store, "delete", EVERYTHING)
    with pytest.raises(BadOption, match="one of retry, run_now, reschedule, cancel, delete"):
        Bulk(store, "pause", parse("status:failed"))


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("verb", ["bulk", "complete"])
def test_leases_are_locked_in_the_order_in_which_a_settle_locks_them(store, by_hand, verb):
    """In another order, it would deadlock with a settle of the same jobs."""
    oldest, *others = ids(put_many(store, 3))
    take(store)
    newest_first = [*reversed(others), oldest]
    with psycopg.connect(store.url) as settling:
        settling.execute("SELECT 1 FROM treadle.leases WHERE id = %s FOR UPDATE", [oldest])
        change = {
            "bulk": lambda: carry_out(store, "cancel", "type:noop"),
            "complete": lambda: store.complete(newest_first),
        }
        thread = threading.Thread(target=change[verb])
        thread.start()
        eventually(lambda: by_hand("SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0])
        free = [str(id) for (id,) in by_hand("SELECT id FROM treadle_leases FOR UPDATE SKIP LOCKED")]
    thread.join()
    assert set(others) == set(free)
