"""Idle: what a worker with nothing to do costs."""

from __future__ import annotations

import time

from bench.measure import Sample
from bench.processes import cpu_seconds, megabytes
from bench.report import ReportRow, Target
from bench.setting import Setting
from bench.workers import wait_for, working

SETTLED = 12.0
"""Seconds after which a worker polls as rarely as it does when idle, and has closed the connections of its start."""


def measure(setting: Setting) -> list[ReportRow]:
    """CPU over some seconds, heartbeats and chores included, and memory."""
    database = setting.backend.new("idle")
    try:
        first = database.waiting(1)
        with working(database, 1, setting.concurrency) as workers:
            wait_for(workers, lambda: database.completed("noop"), first.n)
            time.sleep(min(SETTLED, 1.2 * setting.sizes.idle))
            setting.say(f"idle: a worker with nothing to do, for {setting.sizes.idle:g} s")
            pid = workers[0].pid
            began, used, load = time.monotonic(), cpu_seconds(pid), database.load()
            time.sleep(setting.sizes.idle)
            seconds, cpu, memory = time.monotonic() - began, cpu_seconds(pid) - used, megabytes(pid)
            rows = _load(load, database.load(), seconds)
    finally:
        database.close()
    per_minute = Sample((60 * cpu / seconds,))
    return [
        ReportRow.of("idle", "idle_cpu", "CPU of an idle worker", "s/min", per_minute, target=Target(below=0.1)),
        ReportRow.of("idle", "idle_memory", "memory of an idle worker", "MB", Sample((memory,))),
        *rows,
    ]


def _load(before: tuple[int, int] | None, after: tuple[int, int] | None, seconds: float) -> list[ReportRow]:
    """What it costs the server, the server's own transactions included."""
    if before is None or after is None:
        return []
    rate, sessions = Sample(((after[0] - before[0]) / seconds,)), Sample((after[1],))
    return [
        ReportRow.of("idle", "idle_transactions", "its transactions", "/s", rate, target=Target(below=1)),
        ReportRow.of("idle", "idle_sessions", "its connections", "", sessions, target=Target(below=4.5)),
    ]
