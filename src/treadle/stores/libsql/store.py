"""The store on a libSQL server: SQLite's tables, statements and transitions, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from treadle.clock import Clock, now
from treadle.errors import BadConnection, StoreUnusable
from treadle.job import ClaimedJob, Job, NewJob
from treadle.outcome import Outcome
from treadle.stores.libsql.connection import BLOCK, Database, Duplicate, Transaction
from treadle.stores.libsql.server import NoResult
from treadle.stores.libsql.url import read as read_url
from treadle.stores.libsql.user_transaction import Connection, own_error
from treadle.stores.sql import settle
from treadle.stores.sqlite import statements as sql
from treadle.stores.sqlite.schema import newest_schema, schema_in, upgrade
from treadle.stores.sqlite.store import OLDEST_SQLITE, SQLiteTables


class Watch:
    """There is nothing to wait on: the protocol does not report commits. A worker looks once a second."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def wait(self, seconds: float) -> bool:
        self._closed.wait(seconds)
        return False

    def close(self) -> None:
        self._closed.set()


class LibSQLStore(SQLiteTables[Database]):
    """Jobs on one libSQL server, shared by all machines that reach it."""

    one_machine = False
    hears_others = False
    keys_may_wait = False
    joins_transactions = False

    def __init__(self, url: str, *, clock: Clock = now) -> None:
        super().__init__()
        self._place = read_url(url)
        self.url, self.where = url, self._place.where
        self._clock = None if clock is now else clock

    # Life of the store

    def _connections(self) -> Database:
        return Database(self._place, self._clock)

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
                "leases_given": numbers["lease"],
                "sqlite_version": version.fetchone()[0],
                "requests": self.database.requests,
            }

        return self.database.read("read", steps)

    def changes(self) -> int:
        """Commits are not reported, so every look may find something new."""
        self._looks = getattr(self, "_looks", 0) + 1
        return self._looks

    def watch(self) -> Watch:
        return Watch()

    # Enqueue

    already_there = Duplicate

    def _insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Job]:
        if not isinstance(connection, Connection):
            way_out = "a job joins a transaction there through ctx.transaction() only; leave connection out"
            raise BadConnection(connection, "a libSQL server lets nobody else into a transaction", way_out)
        return connection.insert(jobs)

    # Settle

    @contextmanager
    def transaction(self, claimed: ClaimedJob, outcome: Callable[[], Outcome]) -> Generator[Connection]:
        database = self.database
        with database.block() as tx:
            yield Connection(tx, database)
            ending = outcome()
            try:
                tx.now = database.now()
                tx.execute(f"RELEASE {BLOCK}")  # without it, what follows would be a commit for each statement
                settle.settle_in_transaction(tx, claimed, ending)
                database.commit(tx)
            except NoResult as error:
                raise own_error(database, error) from error
