"""A worker that stops or was declared dead: its running jobs end or are released."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.worker import process_jobs
from tests.worker.helpers import Background, ended, is_alive, is_processing, now, place, working
from treadle import Context, Status, Treadle
from treadle.worker.heartbeat import Heartbeat


def test_a_worker_that_stops_lets_running_jobs_end_and_does_not_charge_the_rest(td: Treadle) -> None:
    go = threading.Event()

    @td.job
    def work() -> str:
        go.wait(15)
        return "done"

    jobs = [work.enqueue() for _ in range(5)]
    background = Background(td, concurrency=2).start()
    eventually(lambda: sum(now(td, job).status is Status.PROCESSING for job in jobs) == 2)
    background.stop_soon()
    eventually(lambda: background.worker._stopping)
    go.set()
    background.join()
    assert [place(td, job) for job in jobs] == [(Status.COMPLETED, 1)] * 2 + [(Status.PENDING, 0)] * 3
    assert td.workers() == []


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
def test_jobs_that_have_not_ended_after_the_grace_period_are_released_without_charge(
    in_children: Treadle, tmp_path: Path, kind: str
) -> None:
    go = threading.Event()
    path = tmp_path / "pid"

    async def wait(path: str) -> None:
        await asyncio.Event().wait()

    def block(path: str) -> None:
        go.wait(15)

    handler: Any = process_jobs.hang
    if kind != "process":
        handler = in_children.job(type=f"stay_{kind}")(wait if kind == "async" else block)
    try:
        with working(in_children, grace=0):
            job = handler.enqueue(path=str(path))
            eventually(path.exists if kind == "process" else is_processing(in_children, job))
        assert place(in_children, job) == (Status.PENDING, 0)
        assert in_children.attempts(job.id) == []
        if kind == "process":
            pid = int(path.read_text())
            eventually(lambda: not is_alive(pid))
    finally:
        go.set()
        in_children.registry._functions.pop(f"stay_{kind}", None)


def test_a_worker_can_run_on_an_existing_loop_and_installs_no_signal_handlers(td: Treadle) -> None:
    import signal

    @td.job
    async def where() -> int:
        return id(asyncio.get_running_loop())

    async def main() -> None:
        before = signal.getsignal(signal.SIGTERM)
        async with td.worker(concurrency=2) as worker:
            assert signal.getsignal(signal.SIGTERM) is before
            assert [row.id for row in await td.aworkers()] == [worker.id]
            job = await where.aenqueue()
            assert await td.aresult(job.id) == id(asyncio.get_running_loop())
        assert await td.aworkers() == []

    asyncio.run(main())


def test_an_exception_inside_the_block_stops_the_worker_too(td: Treadle) -> None:
    async def main() -> None:
        async with td.worker():
            raise KeyError("the web server broke")

    with pytest.raises(KeyError):
        asyncio.run(main())
    assert td.workers() == []


def test_a_worker_that_ends_leaves_no_threads(td: Treadle) -> None:
    @td.job
    def work() -> None: ...

    before = set(threading.enumerate())
    with working(td):
        ended(td, work.enqueue())
    eventually(lambda: set(threading.enumerate()) <= before)


def test_a_worker_whose_loop_is_torn_down_stops_beating(td: Treadle) -> None:
    """As with a signal handler that calls `sys.exit`: all tasks are cancelled at once, also the one that stops it."""
    before = set(threading.enumerate())

    async def main() -> None:
        async with td.worker(beat=0.05):
            asyncio.get_running_loop().call_soon(sys.exit)
            await asyncio.Event().wait()

    with pytest.raises(SystemExit):
        asyncio.run(main())
    eventually(lambda: not [thread for thread in set(threading.enumerate()) - before if isinstance(thread, Heartbeat)])
    assert not td._wakers


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"grace": -1}, {"beat": 0}, {"concurrency": True}])
def test_a_worker_with_options_that_cannot_work_is_refused(td: Treadle, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        td.worker(**options)


# A worker that was declared dead


def test_a_worker_that_was_declared_dead_drops_its_jobs_and_continues_under_a_new_id(td: Treadle) -> None:
    runs: list[str] = []

    @td.job(backoff=0)
    async def wait(ctx: Context) -> str:
        runs.append(ctx.id)
        if len(runs) == 1:
            await asyncio.Event().wait()
        return "done"

    with working(td, beat=0.05) as background:
        job = wait.enqueue()
        eventually(lambda: runs)
        first = background.worker.id
        td.store.declare_dead(first, "it was silent")
        assert td.result(job.id) == "done"
        assert [row.id for row in td.workers()] == [background.worker.id]
        assert background.worker.id != first
    assert place(td, job) == (Status.COMPLETED, 2)
    assert [attempt.error for attempt in td.attempts(job.id)] == ["it was silent"]
