"""Waiting for commits: a hint that comes at once, from any process."""

from __future__ import annotations

import threading
import time

import pytest

from tests.conformance.forking import fork_and, wait
from tests.conformance.helpers import RETRIED, finish, put, put_and_take, settle_one
from treadle.outcome import COMPLETED

LONG = 20
"""Seconds that no test waits, unless something is broken."""


@pytest.fixture
def watch(store):
    """Of somebody who has nothing to hear any more."""
    store.open()
    watch = store.watch()
    quiet(watch)
    yield watch
    watch.close()


def quiet(watch):
    while watch.wait(0.1):
        pass


def heard(watch):
    """Whether it comes at once, and not at the end of a long wait."""
    began = time.monotonic()
    return watch.wait(LONG) and time.monotonic() - began < LONG / 2


def test_nothing_is_heard_when_nobody_commits(store, watch):
    store.counts(())

    assert not watch.wait(0.02)


@pytest.mark.needs("hears_others")
def test_a_job_that_somebody_puts_is_heard_of(watch, open_store):
    put(open_store())

    assert heard(watch)


@pytest.mark.needs("hears_others")
def test_a_job_that_another_process_puts_is_heard_of(watch, store):
    assert 0 == wait(fork_and(lambda: put(store)))

    assert heard(watch)


@pytest.mark.needs("hears_others")
def test_a_job_that_waits_again_is_heard_of(watch, open_store):
    theirs = open_store()
    claimed = put_and_take(theirs)
    quiet(watch)

    settle_one(theirs, claimed, RETRIED)

    assert heard(watch)


@pytest.mark.needs("hears_others")
def test_a_job_that_is_retried_by_hand_is_heard_of(watch, open_store):
    theirs = open_store()
    job = finish(theirs, COMPLETED)
    quiet(watch)

    theirs.retry(job.id)

    assert heard(watch)


@pytest.mark.needs("hears_others")
def test_each_of_many_who_watch_hears_of_a_job(open_store):
    handles = [open_store() for _ in range(3)]
    handles[0].open()
    watches = [handle.watch() for handle in handles]
    for watch in watches:
        quiet(watch)

    put(handles[0])

    assert [True] * 3 == [heard(watch) for watch in watches]
    for watch in watches:
        watch.close()


@pytest.mark.needs("hears_others")
def test_who_begins_to_listen_between_two_commits_hears_of_the_second(open_store):
    """Who has told of one job a moment ago does not tell of the next."""
    ours, theirs = open_store(), open_store()
    ours.open()
    put(theirs)
    watch = ours.watch()

    put(theirs)

    assert heard(watch)
    watch.close()


def test_closing_ends_a_wait(watch):
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(watch.wait(LONG)))
    waiting.start()

    watch.close()
    waiting.join(LONG / 2)

    assert [False] == answers
