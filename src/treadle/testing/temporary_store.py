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
        if self._is_elsewhere(unwrap(connection)):
            problem = f"it is not open on {self.where}, where temporary(td) keeps the jobs"
            raise BadConnection(connection, problem, WAY_OUT)
        with super()._within(connection) as tx:
            yield tx

    def _is_elsewhere(self, theirs: Any) -> bool:
        """Whether it is a connection, and to another database. What is wrong otherwise, every store says."""
        if isinstance(theirs, sqlite3.Connection):
            return os.path.realpath(_file_of(theirs)) != os.path.realpath(self.path)
        try:
            wrap(theirs)
        except BadConnection:
            return False
        return True


def _file_of(connection: sqlite3.Connection) -> str:
    """Its database; '' if that is in memory."""
    cursor = connection.cursor()
    cursor.row_factory = None  # users choose the kind of rows that it returns
    files = [row[2] for row in cursor.execute("PRAGMA database_list") if row[1] == "main"]
    return os.fsdecode(files[0] or "") if files else ""
