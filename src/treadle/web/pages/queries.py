"""What pages read. It is cached for a moment, for all readers; what takes long to read is kept longer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TypeVar

from treadle.app import Treadle
from treadle.filters import Filter
from treadle.job import Backlog, Count, Usage
from treadle.management import all_problems
from treadle.problems import Problem
from treadle.web.api.stats import LIVE_SHARE, MAX_COUNTED, QUERY_SHARE, queue_stats
from treadle.web.pages.usage_charts import Window
from treadle.web.route import Request

SECONDS = 0.5

T = TypeVar("T")


def _cached(request: Request, key: Hashable, make: Callable[[], T], share: float = QUERY_SHARE) -> T:
    return request.cached(("page", key), SECONDS, make, share=share)


def _reads(key: str, read: Callable[[Treadle], T], share: float = QUERY_SHARE) -> Callable[[Request], T]:
    return lambda request: _cached(request, key, lambda: read(request.app), share)


def _tenants(app: Treadle) -> Mapping[str, Mapping[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in app.counts(("tenant", "state"), at_most=MAX_COUNTED):
        found.setdefault(row["tenant"], {})[row["state"]] = row["count"]
    return found


queues = queue_stats
workers = _reads("workers", Treadle.workers, LIVE_SHARE)
pauses = _reads("pauses", Treadle.pauses, LIVE_SHARE)
failures = _reads("failures", Treadle.failures)
latency = _reads("latency", Treadle.latency)
tenants = _reads("tenants", _tenants)
"""How many jobs each tenant has in each state."""


def problems(request: Request) -> list[Problem]:
    def make() -> list[Problem]:
        found = queues(request), workers(request), pauses(request)
        return all_problems(request.app.store, *found, request.app.redactor)

    return _cached(request, "problems", make, LIVE_SHARE)


def counts_by_state(request: Request, wanted: Filter) -> dict[str, Count]:
    return _cached(request, ("counts", str(wanted)), lambda: request.jobs.counts_by_state(wanted))


def backlog(request: Request, over: Window) -> list[Backlog]:
    make = partial(request.app.backlog, over.since, over.until, step=over.step)
    return _cached(request, ("backlog", over), make)


def usage(
    request: Request,
    over: Window,
    by: tuple[str, ...] = (),
    tenant: str | None = None,
    type: str | None = None,
    at_most: int | None = None,
) -> list[Usage]:
    make = partial(
        request.jobs.usage, over.since, over.until, by=by, step=over.step, tenant=tenant, type=type, at_most=at_most
    )
    return _cached(request, ("usage", over, by, tenant, type, at_most), make)
