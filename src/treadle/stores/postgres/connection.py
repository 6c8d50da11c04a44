"""The connections of one process to a PostgreSQL server, and what happens to a transaction when one of them breaks."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import Any, Concatenate, LiteralString, ParamSpec, TypeVar

import psycopg
from psycopg import BaseConnection, RawCursor
from psycopg.pq import TransactionStatus

from treadle.clock import Clock
from treadle.errors import CommitUnknown, StoreBusy, StoreUnusable, TreadleError
from treadle.stores.claim_order import Cursors
from treadle.stores.error_codes import Action, action, error_for, may_be_committed
from treadle.stores.postgres import roles, sql
from treadle.stores.postgres.insert_claim_settle import Transitions
from treadle.stores.postgres.notify import CHANNEL, Budget, Notices
from treadle.stores.postgres.placeholders import at_server_time, named, numbered
from treadle.stores.postgres.sockets import readable
from treadle.stores.transaction import BUSY_SECONDS, NOTHING, Rows

P = ParamSpec("P")
T = TypeVar("T")

ANSWER_SECONDS = 40.0
"""How long the server may take to answer: longer than its own statement_timeout."""
POOLS = {"claim": 1, "settle": 1, "beat": 1, "insert": 4, "read": 4, "apart": 20, "other": 4}
"""Connections by purpose, so that none starves another, and the most that each may have."""
ALIKE = (("claim", "settle", "beat", "insert"), ("read", "other"))
"""Pools that share what is idle: their sessions have the same settings. (Users may change the settings of "apart".)"""
KEPT = 4
"""Idle connections of such pools that are not closed, and the seconds for which all but the last one are kept."""
KEPT_SECONDS = 10.0

DEFAULTS = {
    "application_name": "treadle",
    "connect_timeout": "5",
    # A peer that disappears silently is noticed within half a minute.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
IS_IT_UP = "is the server up, and the URL right? treadle doctor"
LOST = "08006"
"""The SQLSTATE of a connection that broke. psycopg raises an error without one."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection on which an answer takes no longer than `answer_within`, if that is not None.

    TCP notices a peer that is gone, but not a pooler or a proxy that is alive and forwards nothing.
    """

    answer_within: float | None = None
    is_pooled = False
    """Whether a pooler is in between: each transaction may run in another session."""
    used_at = 0.0
    is_set_up = False
    """Whether the session has treadle's settings, for statements without a BEGIN."""

    @property
    def is_quiet(self) -> bool:
        """Whether the server has sent nothing since its last answer. One that ends a session says so, or hangs up."""
        return not readable((self.fileno(),), 0)

    def __del__(self, *_: Any) -> None:
        """psycopg warns if it was not closed. Here it is normal to end with the program, as in a pool."""

    def execute_numbered(self, statement: str, parameters: Mapping[str, Any], *, prepare: bool | None = None) -> Rows:
        """Execute one statement. psycopg searches a text of ours for placeholders each time, which for a claim takes as
        long as all else that it does. A number in binary costs half of one in text."""
        text, names = numbered(statement)
        values = [parameters[name] for name in names]
        return RawCursor(self).execute(text, values, prepare=prepare, binary=True)

    def execute_prepared(self, statement: str, parameters: Mapping[str, Any]) -> Rows:
        """Execute a statement that comes often. psycopg itself prepares it only when it comes for the sixth time."""
        return self.execute_numbered(statement, parameters, prepare=True)

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        return super().wait(gen if self.answer_within is None else self._in_time(gen), *args, **options)

    def _in_time(self, gen: Any) -> Generator[Any, Any, Any]:
        """The same, until it is too late. psycopg's wait for the socket comes back here every tenth of a second."""
        limit = self.answer_within or 0.0
        deadline = time.monotonic() + limit
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {limit:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


class Transaction(Transitions):
    """A connection, and the moment at which all of it happens: the server's, unless the store has a clock."""

    prepare: bool | None = None  # False: no statement is prepared; None: those that come often are

    def __init__(self, connection: Any, database: Database, now: int | None = None) -> None:
        self.connection = connection
        self.cursors = database.cursors
        self.queues: set[str] = set()
        self._database = database
        if now is None or database.clock is not None:
            self.set_now()
        else:
            self.now = now

    def execute(self, sql: str, parameters: Mapping[str, Any] = NOTHING) -> Rows:
        if parameters and isinstance(self.connection, Connection):
            return self.connection.execute_numbered(sql, parameters, prepare=self.prepare)
        rows: Rows = self.connection.execute(named(sql), parameters)
        return rows

    def job_waits(self, queue: str) -> None:
        """The workers of this queue are notified when all of this is committed."""
        self.queues.add(queue)

    def set_now(self) -> None:
        """Take the moment from the clock: time may have passed since the transaction began."""
        clock = self._database.clock
        self.now = int(self.value(sql.NOW)) if clock is None else clock()

    def act_for(self, tenant: str) -> None:
        if tenant and self._database.scope == "":
            self.execute(roles.SET_TENANT, {"tenant": tenant})


Steps = Callable[Concatenate[Transaction, P], T]


class _Pool:
    """The connections for one purpose. Those that are idle may serve others."""

    def __init__(self, size: int) -> None:
        self.free = threading.BoundedSemaphore(size)
        self.idle: list[Connection] = []
        """The one that was used last is the last."""


class Database:
    """The connections of one process. A forked child has its own, and leaves these alone."""

    def __init__(self, conninfo: str, where: str, clock: Clock | None) -> None:
        self.pid = os.getpid()
        self.where = where
        self.conninfo = conninfo
        self.clock = clock
        self._pools = {name: _Pool(size) for name, size in POOLS.items()}
        for first, *others in ALIKE:
            for name in others:
                self._pools[name].idle = self._pools[first].idle
        self.budget = Budget()
        self.cursors = Cursors()

    def connect(self) -> Connection:
        """Open a connection with treadle's settings. Each statement is a transaction unless it says BEGIN."""
        try:
            connection = Connection.connect(self.conninfo, autocommit=True)
            connection.answer_within = ANSWER_SECONDS
            if connection.execute(sql.BACKEND_PID).fetchone() != (connection.info.backend_pid,):
                # A pooler answers. A statement that we prepare in one session may run in another.
                connection.is_pooled, connection.prepare_threshold = True, None
        except psycopg.Error as error:
            raise StoreUnusable(self.where, f"cannot be reached ({_line(error)})", IS_IT_UP) from error
        connection.add_notice_handler(lambda _: None)
        return connection

    @cached_property
    def scope(self) -> str | None:
        """The tenant whose jobs our role can see: None for all, '' for the one that each transaction names."""
        scope: str | None = self.read("other", Transaction.value, roles.SCOPE)
        return scope

    def write(self, pool: str, steps: Steps[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Take the steps in one transaction. Nothing of them stays if they raise."""
        return self._patiently(lambda: self._write_once(pool, steps, *args, **kwargs))

    def write_at_once(self, pool: str, statement: str, parameters: Mapping[str, Any] = NOTHING) -> Rows:
        """Execute one statement, and commit. It takes one round trip: without a BEGIN, a statement commits itself.

        If the connection may have ended, there is a BEGIN: nothing is lost if it fails. So is there behind a pooler,
        whose sessions have not our settings.
        """
        rows = self._patiently(lambda: self._alone(pool, statement, parameters))
        if rows is None:
            return self.write(pool, lambda tx: tx.execute(statement, {**parameters, "now": tx.now}))
        return rows

    def read_at_once(self, pool: str, statement: str, parameters: Mapping[str, Any]) -> Rows:
        """Execute one statement that only reads, in one round trip."""
        with suppress(CommitUnknown):
            return self.write_at_once(pool, statement, parameters)
        return self.read(pool, Transaction.execute, statement, parameters)

    def at_this_moment(self, statement: str, parameters: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """With :now, by the server's clock or by ours."""
        if self.clock is None:
            return at_server_time(statement), parameters
        return statement, {**parameters, "now": self.clock()}

    def _alone(self, pool: str, statement: str, parameters: Mapping[str, Any]) -> Rows | None:
        statement, parameters = self.at_this_moment(statement, parameters)
        with self.borrow(pool) as connection:
            if connection.is_pooled or not connection.is_quiet:
                return None
            if not connection.is_set_up:
                connection.execute(sql.SET_UP_SESSION)
                connection.is_set_up = True
            with self.committing(connection):
                return connection.execute_prepared(statement, parameters)

    def _patiently(self, call: Callable[[], T]) -> T:
        """Repeat a call if it is certain that nothing was committed: after a deadlock, and once on a new connection, as
        all of them break when the server restarts."""
        reconnected = False
        for tries in range(10):
            try:
                return call()
            except psycopg.Error as error:
                needed = action(code_of(error))
                if needed is Action.REPEAT:
                    time.sleep(random.uniform(0, 0.01 * (tries + 1)))
                elif needed is Action.RECONNECT and not reconnected:
                    reconnected = True
                else:
                    raise self.translated(error) from error
        raise StoreBusy(self.where, BUSY_SECONDS)

    def _write_once(self, pool: str, steps: Steps[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.borrow(pool) as connection, self.begun(connection) as tx:
            answer = steps(tx, *args, **kwargs)
            notices = self.notify(tx)
            self.commit(connection)
        if tx.queues:
            self.notified(notices)
            self.cursors.stale = True
        return answer

    @contextmanager
    def begun(self, connection: Connection, how: LiteralString | None = None) -> Generator[Transaction]:
        """A transaction that is rolled back unless it is committed in the block."""
        rows = connection.execute(how or sql.BEGIN)
        while rows.nextset():
            pass
        (now, *_) = rows.fetchone() or (None,)
        try:
            yield Transaction(connection, self, now)
        finally:
            if connection.info.transaction_status != TransactionStatus.IDLE:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")

    def begin_block(self) -> tuple[ExitStack, Transaction]:
        """A transaction for the user's own statements, and what ends it."""

        def begin() -> tuple[ExitStack, Transaction]:
            with ExitStack() as stack:
                connection = stack.enter_context(self.borrow("apart"))
                tx = stack.enter_context(self.begun(connection))
                connection.execute(sql.NO_LIMITS)
                tx.prepare = False  # a plan of the user's settings would stay, and lock rows in another order
                return stack.pop_all(), tx

        return self._patiently(begin)

    def commit(self, connection: Connection) -> None:
        with self.committing(connection):
            connection.execute("COMMIT")

    @contextmanager
    def committing(self, connection: BaseConnection[Any]) -> Generator[None]:
        """An error that the server answers says that it was rolled back; without an answer, nobody knows."""
        try:
            yield
        except psycopg.Error as error:
            if not connection.broken and not may_be_committed(error.sqlstate or ""):
                raise
            raise CommitUnknown(self.where, f"the connection broke during a commit ({_line(error)})") from error

    def read(self, pool: str, steps: Steps[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Take steps that only read, all of one moment."""
        for last in (False, True):
            try:
                with self.borrow(pool) as connection, self.begun(connection, sql.BEGIN_TO_READ) as tx:
                    return steps(tx, *args, **kwargs)
            except psycopg.Error as error:
                if last or action(code_of(error)) not in (Action.REPEAT, Action.RECONNECT):
                    raise self.translated(error) from error
        raise AssertionError("unreachable")

    @contextmanager
    def borrow(self, name: str) -> Generator[Connection]:
        """A connection of a pool. One that became useless in the block is not used again."""
        pool = self._pools[name]
        if not pool.free.acquire(timeout=BUSY_SECONDS):
            raise StoreBusy(self.where, BUSY_SECONDS)
        try:
            connection = self._idle(pool) or self.connect()
            connection.answer_within = ANSWER_SECONDS
            try:
                yield connection
            except psycopg.Error as error:
                close_if_useless(connection, error)
                raise
            finally:
                self._put_back(pool, connection)
        finally:
            pool.free.release()

    def _put_back(self, pool: _Pool, connection: Connection) -> None:
        if connection.closed:
            self.close()  # what ended this one, such as a restart or a failover, concerns all that are idle
        elif connection.info.transaction_status == TransactionStatus.IDLE and len(pool.idle) < KEPT:
            connection.used_at = time.monotonic()
            pool.idle.append(connection)
            self._close_unused(pool)
        else:
            connection.close()

    def _close_unused(self, pool: _Pool) -> None:
        """So that an idle worker has few connections: the first is used least."""
        with suppress(IndexError):  # another thread may take it
            while len(pool.idle) > 1 and time.monotonic() - pool.idle[0].used_at > KEPT_SECONDS:
                pool.idle.pop(0).close()

    def _idle(self, pool: _Pool) -> Connection | None:
        with suppress(IndexError):  # another thread may take the last one
            while True:
                connection = pool.idle.pop()
                if not connection.closed:
                    return connection
        return None

    def notify(self, tx: Transaction) -> Notices:
        """Notify the workers of these queues with the commit, if the budget allows it."""
        notices = self.budget.notices(tx.queues)
        for text in notices.texts:
            tx.execute(sql.NOTIFY, {"channel": CHANNEL, "text": text})
        return notices

    def notified(self, notices: Notices) -> None:
        """A commit that lets jobs be claimed has sent these. One that sent none and took long sends one now."""
        if notices.texts:
            self.budget.sent(notices)
        elif self.budget.is_late():
            notices = self.budget.notices({""})
            with suppress(TreadleError):  # the commit is done, and this is a hint
                for text in notices.texts:
                    self.write_at_once("other", sql.NOTIFY, {"channel": CHANNEL, "text": text})
                self.budget.sent(notices)

    def close(self) -> None:
        """Close what is idle. What is used next connects again."""
        for pool in self._pools.values():
            while connection := self._idle(pool):
                connection.close()

    @contextmanager
    def typed(self, connection: Connection) -> Generator[None]:
        """Errors of psycopg become those of treadle."""
        try:
            yield
        except psycopg.Error as error:
            close_if_useless(connection, error)
            raise self.translated(error) from error

    def translated(self, error: psycopg.Error) -> TreadleError:
        what = "the connection was lost" if code_of(error) == LOST else "the server answered"
        return error_for(code_of(error), self.where, f"{what} ({_line(error)})", IS_IT_UP)


def close_if_useless(connection: Connection, error: psycopg.Error) -> None:
    """Close a connection on which nothing can be done any more, such as one to a server that has become read-only."""
    if action(code_of(error)) is Action.RECONNECT:
        connection.close()


def code_of(error: psycopg.Error) -> str:
    """Its SQLSTATE. psycopg's own errors have none: a connection that broke, or a value that cannot be sent."""
    own = LOST if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else "22000"
    return error.sqlstate or own


def _line(error: psycopg.Error) -> str:
    """An error in one line."""
    return error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
