"""The connection that `ctx.transaction()` gives on a libSQL server: what a block needs of sqlite3's interface."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from treadle.errors import TransactionOver
from treadle.job import Job, NewJob
from treadle.stores.libsql.connection import BLOCK, GONE, Database, Transaction
from treadle.stores.libsql.hrana import Failed, Parameters
from treadle.stores.libsql.server import NoResult, Refused
from treadle.stores.sql import insert

OURS = "treadle"
"""A savepoint of ours in the user's transaction."""
ENDED_BY_THE_BLOCK = (
    "the block committed or rolled back by itself, so that its rows and the job's completion are no longer one; the "
    "job was not completed: leave both to ctx.transaction()"
)
ENDED_BY_THE_SERVER = (
    "the server has ended the transaction: one that lasts 5 s has to make room for others, as nobody else can write "
    "meanwhile; nothing was stored: do the slow work first, then write in the block"
)


class Cursor:
    """What one statement found."""

    def __init__(self, rows: list[tuple[Any, ...]], rowcount: int) -> None:
        self._rows = iter(rows)
        self.rowcount = rowcount

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)


class Connection:
    """A transaction on the server. Its errors are sqlite3's, so that a handler is the same on both."""

    def __init__(self, transaction: Transaction, database: Database) -> None:
        self._tx = transaction
        self._database = database

    def execute(self, sql: str, parameters: Parameters = ()) -> Cursor:
        """One statement, with parameters by :name or by ?."""
        rows = self._tx.execute(sql, parameters)
        try:
            return Cursor(rows.fetchall(), rows.rowcount)
        except NoResult as error:
            raised = own_error(self._database, error)
            self._tx.is_over = not isinstance(raised, sqlite3.Error)
            raise raised from error

    def commit(self) -> None:
        """Commits. The block raises an error when it ends."""
        self.execute("COMMIT")

    def rollback(self) -> None:
        self.execute("ROLLBACK")

    def insert(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Jobs that are part of the transaction. If that fails, nothing of them stays in there."""
        self.execute(f"SAVEPOINT {OURS}")
        try:
            stored = insert.insert_again(self._tx, jobs)
            self.execute(f"RELEASE {OURS}")
            return stored
        except BaseException as error:
            self._tx.forget()
            with suppress(sqlite3.Error, TransactionOver):
                self.execute(f"ROLLBACK TO {OURS}")
                self.execute(f"RELEASE {OURS}")
            if isinstance(error, NoResult):
                raise own_error(self._database, error) from error
            raise


def own_error(database: Database, error: Exception) -> Exception:
    """The error that a block gets: sqlite3's if a statement is to blame, ours if the transaction is over."""
    if isinstance(error, Failed) and error.code not in GONE:
        if f"no such savepoint: {BLOCK}" in str(error):
            return TransactionOver(ENDED_BY_THE_BLOCK)
        kind = sqlite3.IntegrityError if error.code.startswith("SQLITE_CONSTRAINT") else sqlite3.OperationalError
        return kind(str(error).removeprefix("SQLite error: "))
    if isinstance(error, Failed) or (isinstance(error, Refused) and error.status == 400):
        return TransactionOver(ENDED_BY_THE_SERVER)
    return database.translated(error)
