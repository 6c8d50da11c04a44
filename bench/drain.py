"""Drain: jobs that wait, until worker processes have completed them all.

The rate is what the database says: from the first claim to the last completion.
"""

from __future__ import annotations

from functools import partial

from bench.ceiling import Ceiling
from bench.database import BenchDatabase, Jobs
from bench.measure import Sample, alternately
from bench.processes import megabytes
from bench.report import ReportRow, Target
from bench.setting import PROCESSES, Setting
from bench.workers import wait_for, working

HANDLERS = {"noop": "async", "noop_thread": "thread", "noop_process": "process"}
TARGETS = {("noop", 1): Target(ratio=0.6), ("noop_thread", 1): Target(ratio=0.2)}
ON_SERVER = Target(ratio=0.7)
SCALE = Target(ratio=1.2)


def measure(setting: Setting, ceiling: Ceiling) -> list[ReportRow]:
    """Each kind of handler with one and with two processes, each compared with the raw ceiling."""
    rows: list[ReportRow] = []
    memory: list[float] = []
    for type in HANDLERS:
        rows += _measure(setting, ceiling, type, memory)
    rows.append(
        ReportRow.of("drain", "memory_after_drain", "memory after a drain of async no-ops", "MB", Sample(tuple(memory)))
    )
    return rows


def _measure(setting: Setting, ceiling: Ceiling, type: str, memory: list[float]) -> list[ReportRow]:
    n, kind = getattr(setting.sizes, type), HANDLERS[type]
    whats = {1: f"{kind} no-ops, 1 process", 2: f"{kind} no-ops, 2 processes"}
    measured = alternately(
        setting,
        {
            **{f"drain: {what}": partial(drain, setting, n, type, p, memory) for p, what in whats.items()},
            "raw ceiling": partial(ceiling.move, max(n, setting.sizes.noop_thread)),
        },
    )
    *samples, raw = measured.values()
    rows = []
    for (processes, what), sample in zip(whats.items(), samples, strict=True):
        key, target = f"drain_{kind}_{processes}", TARGETS.get((type, processes))
        if kind == "async" and target is not None and setting.backend.scales:
            target = ON_SERVER
        rows.append(ReportRow.of("drain", key, what, "jobs/s", sample, ("raw", raw), target))
    if type == "noop" and setting.backend.scales:
        one, two = samples
        rows.append(
            ReportRow.of("drain", "drain_scale", "… compared with 1 process", "jobs/s", two, ("1 process", one), SCALE)
        )
    return rows


def drain(setting: Setting, n: int, type: str, processes: int, memory: list[float]) -> float:
    """Jobs per second, in a new database."""
    database = setting.backend.new("drain")
    try:
        return drain_in(setting, database, database.waiting(n, type), processes, memory)
    finally:
        database.close()


def drain_in(
    setting: Setting, database: BenchDatabase, jobs: Jobs, processes: int = 1, memory: list[float] | None = None
) -> float:
    """Jobs per second until all of `jobs` are completed, whatever else there is."""
    before = database.completed(jobs.type)
    in_processes = jobs.type == "noop_process"
    with working(database, processes, PROCESSES if in_processes else setting.concurrency) as workers:
        wait_for(workers, lambda: database.completed(jobs.type) - before, jobs.n)
        if memory is not None and jobs.type == "noop" and processes == 1:
            memory.append(megabytes(workers[0].pid))
    return rate(database.times(jobs), skip=jobs.n // 5 if in_processes else 0)


def rate(times: list[tuple[int, int]], skip: int = 0) -> float:
    """Jobs per second from the first claim on; or after `skip` jobs, during which child processes may start."""
    began = times[skip - 1][1] if skip else min(started for started, _ in times)
    return (len(times) - skip) / max(1, times[-1][1] - began) * 1e6
