"""Databases with a table of the user, on the server that all tests share."""

from __future__ import annotations

import psycopg
import pytest

from treadle.stores.postgres.store import PostgresStore


def with_orders(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text)")


def other_with_orders(url: str) -> None:
    with_orders(url)


def with_orders_and_jobs(url: str) -> None:
    with_orders(url)
    store = PostgresStore(url)
    store.open()
    store.close()


@pytest.fixture
def postgres_url(postgres_databases) -> str:
    return postgres_databases.reused(with_orders)


@pytest.fixture
def other_url(postgres_databases) -> str:
    """The URL of another database on the same server."""
    return postgres_databases.reused(other_with_orders)


@pytest.fixture
def jobs_url(postgres_databases) -> str:
    """The URL of a database that has treadle's tables too."""
    return postgres_databases.reused(with_orders_and_jobs)
