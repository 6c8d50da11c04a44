"""A worker that has nothing to do."""

from __future__ import annotations

import asyncio

import bullmq  # type: ignore[import-untyped]
import pytest

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
