"""What the tests of a PostgreSQL server's faults share."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import psycopg

from tests.process import history
from tests.process.harness import Kill, Place
from tests.servers.postgres import PostgresServer
from treadle import Job
from treadle.errors import StoreUnusable

MakePostgres = Callable[..., PostgresServer]


def execute(url: str, sql: str) -> list[tuple[Any, ...]]:
    with closing(psycopg.connect(url, autocommit=True, application_name="test")) as connection:
        found = connection.execute(sql)
        return found.fetchall() if found.description else []


def with_options(url: str, **options: object) -> str:
    return f"{url}{'&' if '?' in url else '?'}{'&'.join(f'{name}={value}' for name, value in options.items())}"


def check(place: Place, jobs: Sequence[Job], kills: Sequence[Kill] = ()) -> history.History:
    """Nothing lost, nothing ended twice, and every run accounted for."""
    found = history.History([job.id for job in jobs], place.runs(), dict(kills), history.read(place.url))
    print(history.summary(found))
    assert history.breaches(found) == []
    return found


def living(place: Place) -> list[int]:
    """The workers that may be killed; none while the server is down."""
    try:
        return place.worker_pids()
    except StoreUnusable:
        return []


def completed(place: Place) -> int:
    return count(place, "completed")


def count(place: Place, *statuses: str) -> int:
    """How many jobs have one of these statuses; -1 while the server is down."""
    try:
        return sum(place.count(status) for status in statuses)
    except StoreUnusable:
        return -1


def summary(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.2f} / {statistics.median(seconds):.2f} / {max(seconds):.2f} s (min / median / max)"
