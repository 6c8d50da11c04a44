"""A worker that has nothing to do."""

from __future__ import annotations

import asyncio

import bullmq  # type: ignore[import-untyped]
import pytest
from redis.exceptions import ConnectionError

from tests.contrib.bullmq.conftest import Bench
from treadle import Treadle
from treadle.contrib.bullmq import BullWorker


@pytest.fixture
def td(bench: Bench) -> Treadle:
    td = Treadle(bench.url)

    @td.job
    async def nothing() -> None: ...

    return td


def test_a_wait_for_a_job_may_take_longer_than_other_commands(
    bench: Bench, td: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, redis-py waits 5 seconds for an answer, and BullMQ as long for a job. Here, both wait 1 second."""
    original = bullmq.Worker.waitForJob

    async def work() -> list[int]:
        waited: asyncio.Queue[int] = asyncio.Queue()

        async def wait(self: bullmq.Worker) -> int:
            found: int = await original(self)
            waited.put_nowait(found)
            return found

        monkeypatch.setattr(bullmq.Worker, "getBlockTimeout", lambda *_: 1)
        monkeypatch.setattr(bullmq.Worker, "waitForJob", wait)
        async with BullWorker(td, f"{bench.redis}?socket_timeout=0.9").working():
            return [await asyncio.wait_for(waited.get(), 20)]

    assert asyncio.run(work()) == [0]


@pytest.mark.parametrize("method", ["waitForJob", "runStalledJobsCheck"])
def test_it_stops_at_once_if_a_cancellation_is_lost(
    bench: Bench, td: Treadle, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """In Python 3.11, redis-py loses one that arrives when a command has just been sent."""

    async def work() -> None:
        begun = asyncio.Event()

        async def lose_one(self: bullmq.Worker) -> int:
            begun.set()
            try:
                return await forever()
            except asyncio.CancelledError:
                return await forever()

        monkeypatch.setattr(bullmq.Worker, method, lose_one)
        await stop_after(begun, BullWorker(td, bench.redis, grace=1000))

    asyncio.run(work())


def test_it_does_not_wait_for_a_job_again_after_it_was_stopped(
    bench: Bench, td: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BullMQ takes a job again a second after the connection has broken."""

    async def work() -> None:
        failed = asyncio.Event()

        async def fail_once(self: bullmq.Worker) -> int:
            if failed.is_set():
                return await forever()
            failed.set()
            raise ConnectionError

        monkeypatch.setattr(bullmq.Worker, "waitForJob", fail_once)
        await stop_after(failed, BullWorker(td, bench.redis, grace=1000))

    asyncio.run(work())


async def forever() -> int:
    await asyncio.Event().wait()
    return 0


async def stop_after(event: asyncio.Event, worker: BullWorker) -> None:
    stop = asyncio.Event()
    serving = asyncio.create_task(worker.serve(stop))
    await event.wait()
    stop.set()
    assert await asyncio.wait_for(serving, 20) == 0
