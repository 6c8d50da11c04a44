from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import stores
from tests.process.handlers import td
from tests.process.harness import Place
from tests.process.sleepers import Sleepers, asleep
from tests.servers.postgres import PostgresServer


def pytest_configure(config: pytest.Config) -> None:
    stores.add_marker(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "process_url", stores.KINDS[:2])  # tests/libsql/test_kill.py has the third


@pytest.fixture
def process_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Requested by name, so that tests on SQLite alone need no server."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def place(process_url: str, tmp_path: Path) -> Iterator[Place]:
    """A database, journals and processes that are gone when the test is over."""
    with Place(tmp_path, process_url) as place:
        yield place


@pytest.fixture
def server(make_postgres: Callable[..., PostgresServer]) -> Iterator[PostgresServer]:
    """A PostgreSQL server to stop and to crash. Hosts of a test's network can reach it too."""
    server = make_postgres(everywhere=True)
    yield server
    assert "deadlock detected" not in server.log  # a crash loses its count of them


@pytest.fixture(scope="session")
def sleepers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sleepers]:
    before = td.store
    folder = tmp_path_factory.mktemp("sleepers")
    with Place(folder, f"sqlite:///{folder}/jobs.db") as place, asleep(place) as sleepers:
        td._use(before)
        yield sleepers


@pytest.fixture(scope="session", autouse=True)
def _sleep_early(request: pytest.FixtureRequest) -> None:
    """Started before the first test here if any test needs it: the minute passes while the others run."""
    if any(needs_sleepers(item) for item in request.session.items):
        request.getfixturevalue("sleepers")


def needs_sleepers(item: pytest.Item) -> bool:
    return "sleepers" in getattr(item, "fixturenames", ())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need the sleepers run last."""
    places = [place for place, item in enumerate(items) if Path(__file__).parent in item.path.parents]
    for place, item in zip(places, sorted((items[place] for place in places), key=needs_sleepers), strict=True):
        items[place] = item
