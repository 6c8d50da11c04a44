"""The stores under test. A behavior holds if its test passes on all of them.

To test a store of your own, set $TREADLE_TEST_STORE to `module:function`: docs/testing.md says what the function does.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conformance import helpers
from tests.conformance.helpers import FakeClock, check_consistency
from tests.servers.libsql import ByHand
from tests.servers.pgbouncer import PgBouncer
from tests.stores import make_tables
from treadle import stores
from treadle.stores import claim_order as cursor
from treadle.stores.base import Store
from treadle.stores.libsql.store import LibSQLStore
from treadle.stores.postgres import connection as postgres
from treadle.stores.postgres.store import PostgresStore
from treadle.stores.sqlite.store import SQLiteStore

OpenStore = Callable[..., Any]

OUTSIDE = os.environ.get("TREADLE_TEST_STORE")
"""A store from another project: `module:function`."""
INSIDE = {"by_hand", "users", "another", "new_url"}
"""Fixtures that read the tables of treadle's own stores."""
STORES: Mapping[str, type[Any]] = {"sqlite": SQLiteStore, "postgresql": PostgresStore, "libsql": LibSQLStore}
POOLED = ("pgbouncer-transaction", "pgbouncer-session")
"""PostgreSQL behind a real pooler, in both of its modes."""
SMOKE = {f"tests.conformance.test_{name}" for name in ("insert", "settle")}
"""Modules that always run behind the pooler, too. With $TREADLE_TEST_POOLERS, all of them do."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "by_hand: the test breaks rows by hand, so its records need not be consistent")
    config.addinivalue_line("markers", "own_connections: the test is about the connections of a store")
    config.addinivalue_line("markers", "direct: the test is about sessions of the server, which a pooler shares")
    config.addinivalue_line("markers", "only(store, …): the test covers something that only these stores have")
    config.addinivalue_line("markers", "needs(attribute): the test covers stores that have this ability")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test runs on every store, unless a marker names the stores or the ability that they need."""
    if "which" in metafunc.fixturenames and OUTSIDE:
        runs = not INSIDE & set(metafunc.fixturenames) and not metafunc.definition.get_closest_marker("only")
        metafunc.parametrize("which", ["outside"] if runs else [], indirect=True)
    elif "which" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("only")
        needed = [name for marker in metafunc.definition.iter_markers("needs") for name in marker.args]
        able = [name for name, store in STORES.items() if all(getattr(store, need) for need in needed)]
        names = list(only.args if only else able)
        pooled = metafunc.module.__name__ in SMOKE or os.environ.get("TREADLE_TEST_POOLERS")
        if pooled and "postgresql" in names and not metafunc.definition.get_closest_marker("direct"):
            names += POOLED[1:] if "notices_commits" in needed else POOLED  # a transaction's pooler forgets LISTEN
        metafunc.parametrize("which", names, indirect=True)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory if possible: on a disk, a thousand fsyncs would take most of the time."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("stores")
        return
    folder = tempfile.mkdtemp(prefix="treadle-", dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def folder(memory: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=memory))


@pytest.fixture(scope="module")
def which(request: pytest.FixtureRequest) -> str:
    """The store that this test runs on."""
    name: str = request.param
    return name


@pytest.fixture
def url(which: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a database that looks new to each test."""
    if which == "sqlite":
        return f"sqlite:///{folder}/jobs.db"
    if which == "outside":
        return f"{folder}/jobs"
    server = request.getfixturevalue("libsql_server" if which == "libsql" else "postgres_databases")
    reused: str = server.reused(make_tables)
    return reused


@pytest.fixture
def another(which: str, request: pytest.FixtureRequest, pooler: PgBouncer | None, memory: Path) -> Callable[[], str]:
    """URLs for a test that needs many databases without jobs, one after the other."""
    if which == "sqlite":
        return lambda: f"sqlite:///{tempfile.mkdtemp(dir=memory)}/jobs.db"
    server = request.getfixturevalue("libsql_server" if which == "libsql" else "postgres_databases")
    if pooler is not None:
        return lambda: pooler.url(server.reused(make_tables))
    return lambda: server.reused(make_tables)


@pytest.fixture
def new_url(which: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a database without treadle's tables."""
    if which == "sqlite":
        return f"sqlite:///{folder}/new.db"
    url: str = request.getfixturevalue("libsql_url" if which == "libsql" else "postgres_url")
    return url


@pytest.fixture(autouse=True)
def cheap_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a claim always look at everything first. Otherwise, what it finds would depend on the load of the machine."""
    monkeypatch.setattr(cursor, "CHEAP", 1e9)


@pytest.fixture(autouse=True)
def few_connections(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pools of a store share what is idle: each new connection takes 8 ms of the server, and a test would need
    five. The most that a pool may have stays. A test marked `own_connections` has the pools of the product."""
    if request.node.get_closest_marker("own_connections"):
        return
    make = postgres.Database.__init__

    def make_sharing(database: postgres.Database, *args: Any) -> None:
        make(database, *args)
        for pool in database._pools.values():
            pool.idle = database._pools["read"].idle

    monkeypatch.setattr(postgres.Database, "__init__", make_sharing)
    monkeypatch.setattr(postgres, "KEPT", 8)


@pytest.fixture(scope="module")
def pooler(which: str, request: pytest.FixtureRequest) -> Iterator[PgBouncer | None]:
    if which not in POOLED:
        yield None
        return
    with PgBouncer(request.getfixturevalue("postgres_server").url(), which.removeprefix("pgbouncer-")) as started:
        yield started


@pytest.fixture
def open_store(
    request: pytest.FixtureRequest, url: str, pooler: PgBouncer | None, clock: FakeClock
) -> Iterator[OpenStore]:
    """Handles on one database. After the test, its records must be consistent."""
    handles: list[Store] = []
    place = url if pooler is None else pooler.url(url)

    def open_(**options: Any) -> Store:
        handle = open_outside(url, clock) if OUTSIDE else stores.open_store(place, **{"clock": clock, **options})
        handles.append(handle)
        return handle

    yield open_
    if handles and not OUTSIDE and request.node.get_closest_marker("by_hand") is None:
        check_consistency(handles[0])
    for handle in handles:
        handle.close()


def open_outside(path: str, clock: FakeClock) -> Store:
    assert OUTSIDE is not None
    module, _, function = OUTSIDE.partition(":")
    store: Store = getattr(importlib.import_module(module), function)(path, clock)
    return store


@pytest.fixture
def store(open_store: OpenStore) -> Any:
    return open_store()


@pytest.fixture
def by_hand(store: Any) -> Iterator[Callable[..., list[Any]]]:
    """SQL as an administrator would run it, each statement committed."""
    store.open()
    if isinstance(store, PostgresStore):
        yield from _by_hand_on_postgres(store)
        return
    connection: Any = ByHand(store.url) if isinstance(store, LibSQLStore) else None
    connection = connection or sqlite3.connect(store.path, isolation_level=None)

    def execute(sql: str, *parameters: Any) -> list[Any]:
        return connection.execute(sql, parameters).fetchall()

    yield execute
    connection.close()


def _by_hand_on_postgres(store: PostgresStore) -> Iterator[Callable[..., list[Any]]]:
    """Tests use the names of SQLite. On PostgreSQL, the tables are in a schema."""
    connection = psycopg.connect(store.url, autocommit=True, prepare_threshold=None)

    def execute(sql: str, *parameters: Any) -> list[Any]:
        rows = connection.execute(sql.replace("treadle_", "treadle.").replace("?", "%s"), parameters)
        return rows.fetchall() if rows.description else []

    yield execute
    connection.close()


@pytest.fixture
def users(store: Any) -> Iterator[Any]:
    """The user's own connection to the database, with a table of theirs."""
    store.open()
    with closing(helpers.by_hand(store)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.commit()
        yield connection
        connection.rollback()
        connection.execute("DROP TABLE orders")
        connection.commit()
