"""Tests that run on every database: which they are, and how to look into one by hand."""

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

    For one marked `sqlite_only` there is no other run, and so none to skip. `not_libsql`: see there.
    """
    if fixture in metafunc.fixturenames:
        if metafunc.definition.get_closest_marker("sqlite_only"):
            kinds = KINDS[:1]
        elif metafunc.definition.get_closest_marker("not_libsql"):
            kinds = KINDS[:2]
        metafunc.parametrize(fixture, kinds, indirect=True)


def add_marker(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sqlite_only: it is about something that only SQLite has")
    config.addinivalue_line(
        "markers", "not_libsql: it needs what a libSQL server has not: a connection of one's own, or word of commits"
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
    """Options for a store that nobody needs after a power cut. PostgreSQL's tests have a server that is so anyway."""
    return {} if is_postgres(url) or is_libsql(url) else {"synchronous": "NORMAL"}


def connect(url: str) -> Any:
    """A connection of the test's own, which commits each statement."""
    if is_postgres(url):
        return psycopg.connect(url, autocommit=True)
    if is_libsql(url):
        return libsql.ByHand(url)
    path = url.removeprefix("sqlite:///")
    return sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """What a query gives. It has SQLite's names, of which PostgreSQL's are made: `treadle_jobs`, `treadle.jobs`."""
    with closing(connect(url)) as connection:
        found = connection.execute(in_dialect(url, query))
        return found.fetchall() if found.description else []


def in_dialect(url: str, query: str) -> str:
    return query.replace("treadle_", "treadle.") if is_postgres(url) else query


@contextmanager
def nobody_can_write(url: str) -> Generator[None]:
    """As long as the block lasts, whoever wants to write waits; on PostgreSQL, who wants to store a job."""
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
