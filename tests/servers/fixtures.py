"""The PostgreSQL of the tests: `postgres_url` and what it is made of. Known to all tests by `tests/conftest.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from tests.servers.binaries import NoBinaries, sources
from tests.servers.databases import Databases
from tests.servers.libsql import LibSQLServer, NoServer
from tests.servers.namespaces import Network, obstacle
from tests.servers.postgres import Elsewhere, Server
from tests.servers.proxy import Proxy

URL = "TREADLE_TEST_POSTGRES"
"""A database of somebody's server, whose user may create databases and end sessions."""
VERSION = "TREADLE_TEST_POSTGRES_VERSION"
"""`system`, `packaged` or a number such as 16; else the first there is."""


def cannot(why: str) -> NoReturn:
    """A laptop may lack something. CI may not: a test that never runs there proves nothing."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def new_server(which: str | None = None, **options: Any) -> Server:
    """Not started yet."""
    try:
        return Server(which or os.environ.get(VERSION, "any"), **options)
    except NoBinaries as error:
        cannot(str(error))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Elsewhere]:
    """A server that all tests share. Do not stop it: a test that does makes its own, by `make_postgres`."""
    if admin := os.environ.get(URL):
        yield Elsewhere(admin)
        return
    with new_server() as server:
        yield server


@pytest.fixture(scope="session", params=sources())
def each_postgres_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """For a test that has to run on the system's server and on the packaged one, which is newer."""
    with new_server(request.param) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: Elsewhere) -> Iterator[Databases]:
    databases = Databases(postgres_server.url())
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(postgres_databases: Databases) -> Iterator[str]:
    """An empty database, gone afterwards."""
    url = postgres_databases.fresh()
    yield url
    postgres_databases.drop(url)


@pytest.fixture
def make_postgres() -> Iterator[Callable[..., Server]]:
    """Servers of the test's own, to stop and to kill: `make_postgres(durable=True)`."""
    made: list[Server] = []

    def make(which: str | None = None, **options: Any) -> Server:
        made.append(server := new_server(which, **options))
        server.start()
        return server

    yield make
    for server in made:
        server.remove()


@pytest.fixture
def postgres_proxy(postgres_url: str) -> Iterator[Proxy]:
    """A proxy in front of the test's own database: connect to `postgres_proxy.url()`."""
    with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def network() -> Iterator[Network]:
    """Two hosts, each cut off and plugged in at will."""
    if why := obstacle():
        cannot(why)
    with Network() as network:
        yield network


@pytest.fixture(scope="session")
def libsql_server() -> Iterator[LibSQLServer]:
    """A server that all tests share. A test that stops one makes its own."""
    try:
        server = LibSQLServer()
    except NoServer as error:
        cannot(str(error))
    with server:
        yield server


@pytest.fixture
def libsql_url(libsql_server: LibSQLServer) -> str:
    """A server without tables."""
    libsql_server.empty()
    return libsql_server.url
