"""What a filter can say: its keys, and values that jobs have. For the suggestions in the filter box."""

from __future__ import annotations

import msgspec

from treadle.filters import EVERYTHING
from treadle.job import STATE_NAMES
from treadle.web.route import Request, get

MAX_JOBS = 2_000
"""The newest jobs: their types, queues and tenants are suggested."""
MAX_VALUES = 50
"""Values of one key, those of the most jobs."""
SECONDS, SHARE = 5.0, 0.05
OTHERS = ("subject:", "worker:", "id:", "payload.", "attempt:>", "error:", "since:1h", "since:24h", "until:")
"""Keys whose values are not suggested."""
NAMED = {"type": "types", "queue": "queues", "tenant": "tenants"}


class Terms(msgspec.Struct, kw_only=True):
    """Terms of a filter, and beginnings of such."""

    items: list[str]


@get("/api/filter-terms", "What a filter can say: its keys, and values of the newest jobs")
def filter_terms(request: Request) -> Terms:
    """A value is written as a filter has it, with quotes where it needs them."""
    found = known_values(request)
    named = [str(EVERYTHING.replace(**{NAMED[key]: (value,)})) for key in NAMED for value in found[key] if value]
    statuses = [f"status:{name}" for name in ("pending", *STATE_NAMES)]
    return Terms(items=[*statuses, *(f"{key}:" for key in NAMED), *named, *OTHERS])


def known_values(request: Request) -> dict[str, list[str]]:
    """Types, queues and tenants of the newest jobs that the caller may see, the most frequent first."""
    return request.cached("filter terms", SECONDS, lambda: _read(request), share=SHARE)


def _read(request: Request) -> dict[str, list[str]]:
    rows = request.jobs.counts(tuple(NAMED), EVERYTHING, MAX_JOBS).rows
    found: dict[str, list[str]] = {}
    for key in NAMED:
        counts: dict[str, int] = {}
        for row in rows:
            counts[row[key]] = counts.get(row[key], 0) + row["count"]
        found[key] = sorted(counts, key=lambda value: (-counts[value], value))[:MAX_VALUES]
    return found
