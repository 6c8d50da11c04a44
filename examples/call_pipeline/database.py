"""The queue, and connections to its database, which also has the tables of the calls."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from treadle import Treadle

URL = os.environ.get("TREADLE_URL", "sqlite:///calls.db")  # or postgresql://…; only this file and tables.py care
td = Treadle(URL)


@contextmanager
def connected() -> Iterator[Any]:
    """A connection of our own to the queue's database. Its block is one transaction."""
    if URL.startswith("postgresql:"):
        with psycopg.connect(URL) as server:
            yield server
        return
    file = sqlite3.connect(URL.removeprefix("sqlite:///"), timeout=10)
    try:
        file.execute("PRAGMA wal_autocheckpoint = 0")  # treadle checkpoints; see docs/sqlite.md
        with file:
            yield file
    finally:
        file.close()


def act_for(connection: Any, org: str) -> None:
    """Until the commit, PostgreSQL's row level security shows the rows of this org only."""
    if not isinstance(connection, sqlite3.Connection):
        connection.execute("SELECT set_config('treadle.tenant', %s, true)", [org])


def placeholder(connection: Any) -> str:
    """How the connection's driver writes a value in SQL."""
    return "?" if isinstance(connection, sqlite3.Connection) else "%s"


def insert(connection: Any, table: str, **row: str) -> None:
    """Insert a row unless it is there already."""
    act_for(connection, row["org_id"])
    values = ", ".join([placeholder(connection)] * len(row))
    connection.execute(
        f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values}) ON CONFLICT DO NOTHING", list(row.values())
    )
