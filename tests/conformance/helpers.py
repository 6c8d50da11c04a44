"""Short helpers for what many tests do."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from tests.servers import libsql
from treadle import clock
from treadle.clock import SECOND
from treadle.errors import StoreRefused
from treadle.filters import Filter
from treadle.ids import new_id
from treadle.job import ClaimedJob, Job, NewJob, Status, Suspicion
from treadle.outcome import CANCELLED, COMPLETED, RELEASED, Outcome, OutcomeKind
from treadle.stores.base import ClaimRequest, TypePolicy, WorkerRow

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

RETRIED = Outcome(OutcomeKind.RETRIED, error="ValueError: not today", traceback="Traceback: …")
FAILED = Outcome(OutcomeKind.FAILED, error="Fail: no use", traceback="Traceback: …")
SNOOZED = Outcome(OutcomeKind.SNOOZED, charged=0)
EVERY_OUTCOME = (COMPLETED, RETRIED, FAILED, SNOOZED, CANCELLED, RELEASED)
FINAL_OUTCOMES = (COMPLETED, FAILED, CANCELLED)

UNSTORABLE = 1 << 70
"""A priority that no store can hold, and the errors for it. (The last one: on a connection of the user's.)"""
CANNOT_BE_STORED = (OverflowError, StoreRefused, psycopg.errors.NumericValueOutOfRange)

TABLES = ("jobs", "ready", "leases", "finished", "attempts", "dedupe", "types", "workers", "meta", "tallies", "usage")


class FakeClock:
    """A clock that stands still until a test moves it. It starts near now, because ids contain the time too."""

    def __init__(self) -> None:
        self.start = self.now = clock.now() // MINUTE * MINUTE

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> int:
        self.now += int(seconds * SECOND)
        return self.now

    def step_back(self, seconds: float) -> int:
        return self.advance(-seconds)


def new_job(type: str = "noop", **options: Any) -> NewJob:
    return NewJob(id=new_id(), type=type, **options)


def put(store: Any, type: str = "noop", **options: Any) -> Job:
    """Insert one job."""
    return store.insert([new_job(type, **options)])[0]


def put_many(store: Any, n: int, type: str = "noop", **options: Any) -> list[Job]:
    return store.insert([new_job(type, **options) for _ in range(n)])


def take(store: Any, limit: int = 100, worker: str = "", **wanted: Any) -> list[ClaimedJob]:
    return store.claim(worker, ClaimRequest(limit=limit, **wanted))


def put_and_take(store: Any, worker: str = "", lease_for: int | None = None, **options: Any) -> ClaimedJob:
    """Insert a job and claim it."""
    job = put(store, **options)
    (claimed,) = take(store, worker=worker, lease_for=lease_for)
    assert job.id == claimed.id
    return claimed


def settle_one(store: Any, claimed: ClaimedJob, outcome: Outcome) -> bool:
    """Settle one job, and return whether the outcome was written."""
    return not store.settle([(claimed, outcome)]).lost


def finish(store: Any, outcome: Outcome, **options: Any) -> Job:
    """A job that ended with this outcome."""
    claimed = put_and_take(store, **options)
    assert settle_one(store, claimed, outcome)
    return store.get(claimed.id)


def enlist(store: Any, worker: str = "w1", **options: Any) -> str:
    store.register(WorkerRow(id=worker, name=f"host-{worker}", concurrency=10, **options))
    return worker


def limit(store: Any, type: str, concurrency: int | None) -> None:
    store.publish([TypePolicy(type=type, concurrency=concurrency)])


def ids(things: Sequence[Any]) -> list[str]:
    return [thing.id for thing in things]


def place_of(store: Any, id: str) -> tuple[Status, int]:
    """The status and the attempts of a job: what most tests check."""
    job = store.get(id)
    return job.status, job.attempts


def suspicion_of(store: Any, worker: str = "") -> Suspicion:
    """Claim the only job in the store, and return its suspicion."""
    (claimed,) = take(store, worker=worker)
    return Suspicion(claimed.suspicion)


def everything(store: Any) -> list[Job]:
    return store.jobs(Filter(), 10_000).jobs


def snapshot(store: Any) -> tuple[Any, ...]:
    """All jobs, attempts and counts, to check that a call changed nothing."""
    jobs = everything(store)
    return jobs, [store.attempts(job.id) for job in jobs], store.counts(("status", "type", "queue")).rows


def select(store: Any, sql: str) -> list[Any]:
    """Rows of treadle's tables, which are in a schema on PostgreSQL and have a prefix on SQLite."""
    skip_outside()
    sql = sql if on_postgres(store) else sql.replace("treadle.", "treadle_")
    return store.database.read("read", lambda tx: tx.execute(sql).fetchall())


def check_consistency(store: Any) -> None:
    """Check that the tallies equal a count of the tables, and that each job is in exactly one place."""
    by = ("status", "type", "queue")
    counted: Counter[tuple[str, ...]] = Counter()
    for row in store.counts((*by, "tenant")).rows:  # there is no tally by tenant: this counts every job
        counted[tuple(row[name] for name in by)] += row["count"]
    tallied = {tuple(row[name] for name in by): row["count"] for row in store.counts(by).rows}
    assert dict(counted) == tallied

    places = " UNION ALL ".join(f"SELECT id FROM treadle.{table}" for table in ("ready", "leases", "finished"))
    placed = sorted(str(row[0]) for row in select(store, places))
    there = sorted(str(row[0]) for row in select(store, "SELECT id FROM treadle.jobs"))
    assert there == placed
    check_keys(store)


def check_keys(store: Any) -> None:
    """Check that each job without a rule of its own holds its key, and that the others do so as their rules say."""
    keys = select(store, "SELECT tenant, key, id, successor, expires_at FROM treadle.dedupe")
    ended = {row[0] for row in select(store, "SELECT id FROM treadle.finished")}
    jobs = {row[0]: row[1:] for row in select(store, "SELECT id, tenant, dedupe, dedupe_rule FROM treadle.jobs")}
    parked = {row[0] for row in select(store, "SELECT id FROM treadle.ready WHERE parked = 'key'")}
    blocked = {row[0] for row in select(store, "SELECT id FROM treadle.ready WHERE parked = 'wait'")}
    holders = {id: (tenant, key) for tenant, key, id, _, expires_at in keys if expires_at is None or id in jobs}
    assert all(jobs[id][:2] == key for id, key in holders.items())  # a throttled key outlives a job that is deleted
    assert not [id for *_, id, _, expires_at in keys if id in ended and expires_at is None]
    successors = {successor for *_, successor, _ in keys if successor is not None}
    assert parked == successors - blocked
    plain = {id for id, (_, key, rule) in jobs.items() if key is not None and rule is None and id not in ended}
    assert plain <= holders.keys()


@contextmanager
def writing(store: Any) -> Generator[None]:
    """Another connection is in a transaction and has locked every row."""
    skip_outside()
    store.open()
    if on_libsql(store):
        with libsql.writing(store.url):
            yield
        return
    if not on_postgres(store):
        with store.database.writing():
            yield
        return
    with psycopg.connect(store.url) as connection:
        for table in TABLES:
            connection.execute(f"SELECT 1 FROM treadle.{table} FOR UPDATE")
        yield


def skip_outside() -> None:
    """Skip the rest of a test that reads treadle's tables, if the store is from another project."""
    if "TREADLE_TEST_STORE" in os.environ:
        pytest.skip("looks into the tables of treadle's own stores")


def on_postgres(store: Any) -> bool:
    return store.url.startswith("postgresql")


def on_libsql(store: Any) -> bool:
    return store.url.startswith("libsql")


def by_hand(store: Any) -> Any:
    """Another connection to the same database."""
    skip_outside()
    if on_libsql(store):
        return libsql.ByHand(store.url)
    return psycopg.connect(store.url, prepare_threshold=None) if on_postgres(store) else sqlite3.connect(store.path)


def orders(store: Any) -> list[int]:
    """What another connection sees in the table of the fixture `users`."""
    with closing(by_hand(store)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]


def is_intact(store: Any) -> bool:
    """Whether SQLite finds the file intact. A server does not say, and counts as intact."""
    return on_postgres(store) or on_libsql(store) or store.check() == "ok"


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls in threads that start together. Return their results, exceptions included."""
    start = threading.Barrier(len(calls))
    answers: list[Any] = [None] * len(calls)

    def run(i: int, call: Callable[[], Any]) -> None:
        start.wait()
        try:
            answers[i] = call()
        except Exception as error:
            answers[i] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
