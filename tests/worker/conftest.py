"""An app on a database of its own, of each kind. At the end of the test, its records must be consistent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stores
from tests.conformance.helpers import check_consistency
from tests.worker import process_jobs
from treadle import Treadle
from treadle.stores import open_store
from treadle.testing import ManualClock


def pytest_configure(config: pytest.Config) -> None:
    stores.add_marker(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "treadle_url")


@pytest.fixture
def treadle_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own. Requested by name, so that tests on SQLite alone need no server."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/treadle.db"
    server = request.getfixturevalue("libsql_server" if request.param == "libsql" else "postgres_databases")
    url: str = server.reused(stores.make_tables)
    return url


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled jobs and progress are looked at every half second; tests have less time."""
    monkeypatch.setattr("treadle.worker.heartbeat.FLAGS", 0.02)


@pytest.fixture
def td(treadle_url: str) -> Iterator[Treadle]:
    app = Treadle(treadle_url, **stores.quick(treadle_url))
    yield app
    check_consistency(app.store)
    app.close()


@pytest.fixture
def timed(treadle_url: str, treadle_clock: ManualClock) -> Iterator[Treadle]:
    """An app whose clock the test moves."""
    app = Treadle(treadle_url, clock=treadle_clock, **stores.quick(treadle_url))
    yield app
    check_consistency(app.store)
    app.close()


@pytest.fixture
def in_children(treadle_url: str) -> Iterator[Treadle]:
    """The app of `process_jobs`, on this test's database."""
    app, before = process_jobs.td, process_jobs.td.store
    app._use(open_store(treadle_url, **stores.quick(treadle_url)))
    yield app
    check_consistency(app.store)
    app.close()
    app._use(before)
