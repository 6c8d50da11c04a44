"""What the tests of a PostgreSQL server's faults share."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import psycopg

from tests.process import history
from tests.process.harness import Kill, Place
from tests.servers.postgres import Server
from windlass import Job, StoreUnusable

MakePostgres = Callable[..., Server]


def execute(url: str, sql: str) -> list[tuple[Any, ...]]:
    with closing(psycopg.connect(url, autocommit=True, application_name="test")) as connection:
        found = connection.execute(sql)
        return found.fetchall() if found.description else []


def with_options(url: str, **options: object) -> str:
    return f"{url}{'&' if '?' in url else '?'}{'&'.join(f'{name}={value}' for name, value in options.items())}"


def check(place: Place, jobs: Sequence[Job], kills: Sequence[Kill] = ()) -> history.History:
    """Nothing lost, nothing ended twice, and every run accounted for."""
    found = history.History([job.id for job in jobs], place.runs(), dict(kills), history.read(place.url))
    print(history.told(found))
    assert history.breaches(found) == []
    return found


def survivors(place: Place, kills: Sequence[Kill]) -> list[int]:
    """The workers that may be killed; none while there is no server to ask."""
    try:
        return sorted(set(place.worker_pids()) - {kill.pid for kill in kills})
    except StoreUnusable:
        return []


def completed(place: Place) -> int:
    try:
        return place.count("completed")
    except StoreUnusable:
        return -1


def told(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.2f} / {statistics.median(seconds):.2f} / {max(seconds):.2f} s (min / median / max)"
