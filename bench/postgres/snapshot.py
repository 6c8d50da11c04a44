"""Old snapshot: a session reads for a long time, so that no row that is deleted meanwhile can be removed.

That is how queues on PostgreSQL collapse: each claim must skip the dead rows of all jobs that were done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import psycopg

from bench.drain import drain_in, rate
from bench.measure import alternately
from bench.report import Row, Target
from bench.scratch import Scratch
from bench.setting import Setting
from treadle.stores.postgres.url import read


def measure(setting: Setting) -> list[Row]:
    """The rate of the last jobs of many, beside the same without such a reader."""
    n, tail = setting.sizes.churn, setting.sizes.tail
    measured = alternately(
        setting,
        {
            f"the last {tail:,} of {n:,} jobs": lambda: at_the_end(setting, hold=False),
            f"the last {tail:,} of {n:,} jobs, beside an old snapshot": lambda: at_the_end(setting, hold=True),
        },
    )
    without, beside = measured.values()
    what = f"last {tail:,} of {n:,} jobs, an old snapshot held"
    return [Row.of("snapshot", "snapshot", what, "jobs/s", beside, ("without", without), Target(ratio=0.6))]


def at_the_end(setting: Setting, *, hold: bool) -> float:
    """Jobs per second at the end of a long drain."""
    scratch = setting.place.new("snapshot")
    try:
        jobs = scratch.waiting(setting.sizes.churn)
        with _held(scratch) if hold else contextlib.nullcontext():
            drain_in(setting, scratch, jobs)
        judged = max(setting.sizes.tail, 4 * setting.concurrency)  # the jobs of one batch are settled at one moment
        return rate(scratch.times(jobs), skip=max(0, jobs.n - judged))
    finally:
        scratch.close()


@contextlib.contextmanager
def _held(scratch: Scratch) -> Generator[None]:
    """Another session that holds a snapshot from now on."""
    conninfo, _ = read(scratch.url)
    with psycopg.connect(conninfo) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT count(*) FROM treadle.meta")
        yield
