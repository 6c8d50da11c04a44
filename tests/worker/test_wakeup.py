"""What ends the wait of an idle worker."""

from __future__ import annotations

import asyncio
import sys

import pytest

from treadle import Treadle
from treadle.worker.watch import Wakeup


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports writes to a file")
def test_a_busy_worker_does_not_listen_to_a_file_and_hears_what_came_when_it_waits(tmp_path):
    """Each commit of its own would wake its event loop several times."""
    td = Treadle(f"sqlite:///{tmp_path}/jobs.db")
    td.enqueue("work")

    async def work() -> None:
        wakeup = Wakeup(td.store)
        await wakeup.open()
        async with asyncio.timeout(20):
            await asyncio.to_thread(td.enqueue, "work")
            await wakeup.hint.wait()
            while wakeup._socket is not None:  # it claims now
                await asyncio.to_thread(td.enqueue, "work")
            wakeup.hint.clear()
            await asyncio.to_thread(td.enqueue, "work")
            assert not wakeup.hint.is_set()
            await wakeup.wait(None)
            assert wakeup.hint.is_set()
        wakeup.close()
        wakeup.thread.shutdown()

    asyncio.run(work())
