"""A tick and dead workers: it looks at a worker's count twice, and waits only if a worker looks lost."""

from __future__ import annotations

import time

import pytest

from tests.conformance.helpers import enlist, take
from tests.worker.helpers import place
from treadle import Job, Status, Treadle
from treadle.diagnosis import SILENT
from treadle.testing import ManualClock

TWO_MINUTES = 120


def between_looks(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.worker.tick.BETWEEN_LOOKS", seconds)


def held_by_a_lost_worker(td: Treadle, clock: ManualClock) -> Job:
    @td.job
    def work() -> None: ...

    job = work.enqueue()
    take(td.store, worker=enlist(td.store, "lost"))
    clock.advance(SILENT + 1)
    return job


def test_a_tick_runs_the_jobs_of_a_worker_whose_count_stood_still(
    timed: Treadle, treadle_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    between_looks(0.2, monkeypatch)
    job = held_by_a_lost_worker(timed, treadle_clock)

    report = timed.tick()

    assert (report.rescued, report.completed) == (1, 1)
    assert place(timed, job) == (Status.COMPLETED, 2)
    assert timed.workers() == []


def test_a_tick_too_short_for_two_looks_still_returns_the_jobs_of_a_dead_worker(
    timed: Treadle, treadle_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    between_looks(1, monkeypatch)
    job = held_by_a_lost_worker(timed, treadle_clock)

    report = timed.tick(max_seconds=0.3)

    assert (report.rescued, report.ran) == (1, 0)
    assert report.next_due_at is not None
    assert place(timed, job) == (Status.PENDING, 1)


def test_a_tick_after_a_long_pause_does_not_declare_a_worker_dead_that_beats_again(
    timed: Treadle, treadle_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    between_looks(1, monkeypatch)
    held = timed.enqueue("held")
    take(timed.store, worker=enlist(timed.store, "late"))
    treadle_clock.advance(TWO_MINUTES)

    @timed.job
    def beat() -> None:
        timed.store.beat("late")

    beat.enqueue()
    report = timed.tick()

    assert (report.rescued, report.completed) == (0, 1)
    assert place(timed, held) == (Status.PROCESSING, 1)
    assert [worker.id for worker in timed.workers()] == ["late"]


def test_a_tick_does_not_wait_while_every_worker_beats(
    timed: Treadle, treadle_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    between_looks(60, monkeypatch)
    timed.enqueue("held")
    take(timed.store, worker=enlist(timed.store, "live"))
    treadle_clock.advance(SILENT - 1)
    start = time.monotonic()

    assert timed.tick().rescued == 0

    assert time.monotonic() - start < 30
