"""Transactions on a libSQL server: SQLite's statements, in few round trips, and what a lost reply means."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from treadle.clock import SECOND, Clock
from treadle.errors import CommitUnknown, StoreUnusable, TransactionOver
from treadle.stores.claim_order import Cursors, KnownLimits
from treadle.stores.error_codes import Action, action, error_for, may_be_committed
from treadle.stores.libsql.hrana import Failed, Parameters, Result, Statement, Stream
from treadle.stores.libsql.server import NoResult, Refused, Server, Unreachable, Untrusted
from treadle.stores.libsql.url import Endpoint
from treadle.stores.ranges import ReadyRange
from treadle.stores.sqlite.insert_claim_settle import Transitions
from treadle.stores.sqlite.insert_claim_settle_sql import SAVEPOINT
from treadle.stores.sqlite.sql import SERVER_TIME
from treadle.stores.transaction import BUSY_SECONDS, NOTHING

P = ParamSpec("P")
T = TypeVar("T")

ANSWER_SECONDS = 15.0
"""How long an answer may take. A wait for the write lock ends after 5 s: the server ends a transaction that holds it
longer."""
MEASURE_EVERY = 60.0
"""Seconds after which the server's clock is compared with ours again."""
GONE = ("TRANSACTION_TIMEOUT", "STREAM_EXPIRED", "TRANSACTION_BUSY")
BLOCK = "treadle_block"
"""A savepoint that is gone if the transaction it is in has ended."""


class Cursor:
    """What a statement found or changed, as sqlite3 has it. The statement is sent when its result, or that of a later
    one, is read."""

    __slots__ = ("_changed", "_rows", "_tx")

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._rows: Iterator[Any] | None = None

    def answer(self, result: Result) -> None:
        self._rows, self._changed = iter(result.rows), result.changed

    def __iter__(self) -> Iterator[Any]:
        if self._rows is None:
            self._tx.flush()
        assert self._rows is not None
        return self._rows

    @property
    def rowcount(self) -> int:
        iter(self)
        return self._changed

    def fetchone(self) -> Any:
        return next(iter(self), None)

    def fetchall(self) -> list[Any]:
        return list(self)


class Transaction(Transitions):
    """Statements on one stream. They pile up until the answer of one is read, and travel together."""

    travels_together = True

    def __init__(self, database: Database, *, begins: bool) -> None:
        self.stream = Stream(database.server)
        # Each claim looks at everything: they do not wait for each other.
        self.cursors = Cursors(known=database.known, finds_ahead=False)
        self.cursors.turn = database.turn
        self._begins = begins
        self._pending: list[tuple[Statement, Cursor]] = []
        self.is_over = False

    def execute(self, sql: str, parameters: Parameters = NOTHING) -> Cursor:
        if self.is_over:  # the server would take each statement for a transaction of its own
            raise TransactionOver("this transaction is over; nothing can be added to it")
        self._begins = self._begins or sql == SAVEPOINT
        rows = Cursor(self)
        self._pending.append(((sql, parameters), rows))
        return rows

    def flush(self, *, last: bool = False) -> None:
        """Send what has piled up. With `last`, the conversation is over; without a transaction it always is."""
        last = last or not self._begins
        pending, self._pending = self._pending, []
        if not pending and not (last and self.stream.open):
            return
        results = self.stream.execute([statement for statement, _ in pending], last=last)
        for (_, rows), result in zip(pending, results, strict=True):
            rows.answer(result)

    def forget(self) -> None:
        self._pending.clear()


Steps = Callable[Concatenate[Transaction, P], T]


class Database:
    """The server, as one process uses it."""

    def __init__(self, endpoint: Endpoint, clock: Clock | None) -> None:
        self.where = endpoint.where
        self.pid = os.getpid()
        self.server = Server(endpoint, seconds=ANSWER_SECONDS)
        self._clock = clock
        self._offset = 0.0
        self._measured = -MEASURE_EVERY
        self.requests = 0
        self.known = KnownLimits()
        self.turn: dict[ReadyRange, str] = {}

    def now(self) -> int:
        """The server's clock, which all of its users share: as it was measured, plus the time since."""
        if self._clock is not None:
            return self._clock()
        if time.monotonic() - self._measured >= MEASURE_EVERY:
            before = time.monotonic()
            [result] = Stream(self.server).execute([(SERVER_TIME, NOTHING)], last=True)
            after = time.monotonic()
            self._offset = float(result.rows[0][0] or 0) - (before + after) / 2
            self._measured = after
        return int((time.monotonic() + self._offset) * SECOND)

    def write(self, pool: str, steps: Steps[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Take the steps in one transaction, again if it is certain that nothing of them was committed."""
        return self._patiently(self._write_once, steps, *args, **kwargs)

    def _patiently(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        deadline = time.monotonic() + BUSY_SECONDS
        broken = 0
        while True:
            try:
                return call(*args, **kwargs)
            except Unreachable as error:  # a server that has restarted has closed our idle connections
                broken += 1
                if broken > 2:
                    raise self.translated(error) from error
                self.server.close()
            except Failed as error:
                if action(error.code) not in (Action.REPEAT, Action.BUSY) or time.monotonic() > deadline:
                    raise self.translated(error) from error
                time.sleep(random.uniform(0.001, 0.02))
            except Refused as error:
                if error.status != 400 or broken:  # 400: the server has forgotten our stream, as when it restarts
                    raise self.translated(error) from error
                broken += 1
            except Untrusted as error:
                raise self.translated(error) from error

    def _write_once(self, steps: Steps[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        tx = self._begin()
        try:
            answer = steps(tx, *args, **kwargs)
            self.commit(tx)
            return answer
        finally:
            self._end(tx)

    @contextmanager
    def block(self) -> Iterator[Transaction]:
        """A transaction for the user's own statements. It has begun, so that an error is never of the BEGIN."""
        tx = self._patiently(self._begin_block)
        try:
            yield tx
        finally:
            self._end(tx)

    def _begin(self) -> Transaction:
        """A transaction that is rolled back when it ends, unless it is committed."""
        tx = Transaction(self, begins=True)
        tx.now = self.now()
        tx.execute("BEGIN IMMEDIATE")
        return tx

    def _begin_block(self) -> Transaction:
        tx = self._begin()
        try:
            tx.execute(f"SAVEPOINT {BLOCK}")
            tx.flush()
        except BaseException:
            self._end(tx)
            raise
        return tx

    def commit(self, tx: Transaction) -> None:
        """Pending statements and the COMMIT are one request, so that without a response the result is unknown."""
        tx.execute("COMMIT")
        try:
            tx.flush(last=True)
        except (Unreachable, Refused, Failed) as error:
            if isinstance(error, Refused) and 400 <= error.status < 500:
                raise
            if isinstance(error, Failed) and not may_be_committed(error.code):
                raise
            raise CommitUnknown(self.where, f"the connection broke during a commit ({error})") from error

    def read(self, pool: str, steps: Steps[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Take steps that only read, each of which sees the newest commit."""
        for tries in (1, 2, 3):
            tx = Transaction(self, begins=False)
            try:
                tx.now = self.now()
                return steps(tx, *args, **kwargs)
            except NoResult as error:
                if tries == 3 or not isinstance(error, Unreachable):
                    raise self.translated(error) from error
                self.server.close()
            finally:
                self._end(tx)
        raise AssertionError("unreachable")

    def _end(self, tx: Transaction) -> None:
        """Close the stream, which rolls back what it has begun."""
        tx.forget()
        tx.is_over = True
        if tx.stream.open:
            with suppress(NoResult):
                tx.flush(last=True)
        self.requests += tx.stream.requests

    def close(self) -> None:
        self.server.close()

    def translated(self, error: Exception) -> Exception:
        """The error that a store's user knows."""
        match error:
            case Failed():
                said, way_out = f"the server answered ({error})", "see the server's log"
                return error_for(error.code, self.where, said, way_out, joins_transactions=False)
            case Unreachable():
                return StoreUnusable(self.where, f"no answer ({error})", "is the server up, and the URL right?")
            case Untrusted():
                return StoreUnusable(self.where, str(error), error.way_out)
            case Refused(status=401 | 403):
                way_out = "put a valid one in $TREADLE_LIBSQL_TOKEN"
                return StoreUnusable(self.where, f"the server refused the token ({error})", way_out)
            case Refused():
                way_out = "is it a libSQL server?" if error.status < 429 else "wait, and see the server's log"
                return StoreUnusable(self.where, f"it answered {error.status} ({error})", way_out)
            case _:
                return error
