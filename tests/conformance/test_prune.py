"""Retention: prune only old, ended jobs of the requested statuses, a chunk at a time."""

from __future__ import annotations

import msgspec
import psycopg
import pytest

from tests.conformance.helpers import (
    DAY,
    FAILED,
    HOUR,
    MINUTE,
    RETRIED,
    SECOND,
    check_consistency,
    everything,
    finish,
    ids,
    new_job,
    put,
    put_and_take,
    put_many,
    settle_one,
    take,
)
from treadle.job import Status
from treadle.log_lines import NewLine
from treadle.outcome import CANCELLED, COMPLETED
from treadle.steps import NewStep
from treadle.stores.shared import manage
from treadle.stores.shared import store as shared_store
from treadle.stores.sqlite import prune as sqlite_prune
from treadle.stores.sqlite.connection import Transaction

ALL = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


def run_again(store, job):
    store.retry(job.id)
    assert settle_one(store, take(store)[0], COMPLETED)


def add_child(store, job):
    store.insert([new_job("child", after=(job.id,))])


def test_only_old_jobs_are_pruned(store, clock):
    old = finish(store, COMPLETED)
    clock.now += 7 * DAY
    young = finish(store, COMPLETED)
    clock.now += HOUR

    assert 1 == store.prune(ALL, 7 * DAY, 100)

    assert None is store.get(old.id)
    assert young == store.get(young.id)


@pytest.mark.only("postgresql")
def test_a_prune_waits_for_no_wait_that_another_transaction_has_locked(store, users, clock):
    """That transaction may wait for this one: it deletes the other jobs of the same waits."""
    parent = finish(store, COMPLETED)
    child = put_and_take(store, after=(parent.id,))
    assert settle_one(store, child, COMPLETED)
    clock.now += 8 * DAY
    users.execute("SET lock_timeout = '5s'")
    assert [parent.id] == [what for (what,) in users.execute("SELECT what FROM treadle.waits FOR UPDATE")]

    assert 2 == store.prune(ALL, 7 * DAY, 100)

    users.execute("DELETE FROM treadle.waits")
    users.commit()


def test_the_age_of_a_job_counts_from_its_end(store, clock):
    """One that waited for weeks and ended today is not old."""
    slow = put(store)
    clock.now += 30 * DAY
    settle_one(store, take(store)[0], COMPLETED)
    clock.now += 6 * DAY

    assert 0 == store.prune(ALL, 7 * DAY, 100)
    clock.now += DAY + 1
    assert 1 == store.prune(ALL, 7 * DAY, 100)
    assert None is store.get(slow.id)


@pytest.mark.parametrize("wanted", ALL)
def test_only_the_requested_statuses_are_pruned(store, clock, wanted):
    jobs = {outcome.kind.final: finish(store, outcome) for outcome in (COMPLETED, FAILED, CANCELLED)}
    clock.now += 8 * DAY

    assert 1 == store.prune((wanted,), 7 * DAY, 100)

    assert {wanted} == {status for status, job in jobs.items() if store.get(job.id) is None}


def test_a_job_that_has_not_ended_is_never_pruned(store, clock):
    processing = put_and_take(store)
    pending = put(store)
    clock.now += 365 * DAY

    assert 0 == store.prune((*Status,), 0, 100)

    assert {pending.id, processing.id} == set(ids(everything(store)))


@pytest.mark.parametrize("others", [1, 10])
def test_jobs_that_stay_between_those_that_are_pruned_are_whole(store, clock, others):
    """A few of them, or so many that the old ones are rare."""
    old, stay = [], []
    for _ in range(others):
        old.append(finish(store, COMPLETED).id)
        stay += [put_and_take(store).id, finish(store, FAILED).id, put(store, run_at=clock.now + 365 * DAY).id]
        for _ in range(3 if others == 1 else 0):
            old.append(finish(store, CANCELLED).id)
    old.append(finish(store, COMPLETED).id)
    before = [store.get(id) for id in stay]
    clock.now += DAY

    assert len(old) == store.prune((Status.COMPLETED, Status.CANCELLED), HOUR, len(old))

    assert {None} == {store.get(id) for id in old}
    assert before == [store.get(id) for id in stay]
    check_consistency(store)


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("others", [0, 10])
def test_a_job_that_another_transaction_has_locked_is_whole_and_pruned_later(store, clock, others):
    """Old jobs are before and after it; few others are between them, or many."""
    first, locked = finish(store, COMPLETED), finish(store, COMPLETED)
    stay = [put(store, run_at=clock.now + 365 * DAY).id for _ in range(others)]
    last = finish(store, COMPLETED)
    clock.now += DAY
    before = store.get(locked.id)

    with psycopg.connect(store.url) as theirs:
        theirs.execute("SELECT 1 FROM treadle.finished WHERE id = %s FOR UPDATE", [locked.id])
        assert 2 == store.prune(ALL, HOUR, 3)
        assert before == store.get(locked.id)

    assert [None, None] == [store.get(job.id) for job in (first, last)]
    assert 1 == store.prune(ALL, HOUR, 3)
    assert sorted(stay) == sorted(ids(everything(store)))
    check_consistency(store)


@pytest.mark.only("sqlite")
def test_a_job_that_waits_beside_a_row_broken_by_hand_is_not_pruned(store, clock, by_hand):
    """There are as many rows of jobs as are to be pruned, but not of the same ones."""
    first, broken = finish(store, COMPLETED), finish(store, COMPLETED)
    waits, last = put(store, run_at=clock.now + 365 * DAY), finish(store, COMPLETED)
    by_hand(f"DELETE FROM treadle_jobs WHERE id = '{broken.id}'")
    clock.now += DAY

    assert 3 == store.prune(ALL, HOUR, 3)

    assert waits == store.get(waits.id)
    assert [None, None] == [store.get(job.id) for job in (first, last)]


def test_at_most_one_chunk_is_pruned_at_a_time(store, clock):
    put_many(store, 7)
    store.settle([(claimed, COMPLETED) for claimed in take(store)])
    clock.now += DAY

    assert [3, 3, 1, 0] == [store.prune(ALL, HOUR, 3) for _ in range(4)]
    assert [] == store.counts(()).rows


def test_a_pruned_job_leaves_nothing_behind(store, clock, by_hand):
    finish(store, FAILED, dedupe="k")
    clock.now += DAY

    store.prune(ALL, HOUR, 100)

    tables = ("jobs", "ready", "leases", "finished", "attempts", "dedupe")
    assert [0] * 6 == [by_hand(f"SELECT count(*) FROM treadle_{table}")[0][0] for table in tables]


def with_history(store, outcome):
    """A job that waited for another, and has steps, lines and attempts."""
    parent = finish(store, COMPLETED)
    claimed = put_and_take(store, after=(parent.id,))
    store.save_steps([(claimed, NewStep("a"))])
    store.save_logs([(claimed, [NewLine(1, ago=0, level="INFO", message="hello")])])
    assert settle_one(store, claimed, RETRIED)
    (again,) = take(store)
    assert settle_one(store, again, outcome)
    return parent.id, claimed.id


def test_the_history_of_a_job_is_pruned_with_it_and_that_of_others_stays(store, clock, by_hand):
    with_history(store, COMPLETED)
    _, kept = with_history(store, FAILED)
    with_history(store, COMPLETED)
    clock.now += DAY

    assert 5 == store.prune((Status.COMPLETED,), HOUR, 100)

    history = {
        table: {str(id) for (id,) in by_hand(f"SELECT id FROM treadle_{table}")}
        for table in ("jobs", "finished", "attempts", "steps", "logs", "waits")
    }
    assert history == {table: {kept} if table != "waits" else set() for table in history}  # what it waited for is gone


def test_the_history_of_a_chunk_of_jobs_is_pruned_with_them(store, clock, by_hand):
    """They waited for nothing. One that stays is between them."""
    stays = None
    for outcome in (COMPLETED, FAILED, COMPLETED, COMPLETED):
        claimed = put_and_take(store)
        store.save_steps([(claimed, NewStep("a"))])
        store.save_logs([(claimed, [NewLine(1, ago=0, level="INFO", message="hello")])])
        assert settle_one(store, claimed, RETRIED)
        assert settle_one(store, take(store)[0], outcome)
        stays = claimed.id if outcome is FAILED else stays
    clock.now += DAY

    assert 3 == store.prune((Status.COMPLETED,), HOUR, 3)

    for table in ("jobs", "finished", "attempts", "steps", "logs"):
        assert {stays} == {str(id) for (id,) in by_hand(f"SELECT id FROM treadle_{table}")}


@pytest.mark.only("sqlite")
def test_of_jobs_with_a_history_fewer_are_pruned_at_once_and_usage_after_the_last_of_them(store, clock, monkeypatch):
    """All other writers of the file wait for such a transaction."""
    for module in (shared_store, sqlite_prune):
        monkeypatch.setattr(module, "LAST_PRUNED", 10)
    records, prune_records = [], manage.prune_records
    monkeypatch.setattr(manage, "prune_records", lambda *args: records.append(1) or prune_records(*args))
    for _ in range(25):
        assert settle_one(store, put_and_take(store), RETRIED)
        assert settle_one(store, take(store)[0], COMPLETED)
    clock.now += DAY

    assert [10, 10, 5] == [store.prune((Status.COMPLETED,), HOUR, 40) for _ in range(3)]
    assert [1] == records


def test_pruning_an_old_job_leaves_the_key_to_its_new_holder(store, clock):
    finish(store, COMPLETED, dedupe="k")
    clock.now += DAY
    holder = put(store, dedupe="k")

    assert 1 == store.prune(ALL, HOUR, 100)

    assert [holder] == store.insert([new_job(dedupe="k")])


def test_the_age_of_a_retried_job_does_not_count_from_its_first_end(store, clock):
    job = finish(store, COMPLETED)
    clock.now += 30 * DAY
    store.retry(job.id)

    assert 0 == store.prune(ALL, DAY, 100)
    settle_one(store, take(store)[0], COMPLETED)
    assert 0 == store.prune(ALL, DAY, 100)


def test_pruning_without_statuses_prunes_nothing(store, clock):
    finish(store, COMPLETED)
    clock.now += DAY

    assert 0 == store.prune((), 0, 100)
    assert 0 == store.prune(ALL, 0, 0)
    assert 1 == len(everything(store))


def minutes(by_hand):
    return [minute for (minute,) in by_hand("SELECT minute FROM treadle_usage ORDER BY minute")]


@pytest.mark.parametrize("statuses", [ALL, ()])
def test_the_usage_of_a_minute_is_kept_for_ninety_days(store, clock, by_hand, statuses):
    """Also for jobs that are pruned sooner, and not longer for jobs that are kept forever."""
    finish(store, COMPLETED)
    clock.now += DAY
    finish(store, COMPLETED)
    first, second = minutes(by_hand)

    clock.now = (first + 90 * 86_400) * SECOND
    store.prune(statuses, HOUR, 100)
    assert [first, second] == minutes(by_hand)

    clock.now += SECOND
    store.prune(statuses, HOUR, 100)
    assert [second] == minutes(by_hand)
    assert (0 if statuses else 2) == len(everything(store))


def test_at_most_one_chunk_of_the_usage_is_pruned_at_a_time(store, clock, by_hand):
    for _ in range(25):
        finish(store, COMPLETED)
        clock.now += MINUTE
    clock.now += 91 * DAY

    left = []
    for _ in range(3):
        store.prune((), 0, 1)
        left.append(len(minutes(by_hand)))
    assert [15, 5, 0] == left


@pytest.mark.only("sqlite")
def test_jobs_that_have_waited_for_each_other_are_found_once(store, clock, monkeypatch):
    """To find them again, others would wait. None of them is needed, though the child has the lower id in one case."""
    with_history(store, COMPLETED)
    child, parent = new_job(), new_job()
    store.insert([msgspec.structs.replace(child, after=(parent.id,)), parent])
    while claimed := take(store):
        assert settle_one(store, claimed[0], COMPLETED)
    clock.now += 8 * DAY
    find, found = Transaction.prunable, []
    monkeypatch.setattr(Transaction, "prunable", lambda tx, *args: found.append(1) or find(tx, *args))

    assert 4 == store.prune(ALL, 7 * DAY, 100)
    assert [1] == found


@pytest.mark.only("sqlite")
@pytest.mark.parametrize("limit", [2, 100])
@pytest.mark.parametrize("meanwhile", [run_again, add_child])
def test_a_job_that_is_needed_again_after_it_was_found_is_not_pruned(store, clock, monkeypatch, meanwhile, limit):
    """SQLite finds what is old before it locks the file."""
    needed, old = finish(store, COMPLETED), finish(store, COMPLETED)
    clock.now += 8 * DAY
    find = Transaction.prunable

    def prunable(tx, *args):
        found = find(tx, *args)
        monkeypatch.undo()
        meanwhile(store, needed)
        return found

    monkeypatch.setattr(Transaction, "prunable", prunable)

    assert 1 == store.prune(ALL, 7 * DAY, limit)
    assert Status.COMPLETED == store.get(needed.id).status
    assert None is store.get(old.id)
    check_consistency(store)


@pytest.mark.only("sqlite")
def test_a_job_that_came_between_after_the_others_were_found_is_not_pruned(store, clock, monkeypatch):
    """A producer that repeats an enqueue uses the id of the first time."""
    first, late = finish(store, COMPLETED), new_job()
    last = finish(store, COMPLETED)
    clock.now += 8 * DAY
    find = Transaction.prunable

    def prunable(tx, *args):
        found = find(tx, *args)
        monkeypatch.undo()
        store.insert([late])
        return found

    monkeypatch.setattr(Transaction, "prunable", prunable)

    assert 2 == store.prune(ALL, 7 * DAY, 2)
    assert Status.PENDING == store.get(late.id).status
    assert [None, None] == [store.get(job.id) for job in (first, last)]
    check_consistency(store)
