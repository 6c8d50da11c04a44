"""Idle: what a worker with nothing to do costs."""

from __future__ import annotations

import time

from bench.measure import Sample
from bench.processes import cpu_seconds, megabytes
from bench.report import ReportRow, Target
from bench.setting import Setting
from bench.workers import wait_for, working


def measure(setting: Setting) -> list[ReportRow]:
    """CPU over some seconds, heartbeats and chores included, and memory."""
    database = setting.backend.new("idle")
    try:
        first = database.waiting(1)
        with working(database, 1, setting.concurrency) as workers:
            wait_for(workers, lambda: database.completed("noop"), first.n)
            time.sleep(min(2.0, setting.sizes.idle / 3))  # until it polls as rarely as it does when idle
            setting.say(f"idle: a worker with nothing to do, for {setting.sizes.idle:g} s")
            pid = workers[0].pid
            began, used = time.monotonic(), cpu_seconds(pid)
            time.sleep(setting.sizes.idle)
            percent = 100 * (cpu_seconds(pid) - used) / (time.monotonic() - began)
            memory = megabytes(pid)
    finally:
        database.close()
    return [
        ReportRow.of(
            "idle", "idle_cpu", "CPU of an idle worker", "% of a core", Sample((percent,)), target=Target(below=1)
        ),
        ReportRow.of("idle", "idle_memory", "memory of an idle worker", "MB", Sample((memory,))),
    ]
