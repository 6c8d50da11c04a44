"""The store on a libSQL server: SQLite's tables, statements and moves, over HTTP."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from windlass.clock import Clock, now
from windlass.errors import BadConnection, CommitUnknown, JobNotFound, LeaseLost, StoreUnusable
from windlass.job import Claimed, Job, NewJob
from windlass.outcome import Outcome
from windlass.stores.libsql.block import Connection, own_error
from windlass.stores.libsql.connection import BLOCK, Database, Duplicate, Transaction
from windlass.stores.libsql.place import read as read_url
from windlass.stores.libsql.server import NoResult
from windlass.stores.sql import insert, settle
from windlass.stores.sql.store import SQLStore
from windlass.stores.sqlite import statements as sql
from windlass.stores.sqlite.upgrade import newest_schema, schema_in, schema_sql, upgrade

T = TypeVar("T")

OLDEST_SQLITE = (3, 38)


class Watch:
    """There is nothing to wait on: the protocol tells nobody of others' commits. A worker looks once a second."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def wait(self, seconds: float) -> bool:
        self._closed.wait(seconds)
        return False

    def close(self) -> None:
        self._closed.set()


class LibSQLStore(SQLStore):
    """Jobs on one libSQL server, shared by all who reach it."""

    one_machine = False
    hears_others = False
    keys_may_wait = False
    joins_transactions = False

    def __init__(self, url: str, *, clock: Clock = now) -> None:
        self._place = read_url(url)
        self.url, self.where = url, self._place.where
        self._clock = None if clock is now else clock
        self._pid = os.getpid()
        self._opening = threading.Lock()
        self._database: Database | None = None

    # Life of the store

    @property
    def database(self) -> Database:
        """This process's connections. A forked child makes its own: two cannot share a conversation."""
        database = self._database
        return database if database is not None and database.pid == os.getpid() else self._connect()

    def _connect(self) -> Database:
        if self._pid != os.getpid():  # a thread of the parent may have held the lock
            self._pid, self._opening, self._database = os.getpid(), threading.Lock(), None
        with self._opening:
            if self._database is None:
                database = Database(self._place, self._clock)
                try:
                    self._check_version(database)
                    upgrade(self.where, database.read, database.write)
                except BaseException:
                    database.close()
                    raise
                self._database = database
            return self._database

    def _check_version(self, database: Database) -> None:
        version: str = database.read(lambda tx: tx.value(sql.VERSION))
        if tuple(map(int, version.split(".")[:2])) < OLDEST_SQLITE:
            raise StoreUnusable(self.where, f"its SQLite {version} is too old", "upgrade the server to 3.38 or newer")

    def open(self) -> None:
        _ = self.database

    def close(self) -> None:
        database = self._database
        if database is not None and database.pid == os.getpid():
            self._database = None
            database.close()

    def schema(self) -> int | None:
        with closing(Database(self._place, self._clock)) as database:
            found: int = database.read(lambda tx: schema_in(tx, self.where)[0])
        return found

    def newest_schema(self) -> int:
        return newest_schema()

    def upgrade(self) -> int:
        self.open()  # which does it by itself
        return newest_schema()

    def schema_sql(self) -> str:
        return schema_sql()

    def now(self) -> int:
        return self.database.read(lambda tx: tx.now)

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

        return self.database.read(steps)

    def changes(self) -> int:
        """Nobody tells, so that every look may find something new."""
        self._looks = getattr(self, "_looks", 0) + 1
        return self._looks

    def watch(self) -> Watch:
        return Watch()

    # Transactions

    def _write(self, verb: str, steps: Callable[[Any], T]) -> T:
        return self.database.write(steps)

    def _read(self, verb: str, steps: Callable[[Any], T]) -> T:
        return self.database.read(steps)

    def fold(self) -> int:
        return 0  # one writer at a time: everything is added up as it is written

    # Enqueue

    def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Job]:
        if connection is not None:
            if not isinstance(connection, Connection):
                way_out = "a job joins a transaction there through ctx.transaction() only; leave connection out"
                raise BadConnection(connection, "a libSQL server lets nobody else into a transaction", way_out)
            return connection.insert(jobs)
        try:
            return self._write("insert", lambda tx: insert.insert(tx, jobs))
        except CommitUnknown as unknown:
            try:
                return self._insert_again(jobs)
            except StoreUnusable:
                raise unknown from None  # of the two, the one that says that the jobs may be there
        except (Duplicate, JobNotFound):
            return self._insert_again(jobs)

    def _insert_again(self, jobs: Sequence[NewJob]) -> list[Job]:
        return self._write("insert", lambda tx: insert.insert_again(tx, jobs))

    # Settle

    @contextmanager
    def transaction(self, claimed: Claimed, outcome: Callable[[], Outcome]) -> Generator[Connection]:
        database = self.database
        with database.block() as tx:
            yield Connection(tx, database)
            ending = outcome()
            try:
                tx.now = database.now()
                tx.execute(f"RELEASE {BLOCK}")  # without it, what follows would be a commit for each statement
                if settle.settle_held(tx, [(claimed, ending)]):
                    raise LeaseLost(claimed.id, claimed.number)
                database.commit(tx)
            except NoResult as error:
                raise own_error(database, error) from error
