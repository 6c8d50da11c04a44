"""What background work costs, and how reliable it is, per organization."""

from __future__ import annotations

import json
import logging
from collections import Counter
from datetime import timedelta
from typing import NamedTuple

from treadle import Event, Treadle

log = logging.getLogger("org_jobs.metering")

PRICE = 0.0001
"""Per second in a handler."""


class Bill(NamedTuple):
    org: str
    runs: int
    failures: int
    busy: float
    waiting: float

    @property
    def cost(self) -> float:
        return self.busy * PRICE


def emit(event: Event) -> None:
    """Log a usage event for each run. Hooks are called at most once, so use them for monitoring only."""
    fields = ("id", "type", "attempt", "busy", "waiting", "error")
    usage = {"event": event.name, "org_id": event.tenant} | {name: getattr(event, name) for name in fields}
    log.info(json.dumps(usage))


def meter(td: Treadle) -> None:
    for event in ("job_completed", "job_retried", "job_failed"):
        td.on(event, emit)


def bills(td: Treadle, since: timedelta = timedelta(days=1)) -> list[Bill]:
    """For billing: usage is stored in the transaction of each outcome, so it is exact."""
    sums: dict[str, Counter[str]] = {}
    for row in td.usage(since, by=("tenant",), step=3600):
        spent = sums.setdefault(row.key[0], Counter())
        for kind in Bill._fields[1:]:
            spent[kind] += getattr(row, kind)
    return [Bill(org, *(spent[kind] for kind in Bill._fields[1:])) for org, spent in sorted(sums.items()) if org]
