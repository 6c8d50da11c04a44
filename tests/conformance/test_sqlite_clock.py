"""If the clock of the machine steps back, an immediate job is not delayed.

Only for SQLite, which uses the clock of the machine. On a server, the server's clock decides for all callers.
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


def test_jobs_enqueued_before_and_after_a_clock_step_back_run(store, clock):
    before = put(store)
    clock.step_back(3600)
    after = put(store)

    assert {before.id, after.id} == set(ids(take(store)))


def test_due_reports_an_immediate_job_after_the_clock_stepped_back(store, clock):
    """Otherwise, a worker that calls due before it claims would wait for an hour."""
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
def test_a_job_that_was_returned_at_once_runs_though_the_clock_stepped_back(store, clock, outcome):
    claimed = put_and_take(store)
    clock.advance(7200)
    settle_one(store, claimed, outcome)

    clock.step_back(3600)

    assert [claimed.id] == ids(take(store))


def test_a_released_job_runs_though_the_clock_stepped_back_while_it_was_leased(store, clock):
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


def test_a_clock_step_back_is_corrected_in_every_store_of_the_file(open_store, clock):
    ours, theirs = open_store(), open_store()
    job = put(ours)

    clock.step_back(3600)

    assert [job.id] == ids(take(theirs))


def test_two_clock_steps_back_are_both_corrected(store, clock):
    for _ in range(2):
        job = put(store)
        clock.step_back(600)
        assert [job.id] == ids(take(store))


def test_jobs_that_a_clock_step_back_made_due_keep_their_order(store, clock):
    retried = finish(store, COMPLETED)
    clock.advance(1)
    put_first = put(store)
    clock.advance(1)
    store.retry(retried.id)
    clock.step_back(3600)

    assert [put_first.id, retried.id] == ids(take(store))
