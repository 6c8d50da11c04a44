"""The app of the example, on PostgreSQL, and on SQLite by another URL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from examples.call_pipeline import database, service, speech, storage
from examples.call_pipeline.database import td
from examples.call_pipeline.tables import make_tables
from examples.demos.call_pipeline import as_role
from tests import stores
from tests.examples.call_pipeline.calls import Service
from tests.servers.databases import Databases
from treadle.stores import open_store
from treadle.stores.postgres.roles import Roles
from treadle.testing import ManualClock


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "url", stores.KINDS[:2])


def prepare(url: str) -> None:
    store: Any = open_store(url)
    store.open()
    store.give_rights(Roles())
    store.close()
    make_tables(url)


@pytest.fixture
def postgres(postgres_databases: Databases) -> str:
    return postgres_databases.reused(prepare)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The owner's."""
    if request.param == "postgresql":
        found: str = request.getfixturevalue("postgres")
        return found
    make_tables(f"sqlite:///{tmp_path}/calls.db")
    return f"sqlite:///{tmp_path}/calls.db"


@pytest.fixture
def clock(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManualClock]:
    """The app as workers run it: on PostgreSQL in their role, and so under row level security."""
    monkeypatch.setattr(storage, "ROOT", tmp_path / "storage")
    monkeypatch.setattr(database, "URL", as_role(url, "worker"))
    clock, before = ManualClock(), td.store
    td._use(open_store(as_role(url, "worker"), clock=clock, **stores.quick(url)))
    yield clock
    td.close()
    td._use(before)


@pytest.fixture
def speech_service(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(service, "SECONDS", 3600)
    server = ThreadingHTTPServer(("127.0.0.1", 0), service.Speech)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    monkeypatch.setattr(speech, "SERVICE", f"http://127.0.0.1:{server.server_port}")
    yield Service()
    server.shutdown()
    server.server_close()
