"""Jobs of the type `fair`, whose tenants take turns."""

from __future__ import annotations

from typing import Any

from tests.conformance.helpers import ids, new_job, select, take
from treadle.outcome import COMPLETED

BIG, SMALL = "big", "small"


def put_fair(store: Any, tenant: str, n: int = 1, **options: Any) -> list[str]:
    options = {"type": "fair", "fair": "tenant", **options}
    return ids(store.insert([new_job(tenant=tenant, **options) for _ in range(n)]))


def tenants(claimed: Any) -> list[str]:
    return [c.tenant for c in claimed]


def waiting(store: Any) -> dict[str, int]:
    """How many rows are in which index."""
    return dict(select(store, "SELECT parked, count(*) FROM treadle.ready GROUP BY parked"))


def drain(store: Any, limit: int, most: int = 10_000, **wanted: Any) -> list[str]:
    """The tenants of all jobs, in the order in which claims of `limit` took them."""
    order: list[str] = []
    while len(order) < most and (claimed := take(store, limit, **wanted)):
        order += tenants(claimed)
        store.settle([(c, COMPLETED) for c in claimed])
    return order
