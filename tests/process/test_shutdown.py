"""A worker that is asked to stop: running jobs may finish, the rest is released, and nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import suppress

import pytest

from tests.eventually import eventually
from tests.process.handlers import counts_until_stopped, slow, slow_async, slow_in_a_pool, slow_process, td
from tests.process.harness import Place, end
from treadle import Job, Status

HANDLERS = slow, slow_async, slow_process


def enqueue(seconds: float) -> list[Job]:
    return td.enqueue_many([handler.request(seconds=seconds) for handler in HANDLERS])


def places(jobs: list[Job]) -> set[tuple[Status, int]]:
    return {(job.status, job.attempts) for job in map(td.get, [job.id for job in jobs]) if job is not None}


def nothing_is_left(place: Place) -> bool:
    """Python's own helper of child processes, the resource tracker, ends when it sees that the worker has ended."""
    eventually(lambda: not place.processes())
    return [] == place.sql("SELECT * FROM treadle_workers") + place.sql("SELECT * FROM treadle_attempts")


@pytest.mark.parametrize(("processes", "number"), [(2, signal.SIGTERM), (0, signal.SIGINT)])
def test_short_jobs_finish_and_long_ones_are_released_uncharged(place: Place, processes: int, number: int) -> None:
    short, long = enqueue(seconds=1.5), enqueue(seconds=120)
    worker = place.worker(processes=processes, grace=8)
    eventually(lambda: len(place.runs()) == 6)
    assert end(worker, number) == 0
    assert places(short) == {(Status.COMPLETED, 1)}
    assert places(long) == {(Status.PENDING, 0)}
    assert nothing_is_left(place)


def test_a_second_signal_ends_the_grace_period(place: Place) -> None:
    long = enqueue(seconds=120)
    worker = place.worker(processes=2, grace=120)
    eventually(lambda: len(place.runs()) == 3)
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(1.5)  # an earlier one would count as the same signal
    while worker.poll() is None:  # the first may have been handled late
        worker.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            worker.wait(5)
    assert worker.returncode == 0
    assert time.monotonic() - began < 100
    assert places(long) == {(Status.PENDING, 0)}
    assert nothing_is_left(place)


def test_a_thread_that_stops_at_its_flag_is_released_uncharged(place: Place) -> None:
    """It returns what it has done so far, which is only a partial result."""
    job = counts_until_stopped.enqueue(rows=1_000_000)
    worker = place.worker(processes=1, grace=0.2)
    eventually(place.runs)
    assert end(worker) == 0
    assert places([job]) == {(Status.PENDING, 0)}


def test_work_that_a_handler_left_in_the_thread_pool_does_not_delay_the_exit(place: Place) -> None:
    job = slow_in_a_pool.enqueue(seconds=120)
    worker = place.worker(processes=1, grace=0)
    eventually(place.runs)
    began = time.monotonic()
    assert end(worker) == 0
    assert places([job]) == {(Status.PENDING, 0)}
    assert time.monotonic() - began < 60


def test_a_worker_that_gets_sigterm_while_it_starts_ends(place: Place) -> None:
    for _ in range(5):
        worker = place.worker(processes=2)
        eventually(lambda: len(place.processes()) > 1)
        assert end(worker) == 0
        assert place.processes() == []
    assert td.workers() == []
