"""Where a queue keeps its jobs for one measurement: a new database, a new file, or an empty Redis."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from bench.peers.peer import Store
from bench.peers.redis import RedisServer
from treadle.cli.bench import with_database

STAMP = 16
"""Bytes that each handler appends."""
POSTGRES = {"max_wal_size": "4GB", "shared_buffers": "512MB", "jit": "on"}
"""Beside the server's defaults. Everything is durable: fsync, full_page_writes and synchronous_commit are on."""


class Place(msgspec.Struct, frozen=True):
    url: str
    stamps: Path
    """The file that the handlers append to. It is in memory, if there is such a place."""
    settle: Callable[[], None]
    """Clean up after a fill, so that no worker has to."""
    activity: Callable[[], tuple[int, int]]
    """Transactions so far, and connections now. (0, 0) where that has no meaning."""


class Places:
    """A directory and servers, each started when it is needed first. All is removed at the end of the block."""

    def __init__(self, directory: Path, postgres: str | None) -> None:
        self._stack = contextlib.ExitStack()
        self._parent, self._postgres = directory, postgres
        self._redis: RedisServer | None = None

    def __enter__(self) -> Places:
        self.directory = self._folder(self._parent)
        memory = Path("/dev/shm")
        self._memory = self._folder(memory if memory.is_dir() else self._parent)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _folder(self, parent: Path) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=".treadle-peers-", dir=parent))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    @contextlib.contextmanager
    def new(self, store: Store) -> Generator[Place]:
        stamps = self._memory / secrets.token_hex(6)
        stamps.touch()
        places = {"PostgreSQL": self._new_postgres, "SQLite": self._new_sqlite, "Redis": self._new_redis}
        try:
            with places[store](stamps) as place:
                yield place
        finally:
            stamps.unlink()

    @contextlib.contextmanager
    def _new_sqlite(self, stamps: Path) -> Generator[Place]:
        folder = self._folder(self.directory)
        yield Place(f"sqlite:///{folder}/queue.db", stamps, lambda: None, lambda: (0, 0))
        shutil.rmtree(folder)

    @contextlib.contextmanager
    def _new_redis(self, stamps: Path) -> Generator[Place]:
        if self._redis is None:
            self._redis = self._stack.enter_context(RedisServer(self.directory))
        database = self._redis.empty_database()
        yield Place(f"{self._redis.url}/{database}", stamps, lambda: None, lambda: (0, 0))

    @contextlib.contextmanager
    def _new_postgres(self, stamps: Path) -> Generator[Place]:
        name = f"treadle_peers_{secrets.token_hex(6)}"
        with psycopg.connect(self._admin(), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            url = with_database(self._admin(), name)
            try:
                yield Place(url, stamps, lambda: _settle(url), lambda: _activity(admin, name))
            finally:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _admin(self) -> str:
        if self._postgres is None:
            # By name, because the tests are not checked as strictly as this.
            servers = import_module("tests.servers.postgres")
            server = self._stack.enter_context(servers.PostgresServer(durable=True, options=POSTGRES))
            self._postgres = str(server.url())
        return self._postgres

    def versions(self) -> dict[str, str]:
        """Of the servers that have been used, with the settings that decide what a commit costs."""
        found = {}
        if self._postgres is not None:
            with psycopg.connect(self._postgres) as admin:
                found["PostgreSQL"] = f"{_show(admin, 'server_version')}: " + ", ".join(
                    f"{name}={_show(admin, name)}" for name in ("fsync", "synchronous_commit", *POSTGRES)
                )
        if self._redis is not None:
            found["Redis"] = self._redis.about()
        return found


def _show(connection: psycopg.Connection[Any], name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def _settle(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _activity(admin: psycopg.Connection[Any], name: str) -> tuple[int, int]:
    row = admin.execute(
        "SELECT xact_commit + xact_rollback, (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = d.datname)"
        " FROM pg_stat_database d WHERE datname = %s",
        [name],
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])
