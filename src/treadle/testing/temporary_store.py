"""The SQLite file of `temporary`. A connection to another database is refused with the way out that tests have."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from treadle.errors import BadConnection
from treadle.stores.sqlite.connection import Transaction
from treadle.stores.sqlite.store import SQLiteStore
from treadle.stores.user_connections import unwrap, wrap

WAY_OUT = "name the database of that connection: temporary(td, url=…), or with pytest the fixture treadle_url"


class TemporaryStore(SQLiteStore):
    """Jobs that are in this file only as long as a test runs."""

    @contextmanager
    def _within(self, connection: Any) -> Generator[Transaction]:
        if (place := self._elsewhere(unwrap(connection))) is not None:
            problem = f"{place}, and temporary(td) keeps the jobs in {self.where}"
            raise BadConnection(connection, problem, WAY_OUT)
        with super()._within(connection) as tx:
            yield tx

    def _elsewhere(self, theirs: Any) -> str | None:
        """Where it is open, if it is a connection to another database. What is wrong otherwise, every store says."""
        if isinstance(theirs, sqlite3.Connection):
            file = _file_of(theirs)
            is_ours = os.path.realpath(file) == os.path.realpath(self.path)
            return None if is_ours else f"it is open on {file or 'a database in memory'}"
        try:
            wrap(theirs)
        except BadConnection:
            return None
        return "it is open on another kind of database"


def _file_of(connection: sqlite3.Connection) -> str:
    """Its database; '' if that is in memory."""
    cursor = connection.cursor()
    cursor.row_factory = None  # users choose the kind of rows that it returns
    files = [row[2] for row in cursor.execute("PRAGMA database_list") if row[1] == "main"]
    return os.fsdecode(files[0] or "") if files else ""
