"""Claims: what very many types, full keys, tenants that take turns, and pauses cost the claims of other jobs.

Claims of 200 jobs, one after the other in this process, so that only the store is measured. What is compared stays in
two databases, which are filled up again by the same rows after each run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple

from bench.control import CLAIMED, HALF, PAIRS, insert
from bench.database import BenchDatabase
from bench.measure import alternately
from bench.report import ReportRow, Target
from bench.setting import Setting
from treadle import Limit, Treadle
from treadle.codec import as_json
from treadle.ids import new_id
from treadle.job import NewJob
from treadle.outcome import COMPLETED
from treadle.stores.base import ClaimRequest, TypePolicy

QUEUES = 10
"""Queues of the pairs, unless there are fewer pairs."""


class Prepared(NamedTuple):
    """A database with jobs in it, and how those are made that are added for each run."""

    app: Treadle
    database: BenchDatabase
    job: Callable[[int], NewJob]

    def add(self, n: int, job: Callable[[int], NewJob] | None = None) -> None:
        insert(self.app, self.database, map(job or self.job, range(n)))


def measure(setting: Setting) -> list[ReportRow]:
    return [*_pairs(setting), _full_keys(setting), *_fair(setting), _pauses(setting), _why(setting)]


def _pairs(setting: Setting) -> list[ReportRow]:
    """CPU of this process and of the server's sessions, if the server is on this machine."""
    most = setting.sizes.keys
    claims = setting.sizes.few // 2 // PAIRS // CLAIMED  # the second half stays, so that no pair ends
    with contextlib.ExitStack() as stack:
        runs = {}
        for pairs in (1, most // 10, most):
            what = f"{pairs:,} pairs of queue and type"
            prepared = stack.enter_context(_database(setting, f"pairs-{pairs}", what, partial(_of_pair, pairs)))
            prepared.add(setting.sizes.few)
            runs[f"claims: {what}"] = partial(_cpu, prepared, pairs, claims)
        one, some, many = alternately(setting, runs, min(PAIRS, setting.sizes.pairs)).values()
    compared = ("one pair", one)
    return [
        ReportRow.of("claims", "pairs_some", _cpu_of(most // 10), "ms", some, compared, Target(at_most=5)),
        ReportRow.of("claims", "pairs_many", _cpu_of(most), "ms", many, compared, Target(at_most=10)),
    ]


def _cpu_of(pairs: int) -> str:
    return f"CPU of a claim, {pairs:,} pairs of queue and type"


def _of_pair(pairs: int, i: int) -> NewJob:
    """Neighbors are of different pairs, so that a claim meets as many as it can."""
    queues, pair = min(QUEUES, pairs), i % pairs
    return NewJob(id=new_id(), queue=f"q{pair % queues}", type=f"t{pair // queues}", payload="{}")


def _cpu(prepared: Prepared, pairs: int, claims: int) -> float:
    """Milliseconds of CPU that a claim uses. What it claimed is settled afterwards."""
    store, cpu = prepared.app.store, prepared.database.cpu
    types = dict.fromkeys(prepared.job(i).type for i in range(pairs))
    request = ClaimRequest(limit=CLAIMED, types=types)
    used = time.process_time() + cpu()
    claimed = [store.claim("", request) for _ in range(claims)]
    took = time.process_time() + cpu() - used
    for some in claimed:
        assert len(store.settle([(one, COMPLETED) for one in some]).written) == CLAIMED
    return took / claims * 1000


def _full_keys(setting: Setting) -> ReportRow:
    keys, few, free = setting.sizes.keys - 1, setting.sizes.few, partial(_noop, tenant="free")
    what = f"one free key behind {few:,} jobs of {keys:,} full ones"
    with (
        _database(setting, "limited", what, free) as limited,
        _database(setting, "free", "no limit", free) as unlimited,
    ):
        app = limited.app
        app.store.publish([TypePolicy(type="noop", limits=as_json([Limit("api", 1, per="tenant")]))])
        app.limits.set("api", key="free", concurrency=CLAIMED)
        limited.add(keys + few, _of_tenants(keys))
        unlimited.add(few, _of_tenants(keys))
        while app.store.claim("", ClaimRequest(limit=1_000)):
            pass  # the places of all keys but one are taken now, and stay so
        return _compare(setting, "full_keys", what, limited, ("unlimited", unlimited), HALF)


def _fair(setting: Setting) -> list[ReportRow]:
    """Jobs of a declared type wait by turns from the start. Those that were stored before that are moved there by the
    claims."""
    keys = setting.sizes.keys
    turns = f"{keys:,} tenants that take turns"
    return [
        _turns(setting, "fair", turns, _of_tenants(keys, fair="tenant")),
        _turns(setting, "fair_by_name", f"{turns}, stored before that", _of_tenants(keys)),
    ]


def _turns(setting: Setting, key: str, what: str, job: Callable[[int], NewJob]) -> ReportRow:
    few = setting.sizes.few
    with (
        _database(setting, key, what, job) as fair,
        _database(setting, "unfair", "one tenant", _noop) as unfair,
    ):
        fair.app.store.publish([TypePolicy(type="noop", fair="tenant")])
        fair.add(few)
        unfair.add(few)
        return _compare(setting, key, what, fair, ("one, unfair", unfair), HALF)


def _pauses(setting: Setting) -> ReportRow:
    few = setting.sizes.few
    what = f"two paused queues of {few:,} jobs, a paused tenant"
    with _database(setting, "paused", what, _noop) as paused, _database(setting, "free", "no pauses", _noop) as plain:
        for queue in ("a", "b"):
            paused.app.pause(queue=queue)
            paused.add(few, partial(_noop, queue=queue))
        paused.app.pause(tenant="paused")
        paused.add(few // 10, partial(_noop, tenant="paused"))
        return _compare(setting, "pauses", what, paused, ("without", plain), Target(ratio=0.95), setting.sizes.pairs)


def _why(setting: Setting) -> ReportRow:
    """Of the last job: all others are before it."""
    n = setting.sizes.many
    what = f"why, with {n:,} waiting"
    with _database(setting, "why", what, _noop) as (app, database, _):
        jobs = database.waiting(n)
        ask = partial(_milliseconds, lambda: app.why(f"{jobs.prefix}{n - 1:012x}"))
        [took] = alternately(setting, {what: ask}, PAIRS).values()
    return ReportRow.of("claims", "why", what, "ms", took, target=Target(below=50))


def _compare(
    setting: Setting,
    key: str,
    what: str,
    prepared: Prepared,
    compared_with: tuple[str, Prepared],
    target: Target,
    most: int = PAIRS,
) -> ReportRow:
    """Jobs are added, and as many are claimed and settled."""
    n, (name, other) = setting.sizes.noop_thread // 2, compared_with
    runs = {f"claim and settle: {what}": partial(_rate, prepared, n), f"... {name}": partial(_rate, other, n)}
    sample, without = alternately(setting, runs, min(most, setting.sizes.pairs)).values()
    return ReportRow.of("claims", key, what, "jobs/s", sample, (name, without), target)


def _rate(prepared: Prepared, n: int) -> float:
    """Jobs per second."""
    prepared.add(n)
    store, left, began = prepared.app.store, n, time.perf_counter()
    while left:
        claimed = store.claim("", ClaimRequest(limit=min(left, CLAIMED)))
        left -= len(store.settle([(one, COMPLETED) for one in claimed]).written)
    return n / (time.perf_counter() - began)


@contextlib.contextmanager
def _database(setting: Setting, name: str, what: str, job: Callable[[int], NewJob]) -> Generator[Prepared]:
    setting.say(f"claims: preparing {what}")
    database = setting.backend.new(name)
    app = Treadle(database.url)
    try:
        yield Prepared(app, database, job)
    finally:
        app.close()
        database.close()


def _of_tenants(tenants: int, fair: str = "") -> Callable[[int], NewJob]:
    return lambda i: _noop(i, str(i % tenants), fair=fair)


def _noop(_: int, tenant: str = "", queue: str = "default", fair: str = "") -> NewJob:
    return NewJob(id=new_id(), type="noop", tenant=tenant, queue=queue, fair=fair, payload="{}")


def _milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000
