"""The heartbeat of a worker, on a store that sometimes fails."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from tests.eventually import eventually
from tests.worker.helpers import working
from treadle import Treadle
from treadle.errors import StoreUnusable
from treadle.stores.rows import Beat
from treadle.testing import ManualClock
from treadle.worker.heartbeat import STILL, Heartbeat
from treadle.worker.inflight import Inflight
from treadle.worker.parts import Parts


class OutForAMoment:
    """A store that cannot be used when the first beat comes."""

    where = "here"

    def __init__(self) -> None:
        self.beats: list[float] = []
        self.second = threading.Event()

    def beat(self, worker: str, time_left: object, stalled_for: int) -> Beat:
        self.beats.append(time.monotonic())
        if len(self.beats) == 1:
            raise StoreUnusable(self.where, "it restarts", "wait")
        self.second.set()
        return Beat({worker: 1}, {})


def test_a_beat_that_failed_is_tried_again_at_once_and_not_with_the_next() -> None:
    """Otherwise a server that restarts as often as a worker beats could silence one of two live workers."""
    store: Any = OutForAMoment()

    async def beat_twice() -> None:
        heartbeat = Heartbeat(store, 3.0, list, list, list, Inflight.create(1), Parts())
        heartbeat.start()
        assert await asyncio.to_thread(store.second.wait, 30)
        assert await heartbeat.news.get() == Beat({"": 1}, {})
        heartbeat.stop()
        heartbeat.join()

    asyncio.run(beat_twice())
    first, second, *_ = store.beats
    assert second - first < 2.0


class BesideADeadWorker:
    """A store in which the count of another worker stands still."""

    where = "nowhere"

    def beat(self, worker: str, time_left: object, stalled_for: int) -> Beat:
        return Beat({"w2": 1}, {})

    def declare_dead(self, worker: str, reason: str, beats: int) -> int:
        return 1


def test_a_worker_that_is_declared_dead_is_logged_with_its_jobs(caplog: pytest.LogCaptureFixture) -> None:
    store: Any = BesideADeadWorker()

    async def beat_until_it_is_dead() -> None:
        heartbeat = Heartbeat(store, 0.01, list, list, list, Inflight.create(1), Parts())
        heartbeat.start()
        for _ in range(1 + STILL):
            await asyncio.wait_for(heartbeat.news.get(), 30)
        heartbeat.stop()
        heartbeat.join()

    asyncio.run(beat_until_it_is_dead())
    assert "worker w2 is dead: its heartbeat stopped; 1 job returned" in caplog.text


# The clock of the database steps


def two_beats(td: Treadle) -> None:
    [before] = td.workers()
    eventually(lambda: td.workers()[0].beats >= before.beats + 2)


@pytest.mark.parametrize("run", ["async", "thread"])
def test_a_step_of_the_clock_takes_no_running_job_from_its_worker(
    timed: Treadle, treadle_clock: ManualClock, run: Any
) -> None:
    """Each hour is longer than the timeout. What is left of that is counted by a clock that does not step."""
    let_go, started = threading.Event(), threading.Event()

    async def asteady() -> str:
        started.set()
        await asyncio.to_thread(let_go.wait, 60)
        return "good"

    def steady() -> str:
        started.set()
        assert let_go.wait(60)
        return "good"

    handler = timed.job(type="steady", timeout=300, concurrency=1)(asteady if run == "async" else steady)
    with working(timed, beat=0.1):
        job = handler.enqueue()
        assert started.wait(60)
        second = handler.enqueue()
        two_beats(timed)  # one that was under way when the job started does not know of it
        for _ in range(3):
            treadle_clock.advance(3600)
            assert timed.store.rescue() == 0
            two_beats(timed)
            assert timed.store.rescue() == 0
            assert timed.why(second.id).reasons[0].code == "limit_full"
        let_go.set()
        assert timed.result(job.id) == "good"
        assert timed.result(second.id) == "good"
    assert [timed.attempts(id) for id in (job.id, second.id)] == [[], []]


def test_a_step_of_the_clock_takes_no_outcome_from_a_worker_that_is_about_to_store_it(
    timed: Treadle, treadle_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go, asked, settle = threading.Event(), threading.Event(), timed.store.settle

    def when_let(ended: Any) -> Any:
        asked.set()
        assert let_go.wait(60)
        return settle(ended)

    @timed.job(timeout=300)
    async def quick() -> str:
        return "good"

    monkeypatch.setattr(timed.store, "settle", when_let)
    with working(timed, beat=0.1):
        job = quick.enqueue()
        assert asked.wait(60)
        treadle_clock.advance(3600)
        two_beats(timed)
        assert timed.store.rescue() == 0
        let_go.set()
        assert timed.result(job.id) == "good"
    assert timed.attempts(job.id) == []
