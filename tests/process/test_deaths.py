"""Which process dies, which one notices, and what happens to the jobs."""

from __future__ import annotations

import time

import psutil
import pytest

from tests.eventually import eventually
from tests.process.handlers import (
    blocks_the_loop,
    holds_the_interpreter,
    quick,
    slow,
    slow_async,
    slow_process,
    stuck,
    td,
)
from tests.process.harness import Place, end
from treadle import Status


def test_when_the_supervisor_is_killed_its_workers_stop_and_give_their_jobs_back(place: Place) -> None:
    jobs = td.enqueue_many([handler.request(seconds=120) for handler in (slow, slow_async, slow_process)])
    supervisor = place.worker(processes=2, grace=0)
    eventually(lambda: len(place.runs()) == len(jobs))
    supervisor.kill()
    eventually(lambda: not place.processes())
    now = [td.get(job.id) for job in jobs]
    assert [(job.status, job.attempts) for job in now if job is not None] == [(Status.PENDING, 0)] * len(jobs)
    assert td.workers() == []


def test_when_the_supervisor_is_killed_while_a_worker_starts_it_ends_too(place: Place) -> None:
    supervisor = place.worker(processes=1, module="tests.process.slow_app")
    eventually(lambda: place.noted("importing"))
    supervisor.kill()
    supervisor.wait()
    place.open_gate("imported")
    eventually(lambda: not place.processes())


def test_a_starting_worker_returns_the_jobs_of_a_dead_process_at_once(place: Place) -> None:
    jobs = td.enqueue_many([slow_async.request(seconds=120) for _ in range(5)])
    first = place.worker(beat=60)
    eventually(lambda: len(place.runs()) == len(jobs))
    first.kill()
    first.wait()
    place.worker(beat=60)
    eventually(lambda: len(place.runs()) > len(jobs))  # a heartbeat would show it after three minutes
    errors = {str(attempt.error) for job in jobs for attempt in td.attempts(job.id)}
    assert errors == {"its process is gone; other jobs ran there too, so it runs again, alone"}


def test_a_worker_that_cannot_be_imported_ends_the_supervisor_with_its_exit_code(place: Place) -> None:
    assert place.worker(processes=2, module="tests.process.broken_app").wait(60) == 3


@pytest.mark.sqlite_only  # it tests threads, independent of the store
def test_a_process_whose_threads_are_stuck_is_replaced(place: Place) -> None:
    jobs = td.enqueue_many([stuck.request(seconds=120) for _ in range(2)])
    supervisor = place.worker(processes=1, concurrency=2)
    assert [td.result(job.id) for job in jobs] == [None, None]
    first, second = sorted({run.pid for run in place.runs()}, key=[run.pid for run in place.runs()].index)
    assert first != second
    assert not psutil.pid_exists(first)
    assert [a.error for job in jobs for a in td.attempts(job.id)] == ["timed out after 2 s"] * 2
    assert end(supervisor) == 0


@pytest.mark.sqlite_only  # it tests threads, independent of the store
def test_a_process_with_stuck_threads_is_replaced_even_if_they_end_while_it_stops(place: Place) -> None:
    td.enqueue_many([stuck.request(seconds=6), stuck.request(seconds=6), slow_async.request(seconds=9)])
    supervisor = place.worker(processes=1, concurrency=3)
    eventually(lambda: place.count("completed") == 3)
    assert td.result(quick.enqueue().id) is None
    assert end(supervisor) == 0


def test_a_worker_whose_loop_is_blocked_by_a_handler_is_not_declared_dead(place: Place) -> None:
    """The handler takes ten beats, while more jobs are claimed and settled."""
    beat = 0.8
    place.worker(beat=beat, concurrency=4)
    place.worker(beat=beat, concurrency=4)
    place.wait_for_workers(2)
    workers = {row.id for row in td.workers()}
    blocker = blocks_the_loop.request(seconds=10 * beat)
    jobs = td.enqueue_many([blocker, *(quick.request() for _ in range(3000))])
    eventually(lambda: place.count("completed") == len(jobs), within=300)
    assert {row.id for row in td.workers()} == workers
    assert len(place.noted("start")) + len(place.noted("ran")) == len(jobs)
    assert place.sql("SELECT * FROM treadle_attempts") == []


def test_a_job_that_holds_the_interpreter_lock_is_declared_dead_and_then_runs_in_a_child(place: Place) -> None:
    """No thread of that process can beat meanwhile. The next attempt of the job runs in its own process."""
    beat = 0.4
    place.worker(beat=beat, concurrency=1)
    place.worker(beat=beat, concurrency=1)
    place.wait_for_workers(2)
    job = holds_the_interpreter.enqueue(seconds=8 * beat)
    assert td.result(job.id) is None
    # If it stopped a thread in the middle of a transaction, no other worker could write: then none is declared dead.
    errors = [attempt.error for attempt in td.attempts(job.id)]
    assert errors in (["its worker stopped beating"], [])
    assert len(place.runs()) == len(errors) + 1


def test_children_die_with_their_killed_worker(place: Place) -> None:
    jobs = td.enqueue_many([slow_process.request(seconds=120) for _ in range(4)])
    worker = place.worker(concurrency=4)
    eventually(lambda: len(place.runs()) == len(jobs))
    began = time.monotonic()
    worker.kill()
    worker.wait()
    eventually(lambda: not place.processes())
    print(f"children gone {time.monotonic() - began:.2f} s after the kill")
