"""The heartbeat of a worker, on a store that sometimes fails."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from treadle.errors import StoreUnusable
from treadle.stores.rows import Beat
from treadle.worker.heartbeat import Heartbeat
from treadle.worker.inflight import Inflight
from treadle.worker.parts import Parts


class OutForAMoment:
    """A store that cannot be used when the first beat comes."""

    where = "here"

    def __init__(self) -> None:
        self.beats: list[float] = []
        self.second = threading.Event()

    def beat(self, worker: str, stalled_for: int = 0) -> Beat:
        self.beats.append(time.monotonic())
        if len(self.beats) == 1:
            raise StoreUnusable(self.where, "it restarts", "wait")
        self.second.set()
        return Beat({worker: 1}, {})


def test_a_beat_that_failed_is_tried_again_at_once_and_not_with_the_next() -> None:
    """Otherwise a server that restarts as often as a worker beats could silence one of two live workers."""
    store: Any = OutForAMoment()

    async def beat_twice() -> None:
        heartbeat = Heartbeat(store, 3.0, Inflight.create(1), Parts())
        heartbeat.start()
        assert await asyncio.to_thread(store.second.wait, 30)
        assert await heartbeat.news.get() == Beat({"": 1}, {})
        heartbeat.stop()
        heartbeat.join()

    asyncio.run(beat_twice())
    first, second, *_ = store.beats
    assert second - first < 2.0
