"""A PostgreSQL server, with a new database for each measurement."""

from __future__ import annotations

import secrets
import time
from typing import Any

import click
import psycopg

from bench.backend import About, Backend, Loop
from bench.postgres import raw
from bench.postgres.database import PostgresBenchDatabase
from treadle.cli.bench import with_database
from treadle.stores.postgres.url import read

SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "autovacuum", "jit", "shared_buffers", "max_wal_size")


class PostgresBackend(Backend):
    """The server of a URL. The benchmark only connects to its database, and creates others on the server."""

    sections = frozenset({"wakeups", "snapshot"})
    scales = True
    driver = "psycopg"
    safe = ("commits", "server: commits of one row, one by one", "commits")
    loops = (
        Loop("", "raw SQL", raw.insert, raw.move),
        Loop("text", "… each batch as one text", raw.insert_text, raw.move_text),
        Loop("many", "… row by row with executemany", raw.insert_many, raw.move_many),
    )

    def __init__(self, url: str, pooler: str | None = None) -> None:
        self._url, self._pooler = url, pooler
        conninfo, self._where = read(url)
        try:
            self._connection: Any = psycopg.connect(conninfo, autocommit=True)
        except psycopg.Error as error:
            raise click.ClickException(f"{self._where} cannot be reached: {' '.join(str(error).split())}") from None
        self._made: list[str] = []

    def new(self, name: str) -> PostgresBenchDatabase:
        database = f"treadle_bench_{secrets.token_hex(6)}"
        try:
            self._connection.execute(f"CREATE DATABASE {database}")
        except psycopg.errors.InsufficientPrivilege:
            role = self._connection.info.user
            raise click.ClickException(
                f"the benchmark leaves {self._where} alone and creates databases of its own, but the "
                f'role {role!r} may not create any: ALTER ROLE "{role}" CREATEDB, or name another role'
            ) from None
        self._made.append(database)
        return PostgresBenchDatabase(with_database(self._url, database), lambda: self._drop(database))

    def new_behind_pooler(self, name: str) -> PostgresBenchDatabase | None:
        """It is made and read on the server itself: what goes through the pooler is treadle."""
        if self._pooler is None:
            return None
        database = self.new(name)
        database.url = with_database(self._pooler, database.connection.info.dbname)
        return database

    def _drop(self, database: str) -> None:
        """Only what the benchmark created. Sessions that are still connected are its own stopped workers."""
        self._connection.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        self._made.remove(database)

    def commits(self, seconds: float) -> float:
        """Commits per second of one connection, each of one new row."""
        database, count = self.new("commits"), 0
        try:
            database.connection.execute("CREATE TABLE public.bench (n bigint)")
            began = time.perf_counter()
            while (passed := time.perf_counter() - began) < seconds:
                database.connection.execute("INSERT INTO public.bench VALUES (%s)", (count,))
                count += 1
            return count / passed
        finally:
            database.close()

    def about(self) -> About:
        settings = {name: str(self._ask(f"SHOW {name}")) for name in SETTINGS}
        return About(f"PostgreSQL {self._ask('SHOW server_version')}", settings, self._where)

    def _ask(self, sql: str) -> object:
        row = self._connection.execute(sql).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        for database in list(self._made):
            self._drop(database)
        self._connection.close()
