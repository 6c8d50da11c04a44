"""Prune: old jobs are deleted as fast as new ones are completed, by the chore of the worker that completes them."""

from __future__ import annotations

from functools import partial

from bench.control import PAIRS
from bench.drain import rate
from bench.measure import Sample, alternately
from bench.report import ReportRow, Target
from bench.setting import Setting
from bench.workers import wait_for, working

MONTH = 30 * 86_400.0
OLD = 2
"""Old jobs for each one that waits."""


def measure(setting: Setting) -> list[ReportRow]:
    """Old jobs can be pruned, young ones cannot. The same worker meets the same number of either."""
    n, pruned = setting.sizes.noop, list[float]()
    with_prune, without = alternately(
        setting,
        {
            f"drain: {n:,} jobs while old ones are pruned": partial(_drain, setting, n, MONTH, pruned),
            f"drain: {n:,} jobs beside young ones": partial(_drain, setting, n, 0.0, []),
        },
        min(PAIRS, setting.sizes.pairs),
    ).values()
    return [
        ReportRow.of(
            *("prune", "prune_rate", "pruned meanwhile", "jobs/s"),
            *(Sample(tuple(pruned)), ("drained", with_prune), Target(ratio=1.2)),
        ),
        ReportRow.of(
            *("prune", "prune_cost", "drain meanwhile", "jobs/s"),
            *(with_prune, ("without", without), Target(ratio=0.85)),
        ),
    ]


def _drain(setting: Setting, n: int, ago: float, pruned: list[float]) -> float:
    """Jobs per second, in a new database; and how many were pruned in each second until the last one was completed."""
    database = setting.backend.new("prune")
    try:
        database.finished(OLD * n, "old", ago=ago)
        jobs = database.waiting(n)
        with working(database, 1, setting.concurrency) as workers:
            wait_for(workers, lambda: database.completed(jobs.type), n)
            left = database.completed("old")
        drained = rate(database.times(jobs))
        pruned.append((OLD * n - left) * drained / n)
        return drained
    finally:
        database.close()
