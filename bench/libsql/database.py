"""Tables on a libSQL server. It has only one database, so only one measurement can use it at a time."""

from __future__ import annotations

from collections.abc import Sequence

from bench.sqlite.database import SQLiteTables
from treadle import Treadle
from treadle.stores.libsql.connection import Cursor, Database, Transaction
from treadle.stores.libsql.hrana import Parameters

TABLES = ("jobs", "ready", "leases", "finished", "attempts", "dedupe", "types", "workers", "tallies", "usage")


class Plain:
    """Plain SQL. Between a BEGIN and its COMMIT, a statement whose answer is not read travels with the next."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tx: Transaction | None = None

    def execute(self, sql: str, parameters: Parameters = ()) -> Cursor:
        if sql.startswith("BEGIN"):
            self._tx = self._new()
        tx = self._tx or self._new()
        rows = tx.execute(sql, parameters)
        if self._tx is None or sql == "COMMIT":
            tx.flush(last=True)
            self._tx = None
        return rows

    def executemany(self, sql: str, rows: Sequence[Parameters]) -> None:
        """All rows in one request."""
        for row in rows:
            self.execute(sql, row)

    def _new(self) -> Transaction:
        return Transaction(self._database, begins=True)

    def now(self) -> int:
        return self._database.now()


class LibSQLBenchDatabase(SQLiteTables):
    """The tables of the only database, emptied."""

    connection: Plain

    def __init__(self, url: str, connection: Plain) -> None:
        self.url = url
        self.connection = connection
        app = Treadle(url)
        app.store.open()
        app.close()
        self.empty()

    def _now(self) -> int:
        return self.connection.now()

    def tidy(self) -> None:
        """The server does that itself."""

    def alone(self) -> None:
        """A client cannot do that."""

    def empty(self) -> None:
        for table in TABLES:
            self.connection.execute(f"DELETE FROM treadle_{table}")

    def close(self) -> None:
        self.empty()
