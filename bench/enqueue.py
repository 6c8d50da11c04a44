"""Enqueue: one by one, from threads and tasks that share commits, and in bulk."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import msgspec

from bench.ceiling import CHUNK, Ceiling
from bench.measure import alternately
from bench.report import ReportRow, Target
from bench.setting import Setting
from treadle import Treadle

THREADS = 64
TASKS = 512
LARGE = 100_000
"""Bytes of a large payload."""
LARGE_CHUNK = 50
"""Jobs with such a payload in one bulk enqueue."""


async def _noop(n: int) -> None:
    """Never runs here."""


async def _read(text: str) -> None:
    """Never runs here."""


def _large_text() -> str:
    """As people write: words that come again, in no order."""
    words = [f"{random.getrandbits(32):x}"[: random.randint(2, 8)] for _ in range(2_000)]
    return " ".join(random.choices(words, k=LARGE // 2))[:LARGE]


class Producer:
    """A process that enqueues, as a web server would."""

    def __init__(self, url: str) -> None:
        self.app = Treadle(url)
        self._noop = self.app.job(type="noop")(_noop)
        self._read = self.app.job(type="read")(_read)

    def singly(self, seconds: float) -> float:
        """Jobs per second, each enqueued after the previous one is durable."""
        count, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            self._noop.enqueue(n=count)
            count += 1
        return count / passed

    def from_threads(self, seconds: float) -> float:
        """Jobs per second of many threads, each enqueueing singly."""
        counts = [0] * THREADS
        began = time.perf_counter()

        def produce(i: int) -> None:
            while time.perf_counter() - began < seconds:
                self._noop.enqueue(n=counts[i])
                counts[i] += 1

        threads = [threading.Thread(target=produce, args=(i,)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - began)

    def from_tasks(self, seconds: float) -> float:
        """Jobs per second of many tasks of one event loop, each enqueueing singly."""
        return asyncio.run(self._from_tasks(seconds))

    async def _from_tasks(self, seconds: float) -> float:
        began = time.perf_counter()

        async def produce() -> int:
            count = 0
            while time.perf_counter() - began < seconds:
                await self._noop.aenqueue(n=count)
                count += 1
            return count

        counts = await asyncio.gather(*(produce() for _ in range(TASKS)))
        return sum(counts) / (time.perf_counter() - began)

    def in_bulk(self, n: int) -> float:
        """Jobs per second in calls of `enqueue_many`, with making and checking the requests."""
        began = time.perf_counter()
        for start in range(0, n, CHUNK):
            self.app.enqueue_many([self._noop.request(n=i) for i in range(start, min(n, start + CHUNK))])
        return n / (time.perf_counter() - began)

    def large_in_bulk(self, n: int, text: str) -> float:
        """Jobs per second with a large payload each."""
        began = time.perf_counter()
        for _ in range(0, n, LARGE_CHUNK):
            self.app.enqueue_many([self._read.request(text=text) for _ in range(LARGE_CHUNK)])
        return n / (time.perf_counter() - began)


def measure(setting: Setting, ceiling: Ceiling) -> list[ReportRow]:
    """All ways to enqueue, each compared with what limits it."""
    database = setting.backend.new("enqueue")
    producer = Producer(database.url)
    seconds, bulk = setting.sizes.seconds, setting.sizes.bulk
    text, large = _large_text(), max(1, bulk // 2_500) * LARGE_CHUNK
    payloads = [msgspec.json.encode({"text": text}).decode()] * large
    _, safe, word = setting.backend.safe
    try:
        shared = alternately(
            setting,
            {
                safe: lambda: setting.backend.commits(seconds),
                "raw SQL: singly": lambda: ceiling.insert_singly(seconds),
                "enqueue: singly": lambda: producer.singly(seconds),
                f"enqueue: from {THREADS} threads": lambda: producer.from_threads(seconds),
                f"enqueue: from {TASKS} tasks": lambda: producer.from_tasks(seconds),
            },
        )
        in_bulk = alternately(
            setting,
            {
                "enqueue: in bulk": lambda: producer.in_bulk(bulk),
                "raw ceiling": lambda: ceiling.insert(bulk),
                "enqueue: large payloads in bulk": lambda: producer.large_in_bulk(large, text),
                "raw SQL: large payloads": lambda: ceiling.insert_payloads(payloads, LARGE_CHUNK),
            },
        )
    finally:
        producer.app.close()
        database.close()
    least, raw_singly, singly, threads, tasks = shared.values()
    many, raw, many_large, raw_large = in_bulk.values()
    alone, commit = ("singly", singly), (word, least)
    chunk = f"{LARGE // 1000} KB each, in bulk, {LARGE_CHUNK} a call"
    return [
        ReportRow.of("enqueue", "enqueue_singly", "singly", "jobs/s", singly, commit),
        ReportRow.of(
            "enqueue", "enqueue_singly_raw", "singly", "jobs/s", singly, ("raw", raw_singly), Target(ratio=0.7)
        ),
        ReportRow.of(
            "enqueue", "enqueue_threads", f"from {THREADS} threads", "jobs/s", threads, alone, Target(ratio=4)
        ),
        ReportRow.of("enqueue", "enqueue_tasks", f"from {TASKS} tasks", "jobs/s", tasks, alone),
        ReportRow.of(
            "enqueue", "enqueue_bulk", f"in bulk, {CHUNK:,} a call", "jobs/s", many, ("raw", raw), Target(ratio=0.5)
        ),
        ReportRow.of("enqueue", "enqueue_large", chunk, "jobs/s", many_large, ("raw", raw_large)),
    ]
