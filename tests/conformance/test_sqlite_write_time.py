"""How long a verb keeps SQLite's only write lock, in CPU time, to which a slow disk or other programs add nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.conformance.helpers import DAY, put, put_many, take
from treadle.job import Status
from treadle.outcome import COMPLETED, Outcome, OutcomeKind
from treadle.stores.sqlite.connection import Database, Transaction
from treadle.worker.chores import OLD_IN_A_FILE

pytestmark = [pytest.mark.only("sqlite"), pytest.mark.torture]  # a time, though of CPU, depends on the machine

MOST = 0.05
MANY = 10_000
FAILED = Outcome(OutcomeKind.RETRIED, error="ValueError: no", traceback="Traceback: " + "no " * 500, delay=DAY)


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], float]:
    """Of the write transactions of a call, the seconds of CPU of the longest."""
    spent: list[float] = []
    transact = Database._transact

    def timed(self: Database, connection: Any) -> Generator[Transaction]:
        began = time.thread_time()
        yield from transact(self, connection)
        spent.append(time.thread_time() - began)

    def measure(call: Callable[[], object]) -> float:
        spent.clear()
        call()
        return max(spent)

    monkeypatch.setattr(Database, "_transact", timed)
    return measure


def stored(store: Any, n: int, **options: Any) -> list[str]:
    return [job.id for _ in range(n // 1000) for job in put_many(store, 1000, **options)]


def test_a_job_with_very_many_parents(store, longest):
    parents = tuple(stored(store, MANY))

    assert min(longest(lambda: put(store, after=parents)) for _ in range(3)) < MOST


def test_a_cancel_that_very_many_jobs_follow(store, longest):
    parent = put(store)
    children = stored(store, MANY, after=(parent.id,), if_failed="cancel")

    def cancel() -> None:
        store.cancel(parent.id)
        for _ in range(MANY // 100):  # each claim lets some of them go
            assert take(store) == []

    assert longest(cancel) < MOST
    assert {store.get(id).status for id in children[::100]} == {Status.CANCELLED}


@pytest.mark.parametrize("failures", [0, 4])
def test_a_prune_of_very_many_jobs(store, clock, longest, failures):
    stored(store, MANY)
    for outcome in [FAILED] * failures + [COMPLETED]:
        while claimed := take(store, 500):
            store.settle([(one, outcome) for one in claimed])
        clock.now += DAY

    def prune() -> None:
        while store.prune((Status.COMPLETED,), 0, OLD_IN_A_FILE):
            pass

    assert longest(prune) < MOST


def test_a_prune_of_very_much_usage(store, by_hand, longest):
    by_hand(
        "INSERT INTO treadle_usage (minute, type, queue, tenant, runs, failures, busy, waiting)"
        " WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)"
        " SELECT i * 60, 'mail', 'default', '', 1, 0, 1, 1 FROM n"
    )

    assert longest(lambda: store.prune((Status.COMPLETED,), 0, OLD_IN_A_FILE)) < MOST
