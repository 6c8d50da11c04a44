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

RATED = Target(ratio=0.8)
"""Each claim of such a type also deletes and inserts a row: the tokens that are left."""


def measure(setting: Setting) -> list[ReportRow]:
    return [_measure(setting, "noop", "jobs", Target(ratio=0.6)), _measure(setting, "rated", "rated jobs", RATED)]


def _measure(setting: Setting, type: str, jobs: str, target: Target) -> ReportRow:
    """The rate of the last jobs of many, compared with the same without such a reader."""
    what = f"last {setting.sizes.tail:,} of {setting.sizes.churn:,} {jobs}"
    without, with_reader = alternately(
        setting,
        {
            f"the {what}": lambda: at_the_end(setting, type, hold=False),
            f"the {what}, with an old snapshot": lambda: at_the_end(setting, type, hold=True),
        },
    ).values()
    key = "snapshot" if type == "noop" else f"snapshot_{type}"
    words = f"{what}, an old snapshot held"
    return ReportRow.of("snapshot", key, words, "jobs/s", with_reader, ("without", without), target)


def at_the_end(setting: Setting, type: str, *, hold: bool) -> float:
    """Jobs per second at the end of a long drain."""
    database = setting.backend.new("snapshot")
    try:
        jobs = database.waiting(setting.sizes.churn, type)
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
