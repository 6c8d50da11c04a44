"""`td.worker().start()`: a worker in a thread of a program without an event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle import Treadle
from treadle.errors import BadStart, StoreUnusable
from treadle.job import Status


def test_it_runs_jobs_until_it_is_stopped(tmp_path: Path) -> None:
    td = Treadle(f"sqlite:///{tmp_path}/jobs.db")
    names: list[str] = []

    @td.job
    async def where(n: int) -> int:
        names.append(threading.current_thread().name)
        return n + 1

    with td.worker().start():
        assert 2 == td.result(where.enqueue(n=1).id)
        assert ["treadle-worker"] == names
        assert 1 == len(td.workers())
    assert [] == td.workers()
    left = where.enqueue(n=1)
    assert Status.PENDING is td.get(left.id).status
    td.close()


def test_what_keeps_it_from_starting_is_raised(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="its folder does not exist"):
        Treadle(f"sqlite:///{tmp_path}/missing/jobs.db").worker().start()


@pytest.fixture
def td(tmp_path: Path) -> Iterator[Treadle]:
    app = Treadle(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    app.close()


def test_the_worker_itself_stops_what_it_has_started(td: Treadle) -> None:
    worker = td.worker()
    started = worker.start()
    assert 1 == len(td.workers())
    worker.stop()
    assert [] == td.workers()
    started.stop()  # once more does no harm


def test_a_worker_starts_once(td: Treadle) -> None:
    worker = td.worker()
    with worker.start(), pytest.raises(BadStart, match=r"starts only once; make another: td\.worker\(…\)"):
        worker.start()
    with pytest.raises(BadStart, match="starts only once"):
        worker.start()
    with pytest.raises(BadStart, match="starts only once"):
        worker.run()


def test_a_worker_that_could_not_start_can_try_again(tmp_path: Path) -> None:
    td = Treadle(f"sqlite:///{tmp_path}/later/jobs.db")
    worker = td.worker()
    with pytest.raises(StoreUnusable):
        worker.start()
    (tmp_path / "later").mkdir()
    with worker.start():
        assert 1 == len(td.workers())
    td.close()


def test_a_stop_of_what_was_not_started_so_names_what_stops_it(td: Treadle) -> None:
    with pytest.raises(BadStart, match=r"the end of the block stops `async with td\.worker\(\):`, and SIGTERM"):
        td.worker().stop()


def test_a_sync_block_names_the_ways_to_start(td: Treadle) -> None:
    worker: Any = td.worker()
    ways = r"use `async with td\.worker\(\):`, or .* `with td\.worker\(\)\.start\(\):`"
    with pytest.raises(BadStart, match=ways), worker:
        pass


def test_run_on_a_running_loop_names_the_block(td: Treadle) -> None:
    async def main() -> None:
        td.worker().run()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "coroutine … was never awaited"
        with pytest.raises(BadStart, match=r"one is running here; use `async with td\.worker\(\):`"):
            asyncio.run(main())


PROGRAM = """
import threading
from treadle import Treadle
td = Treadle("sqlite:///jobs.db")
started = threading.Event()

@td.job
def slow() -> str:
    started.set()
    threading.Event().wait(0.5)
    return "done"

td.worker().start()
slow.enqueue()
started.wait()
"""


def test_a_program_that_ends_lets_its_jobs_end(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, check=True, timeout=60)

    td = Treadle(f"sqlite:///{tmp_path}/jobs.db")
    assert [("completed", "done", 1)] == [(job.status, job.result, job.attempts) for job in td.jobs()]
    assert [] == td.workers()
    td.close()
