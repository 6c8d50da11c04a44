"""`td.worker().start()`: a worker in a thread of a program without an event loop."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from treadle import Treadle
from treadle.errors import StoreUnusable
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
