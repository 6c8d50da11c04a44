"""What a worker and a producer open, in a database of several tenants."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.helpers import (
    check_consistency,
)
from tests.conformance.tenants.place import (
    Place,
)
from treadle.stores.postgres.store import PostgresStore


@pytest.fixture
def place(postgres_url: str) -> Iterator[Place]:
    made = Place(postgres_url)
    yield made
    made.drop()


@pytest.fixture
def store(place: Place) -> Iterator[PostgresStore]:
    """What a worker opens."""
    opened = PostgresStore(place.url("worker"))
    yield opened
    check_consistency(opened)
    opened.close()


@pytest.fixture
def producer(place: Place) -> Iterator[PostgresStore]:
    opened = PostgresStore(place.url("producer"))
    yield opened
    opened.close()
