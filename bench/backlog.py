"""Backlog: what else is in the database must not slow a drain down.

Each scenario is drained alternately with a database that has nothing else in it, and both are filled up again by
the same rows after each drain.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bench.database import BenchDatabase
from bench.drain import drain_in
from bench.measure import alternately
from bench.report import ReportRow, Target
from bench.setting import Setting

DAY = 86_400.0
HOUR = 3_600.0


class Scenario(msgspec.Struct, frozen=True):
    key: str
    what: str
    many: bool
    put: Callable[[BenchDatabase, int], None]


def _behind(database: BenchDatabase, n: int) -> None:
    database.waiting(n)  # the drained jobs have been due for an hour, and come first


def _limited(database: BenchDatabase, n: int) -> None:
    database.held("limited")
    database.waiting(n, "limited", later=-DAY)


def _unknown(database: BenchDatabase, n: int) -> None:
    database.waiting(n, "unknown", later=-DAY)


def _future(database: BenchDatabase, n: int) -> None:
    database.waiting(n, priority=10, later=DAY)


def _finished(database: BenchDatabase, n: int) -> None:
    database.finished(n)


SCENARIOS = (
    Scenario("behind", "waiting behind", True, _behind),
    Scenario("limited", "of a type at its limit, before", False, _limited),
    Scenario("unknown", "of an unknown type, before", False, _unknown),
    Scenario("future", "future ones of higher priority", False, _future),
    Scenario("finished", "finished", True, _finished),
)


def measure(setting: Setting) -> list[ReportRow]:
    """Each scenario's drain, compared with one without it."""
    return [_measure(setting, scenario) for scenario in SCENARIOS]


def _measure(setting: Setting, scenario: Scenario) -> ReportRow:
    n = setting.sizes.many if scenario.many else setting.sizes.few
    what = f"{n:,} {scenario.what}"
    setting.say(f"backlog: preparing {what}")
    without, with_it = setting.backend.new("without"), setting.backend.new("with")
    try:
        scenario.put(with_it, n)
        measured = alternately(
            setting,
            {
                "drain without": lambda: _drain(setting, without),
                f"drain with {what}": lambda: _drain(setting, with_it),
            },
            setting.sizes.pairs,
        )
    finally:
        without.close()
        with_it.close()
    alone, with_backlog = measured.values()
    return ReportRow.of(
        "backlog", f"backlog_{scenario.key}", what, "jobs/s", with_backlog, ("without", alone), Target(ratio=0.9)
    )


def _drain(setting: Setting, database: BenchDatabase) -> float:
    return drain_in(setting, database, database.waiting(setting.sizes.backlog, later=-HOUR))
