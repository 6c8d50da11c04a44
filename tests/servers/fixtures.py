"""The PostgreSQL server of the tests: `postgres_url` and related fixtures. `tests/conftest.py` exports them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tests.servers.binaries import NoBinaries, sources
from tests.servers.databases import Databases
from tests.servers.libsql import LibSQLServer, NoServer
from tests.servers.namespaces import Network, obstacle
from tests.servers.postgres import Elsewhere, PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.replication import Cluster

if TYPE_CHECKING:
    from tests.servers.redis import RedisServer

URL = "TREADLE_TEST_POSTGRES"
"""The URL of an existing server, whose user may create databases and end sessions."""
VERSION = "TREADLE_TEST_POSTGRES_VERSION"
"""`system`, `packaged` or a version such as 16. Default: the first that is found."""


def cannot(why: str) -> NoReturn:
    """Skip the test on a laptop that lacks something. Fail it in CI: a test that never runs proves nothing."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def new_server(which: str | None = None, **options: Any) -> PostgresServer:
    """A server that is not started yet."""
    try:
        return PostgresServer(which or os.environ.get(VERSION, "any"), **options)
    except NoBinaries as error:
        cannot(str(error))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Elsewhere]:
    """A server that all tests share. Do not stop it: a test that stops a server makes its own with `make_postgres`."""
    if admin := os.environ.get(URL):
        yield Elsewhere(admin)
        return
    with new_server() as server:
        yield server


@pytest.fixture(scope="session", params=sources())
def each_postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """The system's server and the packaged one, which is newer, for tests that must run on both."""
    with new_server(request.param) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: Elsewhere) -> Iterator[Databases]:
    databases = Databases(postgres_server.url())
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(postgres_databases: Databases) -> Iterator[str]:
    """The URL of an empty database, which is dropped afterwards."""
    url = postgres_databases.fresh()
    yield url
    postgres_databases.drop(url)


@pytest.fixture
def make_postgres() -> Iterator[Callable[..., PostgresServer]]:
    """Make servers that a test may stop and kill: `make_postgres(durable=True)`."""
    made: list[PostgresServer] = []

    def make(which: str | None = None, **options: Any) -> PostgresServer:
        made.append(server := new_server(which, **options))
        server.start()
        return server

    yield make
    for server in made:
        server.remove()


@pytest.fixture
def postgres_cluster() -> Iterator[Cluster]:
    """A primary and a standby that a test may promote."""
    try:
        cluster = Cluster(os.environ.get(VERSION, "any"))
    except NoBinaries as error:
        cannot(str(error))
    with cluster:
        yield cluster


@pytest.fixture
def postgres_proxy(postgres_url: str) -> Iterator[Proxy]:
    """A proxy in front of the test's own database: connect to `postgres_proxy.url()`."""
    with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def network() -> Iterator[Network]:
    """A network of two hosts. A test can disconnect and reconnect each."""
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
    """The URL of a server without tables."""
    libsql_server.empty()
    return libsql_server.url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A server that all tests share. A test that kills it starts it again."""
    from tests.servers.redis import RedisServer

    with RedisServer() as server:
        yield server
