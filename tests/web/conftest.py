"""A mount for each test, and clients for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from tests import stores
from tests.servers.databases import Databases
from treadle import Treadle
from treadle.web import SCOPES, Principal

HERE = "http://localhost"
EVERYTHING = " ".join(SCOPES)
OURS = {"Sec-Fetch-Site": "same-origin"}
"""The headers that a browser sends with a form of the dashboard."""


def by_header(request: Request) -> Principal | None:
    """`X-Who: read enqueue @acme` has two scopes, and is bound to the tenant acme."""
    words = request.headers.get("x-who")
    if words is None:
        return None
    tenant = next((word[1:] for word in words.split() if word.startswith("@")), None)
    scopes = frozenset(word for word in words.split() if not word.startswith("@"))
    return Principal(name=words, scopes=scopes, tenant=tenant)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database: a SQLite file, unless a test asks for another kind by `stores.on_every_store`."""
    kind = getattr(request, "param", "sqlite")
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue("libsql_url" if kind == "libsql" else "postgres_url")
    return found


@pytest.fixture
def td(url: str) -> Iterator[Treadle]:
    app = Treadle(url, **stores.quick(url))
    yield app
    app.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_td(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Treadle]:
    """One app for all tests of a file, on each database, with a handler so that it can tick."""
    url = f"sqlite:///{tmp_path_factory.mktemp('shared')}/jobs.db"
    databases: Databases | None = None
    if request.param == "postgresql":
        databases = request.getfixturevalue("postgres_databases")
        url = databases.fresh()
    app = Treadle(url, **stores.quick(url))

    @app.job
    def noop(n: int = 0) -> int:
        return n

    yield app
    app.close()
    if databases is not None:
        databases.drop(url)


Connect = Callable[..., TestClient]


def client_of(td: Treadle, who: str | None, **options: Any) -> TestClient:
    """A client that sends requests as the dashboard's pages do, with these scopes."""
    web = td.asgi(auth=by_header, **options)
    headers = OURS if who is None else {**OURS, "X-Who": who}
    return TestClient(web, base_url=HERE, headers=headers, raise_server_exceptions=False)


@pytest.fixture
def connect(td: Treadle) -> Connect:
    """A client with these scopes: `connect("read @acme")`."""
    return lambda who=EVERYTHING, **options: client_of(td, who, **options)


@pytest.fixture
def client(connect: Connect) -> TestClient:
    """A client with all scopes."""
    return connect()
