"""What pages read. It is cached for a moment, for all readers; what takes long to read is kept longer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from treadle import diagnosis
from treadle.diagnosis import Problem
from treadle.filters import Filter
from treadle.job import Count, FailureGroup, Latency, Usage
from treadle.management import recent_usage
from treadle.stores.base import WorkerRow
from treadle.stores.rows import QueueStats
from treadle.web.pages.usage import Window
from treadle.web.site import Site

SECONDS = 0.5
SHARE = 0.05
"""At most this part of the time goes into reading one of these."""
LIVE_SHARE = 0.2
"""The same for what people watch: it is cheap at any size, and must be true within a second."""
MAX_COUNTED = 100_000
"""Jobs that are read to count by tenant."""

T = TypeVar("T")


def _cached(site: Site, key: Hashable, make: Callable[[], T], share: float = SHARE) -> T:
    found: T = site.cached(("page", key), SECONDS, make, share=share)
    return found


def queues(site: Site) -> list[QueueStats]:
    return _cached(site, "queues", site.app.queue_stats, LIVE_SHARE)


def workers(site: Site) -> list[WorkerRow]:
    return _cached(site, "workers", site.app.workers, LIVE_SHARE)


def failures(site: Site) -> list[FailureGroup]:
    return _cached(site, "failures", site.app.failures)


def problems(site: Site) -> list[Problem]:
    def make() -> list[Problem]:
        now = site.app.store.now()
        return diagnosis.problems(queues(site), workers(site), recent_usage(site.app.store, now), now)

    return _cached(site, "problems", make, LIVE_SHARE)


def latency(site: Site) -> dict[str, Latency]:
    return _cached(site, "latency", site.app.latency)


def counts_by_state(site: Site, wanted: Filter) -> dict[str, Count]:
    return _cached(site, ("counts", str(wanted)), lambda: site.app.counts_by_state(wanted))


def usage(site: Site, over: Window, by: tuple[str, ...], tenant: str | None = None) -> list[Usage]:
    def make() -> list[Usage]:
        return site.app.usage(over.since, over.until, by=by, step=over.step, tenant=tenant)

    return _cached(site, ("usage", over, by, tenant), make)


def tenants(site: Site) -> dict[str, dict[str, int]]:
    """How many jobs each tenant has in each state."""

    def make() -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for row in site.app.counts(("tenant", "state"), at_most=MAX_COUNTED):
            found.setdefault(row["tenant"], {})[row["state"]] = row["count"]
        return found

    return _cached(site, "tenants", make)
