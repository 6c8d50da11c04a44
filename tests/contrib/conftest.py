"""An app on a database of its own, of each kind, traced and measured by the real SDK into memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stores
from treadle import Treadle


def pytest_configure(config: pytest.Config) -> None:
    stores.add_marker(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "treadle_url", stores.KINDS[:2])


@pytest.fixture
def treadle_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/treadle.db"
    url: str = request.getfixturevalue("postgres_databases").reused(stores.make_tables)
    return url


@pytest.fixture
def td(treadle_url: str) -> Iterator[Treadle]:
    app = Treadle(treadle_url, **stores.quick(treadle_url))
    yield app
    app.close()
