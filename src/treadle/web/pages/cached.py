"""What pages look at. It is kept for a moment, for all who look; what takes long is kept longer."""

from __future__ import annotations

from typing import Any

from treadle import diagnosis
from treadle.diagnosis import Problem
from treadle.filters import Filter
from treadle.job import Count, FailureGroup, Latency, Usage
from treadle.management import recent_usage
from treadle.stores.base import WorkerRow
from treadle.stores.rows import QueueStats
from treadle.web.pages.windows import Window
from treadle.web.site import Site

MOMENT = 0.5
SHARE = 0.05
"""Of the time, at most, that is spent on making one of these."""
LIVELY = 0.2
"""The same for what people watch: it is cheap at any size, and has to be true within a second."""
COUNTED = 100_000
"""Jobs that are looked at to count by tenant."""


def _kept(site: Site, key: Any, make: Any, share: float = SHARE) -> Any:
    return site.cached(("seen", key), MOMENT, make, share=share)


def lanes(site: Site) -> list[QueueStats]:
    found: list[QueueStats] = _kept(site, "lanes", site.app.queue_stats, LIVELY)
    return found


def workers(site: Site) -> list[WorkerRow]:
    found: list[WorkerRow] = _kept(site, "workers", site.app.workers, LIVELY)
    return found


def failures(site: Site) -> list[FailureGroup]:
    found: list[FailureGroup] = _kept(site, "failures", site.app.failures)
    return found


def problems(site: Site) -> list[Problem]:
    def make() -> list[Problem]:
        now = site.app.store.now()
        return diagnosis.problems(lanes(site), workers(site), recent_usage(site.app.store, now), now)

    found: list[Problem] = _kept(site, "problems", make, LIVELY)
    return found


def latency(site: Site) -> dict[str, Latency]:
    found: dict[str, Latency] = _kept(site, "latency", site.app.latency)
    return found


def tabs(site: Site, wanted: Filter) -> dict[str, Count]:
    found: dict[str, Count] = _kept(site, ("tabs", str(wanted)), lambda: site.app.counts_by_state(wanted))
    return found


def usage(site: Site, over: Window, by: tuple[str, ...], tenant: str | None = None) -> list[Usage]:
    def make() -> list[Usage]:
        return site.app.usage(over.since, over.until, by=by, step=over.step, tenant=tenant)

    found: list[Usage] = _kept(site, ("usage", over, by, tenant), make)
    return found


def tenants(site: Site) -> dict[str, dict[str, int]]:
    """How many jobs each has in each state."""

    def make() -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for row in site.app.counts(("tenant", "state"), at_most=COUNTED):
            found.setdefault(row["tenant"], {})[row["state"]] = row["count"]
        return found

    counted: dict[str, dict[str, int]] = _kept(site, "tenants", make)
    return counted
