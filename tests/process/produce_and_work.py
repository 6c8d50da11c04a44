"""One of many processes: enqueues from a thread as fast as it can, and works, for some seconds. Any error ends it."""

from __future__ import annotations

import asyncio
import sys
import time

from tests.process.handlers import quick, td
from tests.process.journal import note


def produce(seconds: float) -> None:
    until = time.monotonic() + seconds
    slowest = 0.0
    while (began := time.monotonic()) < until:
        note("acked", quick.enqueue().id)
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.002)  # as a caller that does something else too
    note("slowest", slowest)


async def main(seconds: float) -> None:
    async with td.worker(concurrency=4, beat=2.0):
        await asyncio.to_thread(produce, seconds)


asyncio.run(main(float(sys.argv[1])))
