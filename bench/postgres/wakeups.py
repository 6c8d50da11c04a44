"""Wake-ups: what notifications cost the processes that enqueue.

Every commit with a notification takes a lock that the whole server shares. So several processes enqueue at once here,
each from many threads. A worker listens that does not handle their jobs: the only difference is the notification.
"""

from __future__ import annotations

import contextlib

import msgspec

from bench.database import BenchDatabase
from bench.measure import Sample, percentile
from bench.report import ReportRow, Target
from bench.setting import Setting
from bench.workers import Child, working

PROCESSES = 4
THREADS = 16
PRODUCE = "bench.postgres.produce"


def measure(setting: Setting) -> list[ReportRow]:
    """Milliseconds that an enqueue takes, all but one in a hundred; and jobs per second."""
    database = setting.backend.new("wakeups")
    found: dict[str, list[list[float]]] = {"notifying": [], "silent": []}
    try:
        with working(database, 1, setting.concurrency):
            for repeat in range(1, setting.sizes.repeats + 1):
                for how, runs in found.items():
                    setting.say(
                        f"wake-ups: {PROCESSES * THREADS} enqueuers, {how} ({repeat} of {setting.sizes.repeats})"
                    )
                    runs.append(latencies(database, 2 * setting.sizes.seconds, how))
    finally:
        database.close()
    notifying, silent = found.values()
    who, seconds = f"{PROCESSES * THREADS} enqueuers in {PROCESSES} processes", 2 * setting.sizes.seconds
    slow = [Sample(tuple(percentile(run, 99) for run in runs)) for runs in (notifying, silent)]
    rates = [Sample(tuple(len(run) / seconds for run in runs)) for runs in (notifying, silent)]
    at_most = Target(at_most=1.2)
    return [
        ReportRow.of("wakeups", "wakeups_p99", f"{who}: p99", "ms", slow[0], ("without", slow[1]), at_most),
        ReportRow.of("wakeups", "wakeups_rate", f"{who}: together", "jobs/s", rates[0], ("without", rates[1])),
    ]


def latencies(database: BenchDatabase, seconds: float, how: str) -> list[float]:
    """Milliseconds of every enqueue of all processes."""
    with contextlib.ExitStack() as stack:
        children = []
        for _ in range(PROCESSES):
            children.append(Child(database, PRODUCE, str(THREADS), str(seconds), how))
            stack.callback(children[-1].stop)
        for child in children:
            child.ready()
        for child in children:
            child.go()
        return [took for child in children for took in msgspec.json.decode(child.line(), type=list[float])]
