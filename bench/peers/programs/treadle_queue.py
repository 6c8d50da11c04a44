"""treadle, on PostgreSQL and on SQLite."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from bench.peers.programs.program import Command, QueueProgram, main, stamp
from treadle import Treadle

SLOTS = 500
THREADS = 64


async def _noop(n: int) -> None:
    stamp()


def _noop_thread(n: int) -> None:
    stamp()


class TreadleProgram(QueueProgram):
    package = "treadle"
    settings = f"concurrency={SLOTS}; on SQLite synchronous=FULL, its default"

    def __init__(self, url: str, kind: str) -> None:
        super().__init__(url, kind)
        self.td = Treadle(url)
        self.noop = self.td.job(type="noop")(_noop_thread if kind == "thread" else _noop)

    async def prepare(self) -> None:
        self.td.store.open()

    async def enqueue(self, n: int) -> None:
        self.noop.enqueue(n=n)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        self.td.enqueue_many([self.noop.request(n=n) for n in numbers])

    def work(self) -> None:
        self.td.worker(concurrency=SLOTS).run()

    def commands(self) -> dict[str, Command]:
        return {**super().commands(), "threads": self._threads}

    async def _threads(self, seconds: float) -> float:
        """Jobs per second of many threads, each enqueueing singly."""
        counts = [0] * THREADS
        began = time.perf_counter()

        def produce(i: int) -> None:
            while time.perf_counter() - began < seconds:
                self.noop.enqueue(n=counts[i])
                counts[i] += 1

        threads = [threading.Thread(target=produce, args=(i,)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - began)


if __name__ == "__main__":
    main(TreadleProgram)
