"""The store on a SQLite file: how it connects, how it joins your own transaction, and how it waits."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from treadle.clock import Clock, now
from treadle.errors import BadConnection, BadOption, StoreUnusable, TransactionOver
from treadle.job import ClaimedJob, Status
from treadle.outcome import Outcome
from treadle.stores.base import LAST_PRUNED, TypePolicy
from treadle.stores.claim_order import Cursors
from treadle.stores.shared import claim_settle, manage
from treadle.stores.shared.store import D, SQLStore
from treadle.stores.sqlite import sql
from treadle.stores.sqlite import url as sqlite_url
from treadle.stores.sqlite.connection import Database, Transaction, text
from treadle.stores.sqlite.prune import NotOld
from treadle.stores.sqlite.schema import newest_schema, schema_of, schema_sql, upgrade, upgrade_in
from treadle.stores.sqlite.watch import Watch
from treadle.stores.user_connections import ASYNC, is_async, unwrap
from treadle.stores.user_connections.detect import way_out_of_factory

TRANSACTION_SECONDS = 5.0
"""How long `ctx.transaction()` may hold the only writer."""
OLDEST_SQLITE = (3, 38)
"""The first with `->>`; STRICT tables came with 3.37, RETURNING with 3.35."""


class SQLiteTables(SQLStore[D]):
    """Jobs in SQLite's tables, in a file or on a libSQL server."""

    newest_schema, schema_sql = staticmethod(newest_schema), staticmethod(schema_sql)

    def upgrade(self) -> int:
        self.open()  # which does it by itself
        return newest_schema()

    def compact(self) -> int:
        return 0  # one writer at a time: everything is added up as it is written


class SQLiteStore(SQLiteTables[Database]):
    """Jobs in one file, shared by all processes of one machine."""

    single_host = True
    notices_commits = True
    dedupe_may_block = False
    joins_transactions = True

    def __init__(self, url: str, *, synchronous: str = "FULL", clock: Clock = now) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise BadOption("synchronous", synchronous, "FULL survives a power cut, NORMAL may lose the last moments")
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            where, way_out = f"SQLite {sqlite3.sqlite_version}", "use a Python with SQLite 3.38 or newer"
            raise StoreUnusable(where, "it is too old", way_out)
        super().__init__()
        self.path = sqlite_url.path_of(url)
        self.where = str(self.path)
        self.url = f"sqlite:///{self.path}"
        self._synchronous = synchronous
        self._clock = clock

    # Life of the store

    def _connections(self) -> Database:
        sqlite_url.check(self.path)
        return Database(self.path, self._synchronous, self._clock)

    def _prepare(self, database: Database) -> None:
        upgrade(self.where, database)

    def _inherit(self, parents: Database) -> None:
        """The end of connection.py says what would happen otherwise."""
        if parents.left_open:
            problem = "this process was forked while its parent had a transaction open on it"
            raise StoreUnusable(self.where, problem, "fork before or after ctx.transaction(), or spawn")

    def schema(self) -> int | None:
        return schema_of(self.path)

    def empty(self) -> None:
        """Delete every job, and what is known of workers and types. For tests: `treadle.testing.temporary`."""
        self.database.write("other", lambda tx: [tx.execute(statement) for statement in sql.EMPTY])

    def now(self) -> int:
        return self._clock()

    def _prune(self, statuses: Sequence[Status], before: int, limit: int) -> int:
        """To find what is old takes as long as to delete it. So it is found before others have to wait."""
        old = manage.prunable(self.now(), statuses, before, limit)
        found = self.database.read("other", Transaction.prunable, old, True)

        def steps(tx: Transaction) -> int:
            return manage.tally_pruned(tx, tx.prune_found(found, before=True))

        try:
            return self.database.write("other", steps) if found.n else 0
        except NotOld:
            return super()._prune(statuses, before, min(limit, LAST_PRUNED))

    def status(self) -> Mapping[str, Any]:
        def steps(tx: Transaction) -> Mapping[str, Any]:
            connection = tx.connection
            pages = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")}
            meta = dict(connection.execute(sql.META))
            log = f"{self.path}-wal"
            return {
                "store": "sqlite",
                "where": self.where,
                "schema": meta["schema"],
                "newest_schema": newest_schema(),
                "leases_given": meta.get("lease", 0),
                "bytes": pages["page_count"] * pages["page_size"],
                "log_bytes": os.stat(log).st_size if os.path.exists(log) else 0,
                "journal_mode": connection.execute("PRAGMA journal_mode").fetchone()[0],
                "synchronous": self._synchronous,
                "sqlite_version": sqlite3.sqlite_version,
                "file_system": sqlite_url.file_system(self.path),
            }

        return self.database.read("read", steps)

    def check(self) -> str:
        """SQLite's integrity check: 'ok', or what is wrong. Reads the whole file."""
        answer: str = self.database.read("read", Transaction.value, "PRAGMA integrity_check")
        return answer

    def changes(self) -> int:
        return self.database.changes()

    def watch(self) -> Watch:
        self.database.lengthen_log()  # who watches waits for commits
        return Watch(Path(f"{self.path}-wal"), self.database.changes)

    def claims_on_loop(self, thread: Executor) -> None:
        return None

    # Enqueue

    def policies(self) -> dict[str, TypePolicy]:
        """A file without tables has none. They are not created here: the user may have a transaction open."""
        return {} if self._database is None and not self.schema() else super().policies()

    @contextmanager
    def _within(self, connection: Any) -> Generator[Transaction]:
        """The caller's own open transaction on this database. If the block raises, nothing of it stays there."""
        connection = unwrap(connection)
        if is_async(connection):
            raise BadConnection(connection, *ASYNC)
        if not isinstance(connection, sqlite3.Connection):
            way_out = way_out_of_factory(connection) or f"pass one to {self.where}"
            raise BadConnection(connection, "it is not a sqlite3 connection", way_out)
        is_new = self._database is None
        if is_new:
            sqlite_url.check(self.path)
        else:
            self.open()
        factories = connection.row_factory, connection.text_factory
        connection.row_factory, connection.text_factory = None, text
        try:
            self._check_theirs(connection)
            connection.execute("SAVEPOINT treadle")
            try:
                tx = Transaction(
                    connection, self._clock(), Cursors(finds_ahead=False) if is_new else self.database.cursors
                )
                if is_new:  # another connection would wait for the user's transaction to create the tables
                    upgrade_in(tx, self.where)
                yield tx
            except BaseException:
                with suppress(sqlite3.Error):  # some errors have already rolled back everything
                    connection.execute("ROLLBACK TO treadle")
                    connection.execute("RELEASE treadle")
                raise
            connection.execute("RELEASE treadle")
        finally:
            connection.row_factory, connection.text_factory = factories

    def _check_theirs(self, connection: sqlite3.Connection) -> None:
        """It must be open on our file, and in a transaction: otherwise each of our statements would be a commit."""
        files = [row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main"]
        if not files or not files[0] or not self.path.exists() or not os.path.samefile(files[0], self.path):
            theirs = files[0] if files and files[0] else "a database in memory"
            way_out = "give both the same absolute path: sqlite:////srv/app/jobs.db"
            raise BadConnection(connection, f"it is open on {theirs}, and the jobs are in {self.where}", way_out)
        if not connection.in_transaction:
            if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
                way_out = "begin one first, or leave connection out"
                raise BadConnection(connection, "no transaction is open on it", way_out)
            connection.execute("BEGIN IMMEDIATE")

    def _undo(self, connection: Any) -> None:
        unwrap(connection).rollback()

    @contextmanager
    def transaction(self, claimed: ClaimedJob, outcome: Callable[[], Outcome | None]) -> Generator[sqlite3.Connection]:
        with self.database.writing_apart() as tx:
            began = time.monotonic()
            limit = threading.Timer(TRANSACTION_SECONDS, _cut_off, (tx.connection,))
            limit.start()
            try:
                yield tx.connection
            except sqlite3.Error as error:
                if over := _too_long(began):
                    raise over from error
                raise
            finally:
                limit.cancel()
                limit.join()  # a connection must not be closed while another thread uses it
            if over := _too_long(began):
                raise over
            if not tx.connection.in_transaction:
                raise TransactionOver(claim_settle.ENDED_BY_THE_BLOCK)
            tx.now = self._clock()
            claim_settle.settle_in_transaction(tx, claimed, outcome())


def _cut_off(connection: sqlite3.Connection) -> None:
    """Take the lock away even from a block that never returns, and let it write nothing more.

    This is another thread than the block's, so that closing the connection could crash the process.
    """
    while connection.in_transaction:
        connection.interrupt()
        with suppress(sqlite3.Error):  # interrupted itself, if a statement of the block was running
            connection.execute("PRAGMA query_only = ON")
            connection.execute("ROLLBACK")
        time.sleep(0.001)


def _too_long(began: float) -> TransactionOver | None:
    held = time.monotonic() - began
    if held < TRANSACTION_SECONDS:
        return None
    return TransactionOver(
        f"ctx.transaction() was held for {held:.1f} s and the limit is {TRANSACTION_SECONDS:g} s, because no other "
        "process can write during that time; nothing was stored: do the slow work first, then write in the block"
    )
