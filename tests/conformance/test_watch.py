"""Waiting for commits: a notification comes at once, from any process."""

from __future__ import annotations

import json
import threading
import time

import psycopg
import pytest

from tests.conformance.forking import fork_and, wait
from tests.conformance.helpers import FAILED, RETRIED, enlist, finish, put, put_and_take, settle_one, take
from tests.conformance.test_waiting import waiting_for
from treadle.outcome import COMPLETED, Outcome, OutcomeKind
from treadle.stores.base import TypePolicy
from treadle.waits import NewSignal

RETURNED = Outcome(OutcomeKind.COMPLETED, result="1")

LONG = 20
"""Seconds. A test waits this long only if something is broken."""


@pytest.fixture
def watch(store):
    """A watch without pending notifications."""
    store.open()
    watch = store.watch()
    quiet(watch)
    yield watch
    watch.close()


def quiet(watch):
    while watch.wait(0.1):
        pass


def notified(watch):
    """Whether a notification comes at once, and not at the end of a long wait."""
    began = time.monotonic()
    return watch.wait(LONG) and time.monotonic() - began < LONG / 2


def test_there_is_no_notification_without_a_commit(store, watch):
    store.counts(())

    assert not watch.wait(0.02)


@pytest.mark.needs("notices_commits")
def test_an_enqueue_notifies(watch, open_store):
    put(open_store())

    assert notified(watch)


@pytest.mark.needs("notices_commits")
def test_an_enqueue_of_another_process_notifies(watch, store):
    assert 0 == wait(fork_and(lambda: put(store)))

    assert notified(watch)


@pytest.mark.needs("notices_commits")
def test_an_enqueue_after_a_fork_notifies(watch, store):
    """Before a fork, SQLite's connections are closed, and the last one deletes the log."""
    assert 0 == wait(fork_and(lambda: None))
    quiet(watch)
    put(store)

    assert notified(watch)


@pytest.mark.needs("notices_commits")
@pytest.mark.parametrize("wanted", [{"types": {"noop": None}}, {"queues": ("slow",)}, {"limit": 1}], ids=str)
def test_a_signal_that_lets_more_go_than_its_claim_takes_notifies(store, watch, wanted):
    put(store), put(store, "other")
    store.settle([(claimed, waiting_for("go")) for claimed in take(store)])
    assert [] == take(store)
    store.signal(NewSignal("go"))
    quiet(watch)
    take(store, **wanted)

    assert notified(watch)


@pytest.mark.needs("notices_commits")
def test_a_job_that_waits_again_notifies(watch, open_store):
    theirs = open_store()
    claimed = put_and_take(theirs)
    quiet(watch)

    settle_one(theirs, claimed, RETRIED)

    assert notified(watch)


@pytest.mark.needs("notices_commits")
@pytest.mark.parametrize("outcome", [COMPLETED, FAILED, RETURNED], ids=["completed", "failed", "with a result"])
def test_the_end_of_a_parent_notifies(watch, open_store, outcome):
    theirs = open_store()
    parent = put_and_take(theirs)
    put(theirs, after=(parent.id,), if_failed="run")
    quiet(watch)

    settle_one(theirs, parent, outcome)

    assert notified(watch)


@pytest.mark.only("postgresql")
def test_a_completion_for_which_nobody_waits_notifies_nobody(watch, open_store):
    theirs = open_store()
    claimed = put_and_take(theirs)
    quiet(watch)

    settle_one(theirs, claimed, COMPLETED)

    assert not watch.wait(0.1)


def limited_in_two_queues(store, queue_of_the_other="b"):
    """A worker of queue `a` runs the only job of a limit. Another one waits in `b`, for another worker."""
    limits = json.dumps([{"name": "gpu", "concurrency": 1}])
    store.publish([TypePolicy(type=type, limits=limits) for type in ("render", "noop")])
    enlist(store, "w1", queues=("a",), types=("render", "noop"))
    enlist(store, "w2", queues=(queue_of_the_other,), types=("noop",))
    claimed = put_and_take(store, "w1", type="render", queue="a")
    put(store, queue="b")
    return claimed


@pytest.mark.needs("notices_commits")
@pytest.mark.parametrize("outcome", [COMPLETED, RETURNED], ids=["completed", "with a result"])
def test_a_free_place_notifies_the_workers_of_other_queues(watch, open_store, outcome):
    theirs = open_store()
    claimed = limited_in_two_queues(theirs)
    quiet(watch)

    settle_one(theirs, claimed, outcome)

    assert notified(watch)


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("outcome", [COMPLETED, RETURNED], ids=["completed", "with a result"])
def test_a_free_place_that_its_worker_uses_itself_notifies_nobody(watch, open_store, outcome):
    theirs = open_store()
    claimed = limited_in_two_queues(theirs, queue_of_the_other="a")
    quiet(watch)

    settle_one(theirs, claimed, outcome)

    assert not watch.wait(0.1)


@pytest.mark.needs("notices_commits")
@pytest.mark.parametrize("outcome", [COMPLETED, RETURNED], ids=["completed", "with a result"])
def test_a_free_place_of_a_quiet_worker_notifies(watch, open_store, outcome):
    theirs = open_store()
    claimed = limited_in_two_queues(theirs, queue_of_the_other="a")
    put(theirs, queue="a")
    theirs.set_quiet("w1", True)
    quiet(watch)

    settle_one(theirs, claimed, outcome)

    assert notified(watch)


@pytest.mark.needs("notices_commits")
def test_a_worker_that_ends_notifies(watch, open_store):
    """The others use the places of limits that it freed last."""
    theirs = open_store()
    enlist(theirs, "w1")
    quiet(watch)

    theirs.declare_dead("w1", "it has stopped")

    assert notified(watch)


@pytest.mark.needs("notices_commits")
def test_a_manual_retry_notifies(watch, open_store):
    theirs = open_store()
    job = finish(theirs, COMPLETED)
    quiet(watch)

    theirs.retry(job.id)

    assert notified(watch)


@pytest.mark.needs("notices_commits")
def test_each_of_many_watches_is_notified(open_store):
    handles = [open_store() for _ in range(3)]
    handles[0].open()
    watches = [handle.watch() for handle in handles]
    for watch in watches:
        quiet(watch)

    put(handles[0])

    assert [True] * 3 == [notified(watch) for watch in watches]
    for watch in watches:
        watch.close()


@pytest.mark.needs("notices_commits")
def test_a_watch_that_starts_between_two_commits_is_notified_of_the_second(open_store):
    """A process that has just notified does not notify again for the next job."""
    ours, theirs = open_store(), open_store()
    ours.open()
    put(theirs)
    watch = ours.watch()

    put(theirs)

    assert notified(watch)
    watch.close()


@pytest.mark.only("postgresql")
@pytest.mark.needs("notices_commits")
def test_a_long_commit_in_a_burst_notifies(watch, open_store, monkeypatch):
    """When it began, listeners looked by themselves. When it is done, they no longer do."""
    theirs = open_store()
    theirs.open()

    def after_their_looks(*args):
        monkeypatch.undo()
        quiet(watch)
        return theirs.database.write_at_once(*args)

    for _ in range(12):
        put(theirs)
    monkeypatch.setattr(theirs.database, "write_at_once", after_their_looks)
    put(theirs)

    assert notified(watch)


@pytest.mark.only("postgresql")
def test_a_signal_that_is_stored_already_does_not_count_as_a_notification(open_store, url):
    store = open_store()
    store.signal(NewSignal("go"))
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute("LISTEN treadle")
        for _ in range(8):
            put(store)
        store.signal(NewSignal("go"))
        put(store)

        assert 9 == len(list(listener.notifies(timeout=LONG, stop_after=9)))


def test_closing_ends_a_wait(watch):
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(watch.wait(LONG)))
    waiting.start()

    watch.close()
    waiting.join(LONG / 2)

    assert [False] == answers
