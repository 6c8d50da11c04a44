"""Pickup: from an enqueue in one process to the start of the handler in another, idle one."""

from __future__ import annotations

import random
import time

from bench.database import BenchDatabase
from bench.measure import Sample, percentile
from bench.report import ReportRow, Target
from bench.setting import Setting
from bench.workers import wait_for, working
from treadle import Treadle
from treadle.worker.watch import POLL

GAPS = (0.020, 0.200)
"""Seconds between two enqueues: at random, so that they do not fall into step with the worker's polls."""
BY_POLLING = "from its return, by polling alone"
BEHIND_POOLER = "from its return, behind the pooler"


async def _stamp() -> int:
    """The worker has its own."""
    return 0


def measure(setting: Setting) -> list[ReportRow]:
    """Milliseconds, median and 99th percentile; from the call of enqueue, and from its return."""
    from_call, from_return = latencies(setting, setting.backend.new("pickup"))
    if not setting.backend.notifies:
        return _rows("poll", BY_POLLING, from_return, Target(below=1000 * POLL))
    rows = _rows("return", "from enqueue's return", from_return, Target(below=5))
    rows += _rows("call", "from its call", from_call)
    if pooled := setting.backend.new_behind_pooler("pickup"):
        _, polled = latencies(setting, pooled)
        rows += _rows("pooler", BEHIND_POOLER, polled, Target(below=1000 * POLL))
    return rows


def _rows(name: str, words: str, values: list[float], target: Target | None = None) -> list[ReportRow]:
    rows = []
    for percent, wanted in ((50, target), (99, None)):
        sample = Sample((percentile(values, percent),))
        row = ReportRow.of("pickup", f"pickup_{name}_p{percent}", f"p{percent} {words}", "ms", sample, target=wanted)
        row.low, row.high = (min(values), max(values)) if percent == 50 else (row.value, row.value)
        rows.append(row)
    return rows


def latencies(setting: Setting, database: BenchDatabase) -> tuple[list[float], list[float]]:
    """For each job: milliseconds from the call of `enqueue`, and from its return, to the start of the handler."""
    app = Treadle(database.url)
    stamp = app.job(type="stamp")(_stamp)
    sent: dict[str, tuple[int, int]] = {}
    setting.say(f"pickup: {setting.sizes.pickups} jobs, one by one")
    try:
        with working(database, 1, setting.concurrency) as workers:
            stamp.enqueue()  # the first one finds the worker starting, and is not counted
            wait_for(workers, lambda: database.completed("stamp"), 1)
            for _ in range(setting.sizes.pickups):
                time.sleep(random.uniform(*GAPS))
                called = time.time_ns()
                job = stamp.enqueue()
                sent[job.id] = (called, time.time_ns())
            wait_for(workers, lambda: database.completed("stamp"), 1 + len(sent))
        started = {id: at for id, at in database.results().items() if id in sent}
    finally:
        app.close()
        database.close()
    return (
        [(at - sent[id][0]) / 1e6 for id, at in started.items()],
        [(at - sent[id][1]) / 1e6 for id, at in started.items()],
    )
