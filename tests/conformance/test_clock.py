"""Clock steps: a job never runs early, and whether a worker is alive does not depend on clocks."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import HOUR, MINUTE, enlist, ids, put, put_and_take, settle_one, take
from treadle.clock import to_datetime
from treadle.outcome import COMPLETED
from treadle.stores.base import ClaimRequest


def test_a_scheduled_job_is_never_early(store, clock):
    job = put(store, run_at=clock() + HOUR)

    for _ in range(3):
        assert [] == take(store)
        clock.advance(20 * 60 - 1)
    assert [] == take(store)
    clock.advance(3)

    assert [job.id] == ids(take(store))


def test_due_does_not_report_a_scheduled_job_after_the_clock_stepped_back(store, clock):
    put(store, run_at=clock() + HOUR)
    clock.step_back(3600)
    take(store)

    assert not store.due(ClaimRequest(limit=1)).now


def test_a_scheduled_job_still_waits_after_the_clock_stepped_back(store, clock):
    job = put(store, run_at=clock() + HOUR)
    clock.step_back(3600)

    assert [] == take(store)
    assert to_datetime(clock.start + HOUR) == store.get(job.id).run_at
    clock.advance(2 * 3600)
    assert [job.id] == ids(take(store))


def test_a_clock_step_forward_makes_jobs_due(store, clock):
    job = put(store, delay=HOUR)

    clock.advance(7200)

    assert [job.id] == ids(take(store))


def test_a_living_workers_job_is_not_reclaimed_when_the_clock_steps(store, clock):
    """No clocks are compared: a worker is dead if its beat count stands still."""
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")

    for seconds in (3600, -7200, 86400):
        clock.advance(seconds)
        assert 0 == store.rescue()

    assert settle_one(store, claimed, COMPLETED)


@pytest.mark.only("postgresql")
def test_a_rescue_sees_a_beat_and_its_deadlines_together(open_store, clock, monkeypatch):
    ours, theirs = open_store(), open_store()
    enlist(ours, "w1")
    put(ours)
    (claimed,) = take(ours, worker="w1", types={"noop": 5 * MINUTE})
    clock.advance(3600)
    write, rescued = ours.database.write_at_once, []

    def write_and_rescue(*args):
        rows = write(*args)
        rescued.append(theirs.rescue())
        return rows

    monkeypatch.setattr(ours.database, "write_at_once", write_and_rescue)
    ours.beat("w1", [(claimed, 5 * MINUTE)])

    assert [0] == rescued
    assert settle_one(ours, claimed, COMPLETED)
