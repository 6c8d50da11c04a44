"""A worker process that cannot work any more is replaced, and one that does not stop is killed."""

from __future__ import annotations

import signal

import pytest

from tests.eventually import eventually
from tests.process.handlers import blocks_the_loop, blocks_the_loop_once, ignores_its_cancellation, quick, td
from tests.process.harness import Place, end
from treadle import Status

PARTS = [
    "treadle.worker.inflight:Attempts.settled",
    "treadle.worker.worker:Worker._until",
    "treadle.worker.heartbeat:Heartbeat._beat_until_stopped",
]


@pytest.mark.parametrize("part", PARTS)
def test_a_worker_of_which_a_part_ends_is_replaced_and_its_jobs_run(place: Place, part: str) -> None:
    supervisor = place.worker(processes=1, beat=0.5, ends_once=part)
    jobs = td.enqueue_many([quick.request() for _ in range(20)])
    eventually(lambda: place.said("a part of the worker has ended"))
    jobs += td.enqueue_many([quick.request() for _ in range(20)])
    eventually(lambda: place.count("completed") == len(jobs))
    assert {job.attempts for job in map(td.get, [job.id for job in jobs]) if job} == {1}
    assert end(supervisor) == 0


def test_a_worker_whose_loop_is_blocked_for_too_long_is_replaced(place: Place) -> None:
    supervisor = place.worker(processes=1, beat=0.2, blocked_seconds=1.0)
    job = blocks_the_loop_once.enqueue()
    assert td.result(job.id, timeout=60) is None
    [attempt] = td.attempts(job.id)
    assert attempt.error is not None
    assert attempt.error.startswith("its event loop was blocked for")
    assert end(supervisor) == 0


@pytest.mark.parametrize("processes", [0, 1])
def test_a_handler_that_ignores_its_cancellation_does_not_keep_the_worker(place: Place, processes: int) -> None:
    worker = place.worker(processes=processes, grace=0.2)
    job = ignores_its_cancellation.enqueue()
    eventually(lambda: place.runs())
    assert end(worker, signal.SIGTERM) == 0
    found = td.get(job.id)
    assert found is not None
    assert (found.status, found.attempts) == (Status.PENDING, 0)


def test_a_worker_that_ignores_sigterm_is_killed_and_its_jobs_are_not_charged(place: Place) -> None:
    supervisor = place.worker(processes=2, grace=0.2, kill_margin=0.8)
    job = blocks_the_loop.enqueue(seconds=600)
    eventually(lambda: place.runs())
    assert end(supervisor, signal.SIGTERM) == 0
    found = td.get(job.id)
    assert found is not None
    assert (found.status, found.attempts) == (Status.PENDING, 0)
    assert place.said("did not stop in time and is killed") == 1
