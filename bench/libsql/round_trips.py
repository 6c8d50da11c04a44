"""Round trips: how many jobs a worker completes for each request that it makes of the server."""

from __future__ import annotations

import asyncio
from functools import partial

from bench.measure import Sample
from bench.report import ReportRow, Target
from bench.setting import Setting
from treadle import Treadle
from treadle.stores.libsql.store import LibSQLStore

ENOUGH = Target(ratio=50)


async def _noop(n: int) -> None:
    """Does nothing, so that only treadle's own requests are counted."""


def measure(setting: Setting) -> list[ReportRow]:
    """A drain in this process, which counts its requests. Its claims fill all slots."""
    n = setting.sizes.noop
    setting.say(f"round trips: a drain of {n:,} async no-ops")
    database = setting.backend.new("round-trips")
    store = LibSQLStore(database.url)
    app = Treadle(database.url)
    app._use(store)
    app.job(type="noop")(_noop)
    try:
        database.waiting(n)
        store.open()
        before = store.database.requests
        asyncio.run(_drain(app, setting.concurrency))
        round_trips = Sample((float(store.database.requests - before),))
    finally:
        app.close()
        database.close()
    row = partial(ReportRow.of, "round-trips", "round_trips_drain", "jobs drained, for each round trip", "jobs")
    return [row(Sample((float(n),)), ("round-trips", round_trips), ENOUGH)]


async def _drain(app: Treadle, concurrency: int) -> None:
    async with app.worker(concurrency=concurrency) as worker:
        await worker.drained()
