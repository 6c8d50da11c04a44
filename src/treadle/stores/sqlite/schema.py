"""Creating and upgrading the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from functools import partial
from pathlib import Path

from treadle.errors import StoreUnusable
from treadle.stores import migrate
from treadle.stores.sqlite import sql
from treadle.stores.transaction import Connections, Transaction

PACKAGE = "treadle.stores.sqlite"


def newest_schema() -> int:
    return migrate.migrations(PACKAGE)[-1].number


def schema_sql() -> str:
    """All tables as SQL, for people."""
    return migrate.script(PACKAGE)


def schema_of(path: Path) -> int | None:
    """The schema number in a file, 0 if it has no treadle tables, None if there is no file. Creates nothing."""
    if not path.is_file():
        return None
    try:
        try:
            return _schema_of(path, "ro")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_READONLY"):
                raise
            return _schema_of(path, "rw")  # its creator was killed: what is half written has to be undone first
    except sqlite3.Error as error:
        problem = f"it cannot be read as a SQLite database ({error})"
        way_out = "it is another kind of file, it is damaged, or you may not read it: name another, sqlite:///jobs.db"
        raise StoreUnusable(str(path), problem, way_out) from error


def _schema_of(path: Path, mode: str) -> int:
    connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=5)
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # a key may be broken by hand
    try:
        if not connection.execute(sql.HAS_META).fetchone():
            return 0
        return migrate.numbers(str(path), "treadle_meta", dict(connection.execute(sql.META)))[0]
    finally:
        connection.close()


def upgrade(where: str, database: Connections) -> None:
    """Create or upgrade the tables. Two processes may try at once: the second finds it done."""
    if database.read("other", _missing, where):
        database.write("other", upgrade_in, where)


def _missing(tx: Transaction, where: str) -> list[migrate.Migration]:
    return migrate.missing(PACKAGE, where, *schema_in(tx, where))


def upgrade_in(tx: Transaction, where: str) -> None:
    """Apply the migrations that are missing, in this transaction."""
    for migration in _missing(tx, where):
        for statement in _statements(migration.sql):
            tx.execute(statement)
        tx.execute(sql.SET_SCHEMA, {"number": migration.number})


def schema_in(tx: Transaction, where: str) -> tuple[int, int]:
    """The newest migration that the database has, and the oldest schema whose treadle can work with it."""
    if not tx.value(sql.HAS_META):
        return 0, 0
    return migrate.numbers(where, "treadle_meta", dict(tx.execute(sql.META).fetchall()))


def _statements(script: str) -> Generator[str]:
    """The script's statements; `executescript` would commit between them."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
