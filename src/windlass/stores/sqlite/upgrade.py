"""Creating and upgrading the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from pathlib import Path

from windlass.errors import SchemaTooNew, StoreUnusable
from windlass.stores import migrate
from windlass.stores.sqlite import statements as sql
from windlass.stores.sqlite.connection import Database

PACKAGE = "windlass.stores.sqlite"


def newest_schema() -> int:
    return migrate.migrations(PACKAGE)[-1].number


def schema_sql() -> str:
    """All tables as SQL, for people."""
    return migrate.script(PACKAGE)


def schema_of(path: Path) -> int | None:
    """The schema number in a file, 0 if it has no tables of ours, None if there is no file. Creates nothing."""
    if not path.is_file():
        return None
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'windlass_meta'").fetchone():
                return 0
            row = connection.execute("SELECT value FROM windlass_meta WHERE key = 'schema'").fetchone()
            return int(row[0]) if row else 0
        finally:
            connection.close()
    except sqlite3.Error as error:
        problem = f"it cannot be read as a SQLite database ({error})"
        way_out = "it is some other file, it is damaged, or you may not read it: name another, sqlite:///jobs.db"
        raise StoreUnusable(str(path), problem, way_out) from error


def upgrade(database: Database, where: str) -> None:
    """Create or upgrade the tables. Two processes may try at once: the second finds it done."""
    newest = newest_schema()
    with database.read() as tx:
        found, oldest = _schema(tx.connection, where)
    if oldest > newest:
        raise SchemaTooNew(where, found, newest)
    if found >= newest:
        return
    with database.write() as tx:
        found, _ = _schema(tx.connection, where)
        for migration in migrate.migrations(PACKAGE):
            if migration.number > found:
                for statement in _statements(migration.sql):
                    tx.execute(statement)
                tx.execute(sql.SET_SCHEMA, {"number": migration.number})


def _schema(connection: sqlite3.Connection, where: str) -> tuple[int, int]:
    """The newest migration that the file has, and the oldest schema whose windlass can work with it."""
    try:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'windlass_meta'").fetchone():
            return 0, 0
        meta = dict(connection.execute(sql.META))
        return meta["schema"], meta["oldest"]
    except (sqlite3.DatabaseError, KeyError) as error:
        raise StoreUnusable(where, f"the database said {error}", "is it a SQLite file of ours? name another") from error


def _statements(script: str) -> Generator[str]:
    """The script's statements; `executescript` would commit between them."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
