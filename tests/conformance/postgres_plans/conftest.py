"""The plans of statements whose cost must not grow with unrelated rows, at 200,000 waiting jobs.

A plan is made from statistics, which may be missing or old when a queue fills up. Each statement is checked with
fresh ones, with none, and with those of empty tables; and as a prepared statement, which is planned without values.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.conformance.postgres_plans.database import BATCH, FILL, FILL_BY_TURNS, OURS, STATISTICS
from tests.conformance.postgres_plans.plan import Explain
from tests.stores import make_tables
from treadle.stores.postgres.sql import BEGIN

PLANS = {"custom": "force_custom_plan", "generic": "force_generic_plan"}


@pytest.fixture(scope="package")
def filled(postgres_databases) -> Iterator[str]:
    """A database with many jobs, which takes seconds to fill. No test commits a change to it."""
    url = postgres_databases.fresh()
    make_tables(url)
    with psycopg.connect(url, autocommit=True) as connection:
        for table in OURS:  # autovacuum must not refresh the statistics
            connection.execute(f"ALTER TABLE treadle.{table} SET (autovacuum_enabled = false)")
        connection.execute(FILL)
        connection.execute(FILL_BY_TURNS)
    yield url
    postgres_databases.drop(url)


@pytest.fixture(scope="package", params=STATISTICS)
def statistics(filled, request) -> str:
    with psycopg.connect(filled, autocommit=True) as connection:
        connection.execute(STATISTICS[request.param])
    return filled


@pytest.fixture(params=PLANS)
def explain(statistics, request) -> Iterator[Explain]:
    with psycopg.connect(statistics, autocommit=True) as connection:
        connection.execute(f"SET plan_cache_mode = {PLANS[request.param]}")
        connection.execute(BEGIN)
        yield Explain(connection)
        connection.execute("ROLLBACK")


@pytest.fixture
def held(explain):
    """A batch of leases, one of which the caller has lost."""
    rows = explain.connection.execute(f"SELECT id::text, lease FROM treadle.leases ORDER BY lease LIMIT {BATCH}")
    (*ours, (lost, number)) = rows.fetchall()
    return [*ours, (lost, number + 1_000_000)]
