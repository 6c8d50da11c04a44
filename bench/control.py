"""Control: what limits and very many types cost, compared with the same jobs without them.

Limits: claims of 200 jobs and their settle, one after the other in this process, so that only the store is measured.
Types: a worker process drains them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from bench import work_types
from bench.database import BenchDatabase
from bench.measure import alternately
from bench.report import ReportRow, Target
from bench.setting import Setting
from bench.workers import WORK, wait_for, working
from treadle import Limit, Rate, Treadle
from treadle.codec import as_json
from treadle.ids import new_id
from treadle.job import NewJob
from treadle.outcome import COMPLETED
from treadle.stores.base import ClaimRequest, TypePolicy

PAIRS = 5
CLAIMED = 200
HALF = Target(ratio=0.5)
FAST = Rate(100_000, burst=100_000)
"""A rate that stops no job: what it costs is the count."""
LIMITS: dict[str, tuple[str, int, Limit]] = {
    "shared": ("a limit of 10,000 at once", 1, Limit("api", 10_000)),
    "key": ("... per tenant, one tenant", 1, Limit("api", 10_000, per="tenant")),
    "rate_20": ("a rate per tenant, 20 tenants", 20, Limit("api", rate=FAST, per="tenant")),
    "keys_200": ("one at once per tenant, 200 tenants", 200, Limit("api", 1, per="tenant")),
}
"""What is limited, the number of tenants, and the limit."""


def measure(setting: Setting) -> list[ReportRow]:
    return [*(_limited(setting, key) for key in LIMITS), _types(setting)]


def _limited(setting: Setting, key: str) -> ReportRow:
    what, tenants, limit = LIMITS[key]
    limited, unlimited = alternately(
        setting,
        {
            f"claim and settle: {what}": partial(_loop, setting, tenants, [limit]),
            f"... {tenants} tenants without it": partial(_loop, setting, tenants, []),
        },
        min(PAIRS, setting.sizes.pairs),
    ).values()
    return ReportRow.of("control", f"limit_{key}", what, "jobs/s", limited, ("unlimited", unlimited), HALF)


def _loop(setting: Setting, tenants: int, limits: list[Limit]) -> float:
    """Jobs per second, in a new database."""
    n, database = setting.sizes.noop_thread // 2, setting.backend.new("limits")
    app = Treadle(database.url)
    try:
        app.store.publish([TypePolicy(type="noop", limits=as_json(limits))])
        fill(app, database, n, lambda i: ("noop", str(i % tenants)))
        left, began = n, time.perf_counter()
        while left:
            claimed = app.store.claim("", ClaimRequest(limit=CLAIMED))
            left -= len(app.store.settle([(one, COMPLETED) for one in claimed]).written)
        return n / (time.perf_counter() - began)
    finally:
        app.close()
        database.close()


def _types(setting: Setting) -> ReportRow:
    one, many = alternately(
        setting,
        {
            "drain: one type": partial(_drain, setting, WORK, lambda n: ("noop", "")),
            f"drain: {work_types.TYPES:,} types": partial(
                _drain, setting, work_types.__name__, lambda n: (work_types.name(n), "")
            ),
        },
        min(PAIRS, setting.sizes.pairs),
    ).values()
    what = f"drain over {work_types.TYPES:,} types"
    return ReportRow.of("control", "drain_types", what, "jobs/s", many, ("one type", one), HALF)


def _drain(setting: Setting, module: str, kind: Callable[[int], tuple[str, str]]) -> float:
    """Jobs per second, in a new database."""
    database = setting.backend.new("types")
    app = Treadle(database.url)
    try:
        fill(app, database, setting.sizes.noop_thread, kind)
        with working(database, 1, setting.concurrency, module=module) as workers:
            wait_for(workers, lambda: -database.left(), 0, every=0.1)
        return database.rate()
    finally:
        app.close()
        database.close()


def fill(app: Treadle, database: BenchDatabase, n: int, kind: Callable[[int], tuple[str, str]]) -> list[str]:
    """Jobs that wait. `kind`: the type and the tenant of each."""
    jobs = [
        NewJob(id=new_id(), type=type, tenant=tenant, payload=f'{{"n":{i}}}')
        for i, (type, tenant) in enumerate(map(kind, range(n)))
    ]
    insert(app, database, jobs)
    return [job.id for job in jobs]


def insert(app: Treadle, database: BenchDatabase, jobs: Iterable[NewJob]) -> None:
    left = iter(jobs)
    while some := list(islice(left, 1_000)):
        app.store.insert(some)
    database.tidy()
