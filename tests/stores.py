"""Helpers for tests that run on every database, and plain connections to look into one."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from tests.servers import libsql
from treadle.stores import open_store

KINDS = ("sqlite", "postgresql", "libsql")


def on_every_store(metafunc: pytest.Metafunc, fixture: str, kinds: Sequence[str] = KINDS) -> None:
    """Run a test once for each kind of store, which `fixture` gets as its parameter.

    A test marked `sqlite_only` has no other run, so nothing is skipped. For `not_libsql`, see there.
    """
    if fixture in metafunc.fixturenames:
        if metafunc.definition.get_closest_marker("sqlite_only"):
            kinds = KINDS[:1]
        elif metafunc.definition.get_closest_marker("not_libsql"):
            kinds = KINDS[:2]
        metafunc.parametrize(fixture, kinds, indirect=True)


def add_marker(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sqlite_only: the test is for a feature that only SQLite has")
    config.addinivalue_line(
        "markers", "not_libsql: it needs what a libSQL server does not have: a user's connection, or notifications"
    )


def make_tables(url: str) -> None:
    store = open_store(url)
    store.open()
    store.close()


def is_postgres(url: str) -> bool:
    return url.startswith("postgresql:")


def is_libsql(url: str) -> bool:
    return url.startswith("libsql")


def quick(url: str) -> dict[str, Any]:
    """Options for a store that need not survive a power cut. The PostgreSQL server of the tests has them anyway."""
    return {} if is_postgres(url) or is_libsql(url) else {"synchronous": "NORMAL"}


def connect(url: str) -> Any:
    """A connection for a test, which commits each statement."""
    if is_postgres(url):
        return psycopg.connect(url, autocommit=True)
    if is_libsql(url):
        return libsql.ByHand(url)
    path = url.removeprefix("sqlite:///")
    return sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query. Write SQLite's names: `treadle_jobs` becomes `treadle.jobs` on PostgreSQL."""
    with closing(connect(url)) as connection:
        found = connection.execute(in_dialect(url, query))
        return found.fetchall() if found.description else []


def in_dialect(url: str, query: str) -> str:
    return query.replace("treadle_", "treadle.") if is_postgres(url) else query


@contextmanager
def nobody_can_write(url: str) -> Generator[None]:
    """During the block, all writers wait; on PostgreSQL, only those that store a job."""
    if is_libsql(url):
        with libsql.writing(url):
            yield
        return
    with closing(connect(url)) as connection:
        if is_postgres(url):
            connection.execute("BEGIN; LOCK TABLE treadle.jobs IN EXCLUSIVE MODE")
        else:
            connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
