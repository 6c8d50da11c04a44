"""An app on a database of its own, of each kind. When the test is over, its books must balance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stores
from tests.conformance.helpers import check_books
from tests.worker import process_jobs
from windlass import Windlass
from windlass.stores import open_store
from windlass.testing import ManualClock


def pytest_configure(config: pytest.Config) -> None:
    stores.add_marker(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "windlass_url")


@pytest.fixture
def windlass_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own. Asked for by name, so that tests on SQLite alone need no server."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/windlass.db"
    if request.param == "libsql":
        server: str = request.getfixturevalue("libsql_url")
        return server
    url: str = request.getfixturevalue("postgres_databases").reused(stores.make_tables)
    return url


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled jobs and progress are looked at every half second; tests have less time."""
    monkeypatch.setattr("windlass.worker.worker.FLAGS", 0.02)


@pytest.fixture
def wl(windlass_url: str) -> Iterator[Windlass]:
    app = Windlass(windlass_url, **stores.quick(windlass_url))
    yield app
    check_books(app.store)
    app.close()


@pytest.fixture
def timed(windlass_url: str, windlass_clock: ManualClock) -> Iterator[Windlass]:
    """An app whose time is the test's."""
    app = Windlass(windlass_url, clock=windlass_clock, **stores.quick(windlass_url))
    yield app
    check_books(app.store)
    app.close()


@pytest.fixture
def in_children(windlass_url: str) -> Iterator[Windlass]:
    """The app of `process_jobs`, on this test's database."""
    app, before = process_jobs.wl, process_jobs.wl.store
    app.use(open_store(windlass_url, **stores.quick(windlass_url)))
    yield app
    check_books(app.store)
    app.close()
    app.use(before)
