"""A tick and dead workers: it looks at a worker's count twice, and waits only if a worker looks lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.conformance.helpers import enlist, take
from tests.stores import rows
from tests.worker.helpers import place
from treadle import Job, Status, Treadle
from treadle.diagnosis import SILENT
from treadle.stores.rows import ScheduleRow
from treadle.testing import ManualClock

TWO_MINUTES = 120
MANY = 20_000
NUMBERS = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY})"


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


@pytest.mark.sqlite_only  # it tests the tick, independent of the store
def test_a_tick_with_many_schedules_to_fire_runs_jobs_and_ends_in_time(
    timed: Treadle, treadle_clock: ManualClock
) -> None:
    @timed.job
    async def work() -> None:
        await asyncio.sleep(60)

    timed.schedules.put("digest", "work", every=60, overlap="allow")
    columns = ", ".join(name for name in ScheduleRow.__struct_fields__ if name not in ("tenant", "name"))
    copies = f"SELECT 'tenant-' || i, name, {columns} FROM treadle_schedules, n"
    rows(timed.store.url, f"{NUMBERS} INSERT INTO treadle_schedules (tenant, name, {columns}) {copies}")
    treadle_clock.advance(60)

    began = time.monotonic()
    report = timed.tick(max_jobs=1, max_seconds=2)

    assert time.monotonic() - began < 3.8
    assert 0 < report.fired < MANY
    assert (report.ran, report.released) == (1, 1)
    rows(timed.store.url, "DELETE FROM treadle_schedules")  # the tick's worker may still fire


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
