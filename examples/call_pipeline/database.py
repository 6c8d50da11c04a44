"""The queue, and ways to its database, which has the tables of the calls too."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from treadle import Treadle

td = Treadle()  # $TREADLE_URL: PostgreSQL, or a SQLite file; nothing else in this example depends on it

Execute = Callable[..., Any]


def for_org(connection: Any, org: str) -> Execute:
    """`execute` on either database, with `?` for a value. On PostgreSQL it acts for the org until the commit."""
    if isinstance(connection, sqlite3.Connection):
        return connection.execute
    connection.execute("SELECT set_config('treadle.tenant', %s, true)", [org])
    return lambda sql, values=(): connection.execute(sql.replace("?", "%s"), values)


@contextmanager
def connected() -> Iterator[Any]:
    """A connection of our own to the queue's database. Its block is one transaction."""
    if td.store.where.startswith("postgres"):
        with psycopg.connect(td.store.url) as server:
            yield server
        return
    file = sqlite3.connect(td.store.where, timeout=10)
    try:
        file.execute("PRAGMA wal_autocheckpoint = 0")  # treadle does that; see docs/sqlite.md
        with file:
            yield file
    finally:
        file.close()
