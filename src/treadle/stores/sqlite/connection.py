"""One SQLite file in one process: a writer, readers, and how they wait for each other."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from treadle.clock import Clock
from treadle.codec import as_json
from treadle.errors import CommitUnknown, StoreBusy, TreadleError
from treadle.stores.claim_order import Cursors
from treadle.stores.error_codes import Action, action, error_for, may_be_committed
from treadle.stores.sqlite import checkpoint
from treadle.stores.sqlite.checkpoint import MOST, Checkpointer, lengthen
from treadle.stores.sqlite.insert_claim_settle import Transitions
from treadle.stores.sqlite.sql import SQLiteStatements
from treadle.stores.transaction import BUSY_SECONDS, NOTHING

P = ParamSpec("P")
T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.0002, 0.01
"""Seconds between two attempts to take SQLite's lock."""
text = partial(str, encoding="utf-8", errors="replace")
"""A row that was broken by hand must be readable, so that only its own job fails."""


class Transaction(Transitions):
    """A connection, inside `BEGIN IMMEDIATE` if it is to write."""

    def __init__(self, connection: sqlite3.Connection, now: int, cursors: Cursors) -> None:
        self.connection = connection
        self.now = now
        self.cursors = cursors

    def execute(self, sql: str, parameters: Mapping[str, Any] = NOTHING) -> sqlite3.Cursor:
        return self.connection.execute(sql, parameters)

    def add_counts(self, tallies: Sequence[tuple[str, str, str, int]], usage: Sequence[tuple[object, ...]]) -> None:
        """A settle of very many types has rows for nearly every job. To read them from JSON takes as long as to write
        them."""
        places = {(status, queue) for status, _, queue, _ in tallies}
        if len(places) == 1:
            [(status, queue)] = places
            counts = as_json({type: n for _, type, _, n in tallies})
            self.execute(SQLiteStatements.ADD_TALLIES_ALIKE, {"status": status, "queue": queue, "counts": counts})
        elif tallies:
            self.execute(self.sql.ADD_TALLIES, {"rows": as_json(tallies)})
        self.connection.executemany(SQLiteStatements.ADD_USAGE_ROW, usage)


Steps = Callable[Concatenate[Transaction, P], T]


class Database:
    """The connections of one process, made when they are first used. A forked child has a Database of its own."""

    def __init__(self, path: Path, synchronous: str, clock: Clock) -> None:
        self.pid = os.getpid()
        self.path = path
        self._synchronous = synchronous
        self._clock = clock
        self._writer: sqlite3.Connection | None = None
        self._turn = threading.Lock()
        self._watcher: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        self._times_closed = 0
        self._readers: list[sqlite3.Connection] = []
        self._users: list[int] = []  # the threads that use a reader, or a connection apart
        self._gate = threading.Condition(threading.Lock())
        self._checkpointer = Checkpointer(path, self._connect_to_write, self._begin_checkpoint)
        self.cursors = Cursors(time.thread_time)
        self._has_turn = False
        self.left_open = False
        """Whether a fork found a connection in use: then the child must not use the file."""
        _open.add(self)

    def connect(self, seconds: float = 0.0) -> sqlite3.Connection:
        """Open a connection with treadle's settings.

        Only in a new file does the journal mode change, and that needs the lock. A connection that reads does not wait
        for it, as the user may hold it in a transaction of their own: the next connection will change the mode.
        """
        try:
            connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
            with nullcontext() if seconds else suppress(StoreBusy):
                self._patiently(connection, "PRAGMA journal_mode = WAL", time.monotonic() + seconds, seconds)
            connection.execute("PRAGMA busy_timeout = 5000")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            # Only one process may checkpoint at a time (see checkpoint.py), so no connection does it by itself.
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute(f"PRAGMA journal_size_limit = {MOST}")
        except sqlite3.Error as error:
            raise self._translated(error, "cannot be opened") from error
        connection.text_factory = text
        return connection

    def write(self, pool: str, steps: Steps[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Take the steps in one transaction, again if a new connection may help. (There is one writer, whatever it is
        for.)"""
        for last in (False, True):
            try:
                with self.writing() as tx:
                    return steps(tx, *args, **kwargs)
            except sqlite3.Error as error:
                if last or action(code_of(error)) not in (Action.REPEAT, Action.RECONNECT):
                    raise self._translated(error) from error
        raise AssertionError("unreachable")

    def read(self, pool: str, steps: Steps[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Take steps that only read: each sees the newest commit and does not wait."""
        with self._in_use():
            try:
                connection = self._readers.pop()
            except IndexError:
                connection = self.connect()
                connection.execute("PRAGMA query_only = ON")
            try:
                answer = steps(Transaction(connection, self._clock(), self.cursors), *args, **kwargs)
            except sqlite3.Error as error:
                connection.close()
                raise self._translated(error) from error
            except BaseException:
                self._readers.append(connection)
                raise
            self._readers.append(connection)
            return answer

    @contextmanager
    def writing(self, seconds: float = BUSY_SECONDS) -> Generator[Transaction]:
        """A write transaction, committed at the end of the block, rolled back if it raises.

        First it is our turn in this process, then SQLite's lock.
        """
        deadline = time.monotonic() + seconds
        if not self._turn.acquire(timeout=seconds):
            raise StoreBusy(str(self.path), seconds)
        try:
            self._writer = self._writer or self._connect_to_write()
            try:
                self._patiently(self._writer, "BEGIN IMMEDIATE", deadline, seconds)
                yield from self._transact(self._writer)
            except (sqlite3.Error, CommitUnknown) as error:
                # An older statement may not have been read to its end and still be referenced, for example by an
                # exception's traceback: until that ends, the connection sees the past. (SQLITE_BUSY_SNAPSHOT)
                if isinstance(error, CommitUnknown) or action(code_of(error)) is Action.RECONNECT:
                    self._writer.close()
                    self._writer = None
                raise
            self._checkpointer.after_commit()  # before the next thread has its turn: nobody can write meanwhile
        finally:
            self._turn.release()

    @contextmanager
    def writing_apart(self, seconds: float = BUSY_SECONDS) -> Generator[Transaction]:
        """`writing` on a connection of its own, for the user's code: it may close it."""
        with self._in_use():
            connection = self._connect_to_write()
            try:
                try:
                    self._patiently(connection, "BEGIN IMMEDIATE", time.monotonic() + seconds, seconds)
                except sqlite3.Error as error:
                    raise self._translated(error) from error
                yield from self._transact(connection)
            finally:
                connection.close()
        self._checkpointer.after_commit()

    def _transact(self, connection: sqlite3.Connection) -> Generator[Transaction]:
        try:
            yield Transaction(connection, self._clock(), self.cursors)
            self._commit(connection)
        except BaseException:
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if not may_be_committed(code_of(error)):
                raise
            # It is rolled back, but may be in the log: a crash before the next commit would bring it back.
            raise CommitUnknown(str(self.path), f"the disk failed during a commit ({error})") from error

    def changes(self) -> int:
        """SQLite's own count of commits by other connections than this one."""
        with self._watching:
            try:
                self._watcher = self._watcher or self.connect()
                value: int = self._watcher.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error as error:
                raise self._translated(error) from error
            return value + (self._times_closed << 32)  # a new connection counts from the start again

    def lengthen_log(self) -> None:
        """Unless the database is busy: it is no loss if the log grows by itself."""
        lengthen(f"{self.path}-wal", self.writing(seconds=0.1))

    def close(self) -> None:
        with self._turn, self._watching, self._checkpointer.busy:
            self._close_idle()

    def pause(self) -> None:
        """Before a fork. It does not wait forever, or for its own thread: instead, the child cannot use the store."""
        deadline = time.monotonic() + BUSY_SECONDS
        self._has_turn = self._turn.acquire(timeout=BUSY_SECONDS)
        self._watching.acquire()
        self._checkpointer.busy.acquire()
        self._gate.acquire()
        self._gate.wait_for(
            lambda: not self._users or threading.get_ident() in self._users, max(0.0, deadline - time.monotonic())
        )
        self.left_open = bool(self._users) or not self._has_turn
        self._close_idle(writer=self._has_turn)

    def resume(self) -> None:
        self._gate.release()
        self._checkpointer.busy.release()
        self._watching.release()
        if self._has_turn:
            self._turn.release()

    def _close_idle(self, writer: bool = True) -> None:
        self._times_closed += 1
        self._checkpointer.close()
        idle = [self._watcher, *self._readers]
        self._watcher = None
        self._readers.clear()
        if writer:
            idle.append(self._writer)
            self._writer = None
        for connection in idle:
            if connection is not None:
                connection.close()

    @contextmanager
    def _in_use(self) -> Generator[None]:
        """A connection that `pause` has to wait for."""
        thread = threading.get_ident()
        with self._gate:
            self._users.append(thread)
        try:
            yield
        finally:
            with self._gate:
                self._users.remove(thread)
                self._gate.notify_all()

    def _connect_to_write(self) -> sqlite3.Connection:
        connection = self.connect(BUSY_SECONDS)
        # Our own wait is shorter and has jitter; SQLite's sleeps up to 100 ms, and threads of one process would
        # wait for each other that way too.
        connection.execute("PRAGMA busy_timeout = 0")
        return connection

    def _begin_checkpoint(self, connection: sqlite3.Connection) -> None:
        seconds, longest = checkpoint.PATIENCE, checkpoint.LONGEST_PAUSE
        self._patiently(connection, "BEGIN IMMEDIATE", time.monotonic() + seconds, seconds, longest)

    def _patiently(
        self,
        connection: sqlite3.Connection,
        sql: str,
        deadline: float,
        seconds: float,
        longest: float = LONGEST_PAUSE,
    ) -> None:
        """Execute what SQLite may refuse at once, whatever its timeout is, while another connection has the lock."""
        began, pause = time.monotonic(), FIRST_PAUSE
        while True:
            try:
                connection.execute(sql)
                return
            except sqlite3.OperationalError as error:
                if action(code_of(error)) is not Action.BUSY:
                    raise
                now = time.monotonic()
                if now >= deadline:
                    raise StoreBusy(str(self.path), seconds) from None
            time.sleep(random.uniform(pause / 2, pause))
            pause = next_pause(pause, now - began, longest)

    def _translated(self, error: sqlite3.Error, problem: str = "the database answered") -> TreadleError:
        return error_for(code_of(error), str(self.path), f"{problem} ({error})", _way_out(self.path))


def next_pause(pause: float, waited: float, longest: float = LONGEST_PAUSE) -> float:
    """Longer and longer for a second, then shorter and shorter. The lock goes to the first that tries, and under load
    that must not always be the newest."""
    return min(pause * 1.5, longest / max(waited, 1.0))


def code_of(error: sqlite3.Error) -> str:
    """SQLite's name for it. Python's own errors have none: a connection that is closed, a value of an unknown type."""
    return getattr(error, "sqlite_errorname", "SQLITE_MISUSE")


def _way_out(path: Path) -> str:
    if not path.parent.is_dir():
        return f"create the folder first: mkdir -p {path.parent}"
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        return "the file and its folder must be writable, as SQLite keeps its -wal and -shm files next to it"
    return "check that it is a SQLite file and that the disk has room: treadle doctor"


# A fork must find no connection open. SQLite keeps its locks in a list of the process. A child inherits that list, but
# not the locks: it would believe that it holds them, the last of its family to close the file would delete the log
# under it, and what it has committed would be gone. (Tried: two answered enqueues were lost.) So everything is closed
# before a fork, and opened again after it, on either side, when it is next used.

_open: weakref.WeakSet[Database] = weakref.WeakSet()
_paused: list[Database] = []
_one_at_a_time = threading.Lock()


def _before_fork() -> None:
    _one_at_a_time.acquire()
    for database in list(_open):
        if database.pid == os.getpid():
            database.pause()
            _paused.append(database)


def _after_fork() -> None:
    while _paused:
        _paused.pop().resume()
    _one_at_a_time.release()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
