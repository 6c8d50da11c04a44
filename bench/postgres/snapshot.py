"""Old snapshot: a session reads for a long time, so that no row deleted in that time can be removed.

That is how queues on PostgreSQL collapse: each claim must skip the dead rows of all jobs that were done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import psycopg

from bench.database import BenchDatabase
from bench.drain import drain_in, rate
from bench.measure import alternately
from bench.report import ReportRow, Target
from bench.setting import Setting
from treadle.stores.postgres.url import read


def measure(setting: Setting) -> list[ReportRow]:
    """The rate of the last jobs of many, compared with the same without such a reader."""
    n, tail = setting.sizes.churn, setting.sizes.tail
    measured = alternately(
        setting,
        {
            f"the last {tail:,} of {n:,} jobs": lambda: at_the_end(setting, hold=False),
            f"the last {tail:,} of {n:,} jobs, with an old snapshot": lambda: at_the_end(setting, hold=True),
        },
    )
    without, with_reader = measured.values()
    what = f"last {tail:,} of {n:,} jobs, an old snapshot held"
    return [ReportRow.of("snapshot", "snapshot", what, "jobs/s", with_reader, ("without", without), Target(ratio=0.6))]


def at_the_end(setting: Setting, *, hold: bool) -> float:
    """Jobs per second at the end of a long drain."""
    database = setting.backend.new("snapshot")
    try:
        jobs = database.waiting(setting.sizes.churn)
        with _held(database) if hold else contextlib.nullcontext():
            drain_in(setting, database, jobs)
        judged = max(setting.sizes.tail, 4 * setting.concurrency)  # the jobs of one batch are settled at one moment
        return rate(database.times(jobs), skip=max(0, jobs.n - judged))
    finally:
        database.close()


@contextlib.contextmanager
def _held(database: BenchDatabase) -> Generator[None]:
    """Another session that holds a snapshot from now on."""
    conninfo, _ = read(database.url)
    with psycopg.connect(conninfo) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT count(*) FROM treadle.meta")
        yield
