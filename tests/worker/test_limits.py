"""How many jobs run at once, in which order, and within which limits."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.eventually import eventually
from tests.worker.helpers import ended, place, working
from treadle import Status, Treadle
from treadle.errors import BadOption
from treadle.testing import ManualClock, drain


class Gauge:
    """Counts how many are inside at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


@pytest.mark.parametrize("workers", [1, 2])
def test_the_limit_of_a_type_is_never_exceeded_and_is_used_fully(td: Treadle, treadle_url: str, workers: int) -> None:
    gauge, others = Gauge(), Gauge()

    @td.job(concurrency=3)
    async def limited() -> None:
        with gauge:
            await asyncio.sleep(0.005)

    @td.job
    async def free() -> None:
        with others:
            await asyncio.sleep(0.005)

    jobs = [job for _ in range(15) for job in (limited.enqueue(), free.enqueue())]
    if workers == 1:
        with working(td, concurrency=8):
            assert {ended(td, job).status for job in jobs} == {Status.COMPLETED}
    else:
        with working(td, concurrency=8), working(td, concurrency=8):
            assert {ended(td, job).status for job in jobs} == {Status.COMPLETED}
    assert gauge.most == 3
    assert others.most > 3


def test_a_worker_never_runs_more_than_its_concurrency(td: Treadle) -> None:
    gauge = Gauge()

    @td.job
    async def awaits() -> None:
        with gauge:
            await asyncio.sleep(0.003)

    @td.job
    def blocks() -> None:
        with gauge:
            threading.Event().wait(0.003)

    jobs = [job for _ in range(15) for job in (awaits.enqueue(), blocks.enqueue())]
    with working(td, concurrency=4):
        for job in jobs:
            ended(td, job)
    assert gauge.most <= 4


def test_higher_priority_runs_first_then_older_across_types(td: Treadle) -> None:
    order: list[str] = []

    @td.job
    def tile(name: str) -> None:
        order.append(name)

    @td.job(priority=5)
    def scan(name: str) -> None:
        order.append(name)

    for name, job in [
        ("tile 1", tile),
        ("scan 1", scan),
        ("tile 2", tile),
        ("urgent tile", tile.using(priority=9)),
        ("scan 2", scan),
        ("idle scan", scan.using(priority=-1)),
    ]:
        job.enqueue(name=name)
    with working(td, concurrency=1):
        eventually(lambda: len(order) == 6)
    assert order == ["urgent tile", "scan 1", "scan 2", "tile 1", "tile 2", "idle scan"]


def test_a_worker_takes_only_its_queues(td: Treadle) -> None:
    @td.job(queue="mine")
    def mine() -> None: ...

    @td.job
    def other() -> None: ...

    left, right = other.enqueue(), mine.enqueue()
    with working(td, queues=["mine"]):
        assert ended(td, right).status is Status.COMPLETED
    assert place(td, left) == (Status.PENDING, 0)


def test_a_delayed_job_runs_when_it_is_due_and_not_before(td: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.worker.watch.POLL", 600)  # so that no poll finds it first

    @td.job
    async def later() -> float:
        return datetime.now(UTC).timestamp()

    with working(td):
        job = later.using(delay=0.3).enqueue()
        ran_at = td.result(job.id)
    assert 0 <= ran_at - job.run_at.timestamp() < 60


@pytest.mark.not_libsql  # it is not notified by others
def test_a_job_enqueued_by_another_process_is_picked_up_without_a_poll(
    td: Treadle, treadle_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.worker.watch.POLL", 60)

    @td.job
    async def work() -> str:
        return "seen"

    other = Treadle(treadle_url)
    with working(td):
        assert other.result(other.enqueue("work").id, timeout=10) == "seen"
    other.close()


# Ticks


def test_a_tick_runs_everything_that_is_due_with_follow_ups(td: Treadle) -> None:
    @td.job
    def count_down(n: int) -> None:
        if n:
            count_down.enqueue(n=n - 1)

    count_down.enqueue(n=5)
    for _ in range(25):
        count_down.enqueue(n=0)
    report = td.tick()
    assert (report.ran, report.completed, report.released, report.next_due_at) == (31, 31, 0, None)


def test_a_tick_runs_at_most_its_limit_of_jobs(td: Treadle) -> None:
    @td.job
    def work() -> None: ...

    jobs = [work.enqueue() for _ in range(25)]
    report = td.tick(max_jobs=12)
    assert (report.ok, report.ran, report.completed) == (True, 12, 12)
    assert report.next_due_at is not None
    assert report.next_due_at <= datetime.now(UTC)
    assert Counter(place(td, job) for job in jobs) == {(Status.COMPLETED, 1): 12, (Status.PENDING, 0): 13}


def test_a_tick_ends_in_time_and_releases_jobs_that_have_not_ended(td: Treadle) -> None:
    @td.job
    async def wait() -> None:
        await asyncio.Event().wait()

    @td.job
    async def quick() -> None: ...

    slow, fast = wait.enqueue(), quick.enqueue()
    report = td.tick(max_seconds=2)
    assert (report.ran, report.completed, report.released) == (2, 1, 1)
    assert (place(td, slow), place(td, fast)) == ((Status.PENDING, 0), (Status.COMPLETED, 1))


def test_a_tick_counts_each_way_an_attempt_can_end(timed: Treadle, treadle_clock: ManualClock) -> None:
    from treadle import Fail, Snooze

    @timed.job(backoff=60)
    def work(what: str) -> None:
        raise {"retry": ValueError("x"), "snooze": Snooze(30), "fail": Fail("x")}[what]

    for what in ("retry", "snooze", "fail"):
        work.enqueue(what=what)
    report = timed.tick()
    assert (report.ran, report.retried, report.snoozed, report.failed, report.completed) == (3, 1, 1, 1, 0)
    assert report.next_due_at == treadle_clock.now() + timedelta(seconds=30)


def test_ticks_at_the_same_time_run_each_job_once(td: Treadle) -> None:
    ran: list[int] = []

    @td.job
    def note(n: int) -> None:
        ran.append(n)

    for n in range(40):
        note.enqueue(n=n)
    start = threading.Barrier(4)
    reports: list[Any] = []

    def tick() -> None:
        start.wait()
        reports.append(td.tick(max_jobs=20))

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drain(td)
    assert sorted(ran) == list(range(40))
    assert all(report.ran <= 20 for report in reports)
    assert sum(report.ran for report in reports) == 40


def test_a_tick_works_while_an_event_loop_runs(td: Treadle) -> None:
    @td.job
    async def work() -> None:
        await asyncio.sleep(0)

    async def main() -> tuple[int, int]:
        await work.aenqueue()
        first = (await td.atick()).completed
        await work.aenqueue()
        return first, td.tick().completed

    assert asyncio.run(main()) == (1, 1)


def test_a_tick_rescues_first(timed: Treadle, treadle_clock: ManualClock) -> None:
    @timed.job
    def work() -> None: ...

    job = work.enqueue()
    timed.claim(lease=10)
    treadle_clock.advance(60)
    report = timed.tick()
    assert (report.rescued, report.completed) == (1, 1)
    assert place(timed, job) == (Status.COMPLETED, 2)


@pytest.mark.parametrize("bounds", [{"max_jobs": 0}, {"max_seconds": 0}])
def test_a_tick_with_a_limit_of_zero_is_refused(td: Treadle, bounds: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="at least 1 job"):
        td.tick(**bounds)
