"""The store on a libSQL server: SQLite's tables, statements and transitions, over HTTP."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Any

from treadle.clock import Clock, now
from treadle.errors import BadConnection, StoreUnusable, TransactionOver
from treadle.job import ClaimedJob
from treadle.outcome import Outcome
from treadle.stores.libsql.connection import BLOCK, GONE, Cursor, Database, Transaction
from treadle.stores.libsql.hrana import Failed, Parameters
from treadle.stores.libsql.server import NoResult, Refused
from treadle.stores.libsql.url import read as read_url
from treadle.stores.shared import claim_settle
from treadle.stores.sqlite import sql
from treadle.stores.sqlite.schema import newest_schema, schema_in, upgrade
from treadle.stores.sqlite.store import OLDEST_SQLITE, SQLiteTables

OURS = "treadle"
"""treadle's savepoint in the user's transaction."""
ENDED_BY_THE_SERVER = (
    "the server has ended the transaction after 5 s, because no other process can write during that time; nothing was "
    "stored: do the slow work first, then write in the block"
)


class Watch:
    """There is nothing to wait on: the protocol does not report commits. A worker looks once a second."""

    can_rest = True

    def __init__(self) -> None:
        self._closed = threading.Event()

    def wait(self, seconds: float) -> bool:
        self._closed.wait(seconds)
        return False

    def fileno(self) -> int | None:
        return None

    def heard(self) -> Sequence[float]:
        return ()

    def check(self) -> None:
        pass

    def close(self) -> None:
        self._closed.set()


class LibSQLStore(SQLiteTables[Database]):
    """Jobs on one libSQL server, shared by all machines that reach it."""

    single_host = False
    notices_commits = False
    dedupe_may_block = False
    joins_transactions = False

    def __init__(self, url: str, *, clock: Clock = now) -> None:
        super().__init__()
        self._endpoint = read_url(url)
        self.url, self.where = url, self._endpoint.where
        self._clock = None if clock is now else clock
        self._looks = 0

    # Life of the store

    def _connections(self) -> Database:
        return Database(self._endpoint, self._clock)

    def _prepare(self, database: Database) -> None:
        version: str = database.read("other", Transaction.value, sql.VERSION)
        if tuple(map(int, version.split(".")[:2])) < OLDEST_SQLITE:
            raise StoreUnusable(self.where, f"its SQLite {version} is too old", "upgrade the server to 3.38 or newer")
        upgrade(self.where, database)

    def schema(self) -> int | None:
        with closing(self._connections()) as database:
            return database.read("other", schema_in, self.where)[0]

    def now(self) -> int:
        return self.database.read("other", lambda tx: tx.now)

    def status(self) -> Mapping[str, Any]:
        def steps(tx: Transaction) -> Mapping[str, Any]:
            meta, version = tx.execute(sql.META), tx.execute(sql.VERSION)
            numbers: dict[str, int] = dict(meta.fetchall())
            return {
                "store": "libsql",
                "where": self.where,
                "schema": numbers["schema"],
                "newest_schema": newest_schema(),
                "leases_given": numbers.get("lease", 0),
                "sqlite_version": version.fetchone()[0],
                "requests": self.database.requests,
            }

        return self.database.read("read", steps)

    def changes(self) -> int:
        """Commits are not reported, so every look may find something new."""
        self._looks += 1
        return self._looks

    def watch(self) -> Watch:
        return Watch()

    def claims_on_loop(self, thread: Executor) -> None:
        return None

    # Enqueue

    def _within(self, connection: Any) -> AbstractContextManager[Transaction]:
        if isinstance(connection, Connection):
            return connection.within()
        problem = "a transaction on a libSQL server cannot be shared between connections"
        way_out = "only in ctx.transaction() can a job be part of one; leave connection out"
        raise BadConnection(connection, problem, way_out)

    # Settle

    def _undo(self, connection: Any) -> None:
        raise AssertionError("no transaction is shared")

    @contextmanager
    def transaction(self, claimed: ClaimedJob, outcome: Callable[[], Outcome | None]) -> Generator[Connection]:
        database = self.database
        with database.block() as tx:
            yield Connection(tx, database)
            ending = outcome()
            try:
                tx.now = database.now()
                tx.execute(f"RELEASE {BLOCK}")  # without it, what follows would be a commit for each statement
                claim_settle.settle_in_transaction(tx, claimed, ending)
                database.commit(tx)
            except NoResult as error:
                raise own_error(database, error) from error


# What `ctx.transaction()` gives: what a block needs of sqlite3's interface


class Connection:
    """A transaction on the server. Its errors are sqlite3's, so that a handler is the same on both."""

    def __init__(self, transaction: Transaction, database: Database) -> None:
        self._tx = transaction
        self._database = database

    def execute(self, sql: str, parameters: Parameters = ()) -> Cursor:
        """One statement, with parameters by :name or by ?."""
        rows = self._tx.execute(sql, parameters)
        try:
            self._tx.flush()
            return rows
        except NoResult as error:
            raised = own_error(self._database, error)
            self._tx.is_over = not isinstance(raised, sqlite3.Error)
            raise raised from error

    def commit(self) -> None:
        """Commits. The block raises an error when it ends."""
        self.execute("COMMIT")

    def rollback(self) -> None:
        self.execute("ROLLBACK")

    @contextmanager
    def within(self) -> Generator[Transaction]:
        """For a part of the transaction. If the block raises, nothing of it stays in there."""
        self.execute(f"SAVEPOINT {OURS}")
        try:
            yield self._tx
            self.execute(f"RELEASE {OURS}")
        except BaseException as error:
            self._tx.forget()
            with suppress(sqlite3.Error, TransactionOver):
                self.execute(f"ROLLBACK TO {OURS}")
                self.execute(f"RELEASE {OURS}")
            if isinstance(error, NoResult):
                raise own_error(self._database, error) from error
            raise


def own_error(database: Database, error: Exception) -> Exception:
    """The error that a block gets: sqlite3's if a statement failed, ours if the transaction is over."""
    if isinstance(error, Failed) and error.code not in GONE:
        if f"no such savepoint: {BLOCK}" in str(error):
            return TransactionOver(claim_settle.ENDED_BY_THE_BLOCK)
        kind = sqlite3.IntegrityError if error.code.startswith("SQLITE_CONSTRAINT") else sqlite3.OperationalError
        return kind(str(error).removeprefix("SQLite error: "))
    if isinstance(error, Failed) or (isinstance(error, Refused) and error.status == 400):
        return TransactionOver(ENDED_BY_THE_SERVER)
    return database.translated(error)
