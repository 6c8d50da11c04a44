"""The clock of the machine steps back: an immediate job is never delayed.

Of SQLite, whose clock is the machine's. On a server, the server's clock decides for all, and nothing is guarded.
"""

from __future__ import annotations

import pytest

from tests.conformance.helpers import RETRIED, SNOOZED, enlist, finish, ids, put, put_and_take, settle_one, take
from treadle.clock import SECOND
from treadle.outcome import COMPLETED, RELEASED
from treadle.stores.base import ClaimRequest

pytestmark = pytest.mark.only("sqlite")


def test_an_immediate_job_runs_though_the_clock_stepped_back(store, clock):
    job = put(store)

    clock.step_back(3600)

    assert [job.id] == ids(take(store))


def test_what_was_enqueued_before_and_after_a_step_back_runs(store, clock):
    before = put(store)
    clock.step_back(3600)
    after = put(store)

    assert {before.id, after.id} == set(ids(take(store)))


def test_due_tells_of_an_immediate_job_though_the_clock_stepped_back(store, clock):
    """A worker that looks before it claims would wait for an hour."""
    put(store)
    clock.step_back(3600)

    assert store.due(ClaimRequest(limit=1)).now


def test_a_retried_job_runs_though_the_clock_stepped_back(store, clock):
    job = finish(store, COMPLETED)
    clock.advance(7200)
    store.retry(job.id)

    clock.step_back(3600)

    assert [job.id] == ids(take(store))


@pytest.mark.parametrize("outcome", [RETRIED, SNOOZED, RELEASED], ids=lambda outcome: outcome.kind.value)
def test_a_job_that_came_back_at_once_runs_though_the_clock_stepped_back(store, clock, outcome):
    claimed = put_and_take(store)
    clock.advance(7200)
    settle_one(store, claimed, outcome)

    clock.step_back(3600)

    assert [claimed.id] == ids(take(store))


def test_a_released_job_runs_though_the_clock_stepped_back_while_it_was_in_hand(store, clock):
    put(store, delay=10 * SECOND)
    clock.advance(10)
    (claimed,) = take(store)

    clock.step_back(3600)
    settle_one(store, claimed, RELEASED)

    assert [claimed.id] == ids(take(store))


def test_a_rescued_job_runs_though_the_clock_stepped_back(store, clock):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")
    clock.advance(7200)
    store.declare_dead("w1", "the process died")

    clock.step_back(3600)

    assert [claimed.id] == ids(take(store))


def test_a_step_back_is_minded_on_every_handle(open_store, clock):
    ours, theirs = open_store(), open_store()
    job = put(ours)

    clock.step_back(3600)

    assert [job.id] == ids(take(theirs))


def test_two_steps_back_are_minded_both(store, clock):
    for _ in range(2):
        job = put(store)
        clock.step_back(600)
        assert [job.id] == ids(take(store))


def test_order_is_kept_among_jobs_that_a_step_back_made_due(store, clock):
    retried = finish(store, COMPLETED)
    clock.advance(1)
    put_first = put(store)
    clock.advance(1)
    store.retry(retried.id)
    clock.step_back(3600)

    assert [put_first.id, retried.id] == ids(take(store))
