"""Stores on Django's own connection: what a test or an `atomic()` has not committed, only that connection sees."""

# Django has no types, and what pyright infers from its code is wrong here.
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import os
import sqlite3
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

from django.db import connections, transaction

from treadle.clock import now
from treadle.errors import MissingExtra, TreadleError
from treadle.job import ClaimedJob, Job, NewJob
from treadle.outcome import Outcome
from treadle.steps import NewStep, Step
from treadle.stores.base import ClaimRequest
from treadle.stores.claim_order import Cursors
from treadle.stores.rows import Claim, Settled
from treadle.stores.shared import claim_settle
from treadle.stores.shared.store import SQLStore
from treadle.stores.sqlite import connection as sqlite_connection
from treadle.stores.sqlite.schema import schema_in, upgrade_in
from treadle.stores.sqlite.store import SQLiteStore
from treadle.waits import NewSignal, Signal

if TYPE_CHECKING:
    from treadle.stores.postgres.store import PostgresStore

P = ParamSpec("P")
T = TypeVar("T")
NO_WORKER = (
    "no worker can run in a test of Django, because its threads do not see what the test has written; run the jobs in"
    " the thread of the test: from treadle.contrib.django.testing import drain"
)
_lent: ContextVar[Any] = ContextVar("lent", default=None)


@contextmanager
def lend(alias: str) -> Generator[None]:
    """Let other threads that work for this caller, such as those of the dashboard, use its connection."""
    connection = connections[alias]
    connection.inc_thread_sharing()
    token = _lent.set(connection)
    try:
        yield
    finally:
        _lent.reset(token)
        connection.dec_thread_sharing()


@contextmanager
def borrowed(alias: str) -> Generator[None]:
    """In this thread, the ORM uses the connection that was lent to it, if one was."""
    own = connections[alias]
    connections[alias] = _lent.get() or own
    try:
        yield
    finally:
        connections[alias] = own


def store_on(alias: str) -> DjangoSQLite | PostgresStore | None:
    """A store on that connection of the calling thread; None if it is to another kind of database."""
    if alias not in connections or connections[alias].vendor not in ("sqlite", "postgresql"):
        return None
    if connections[alias].vendor == "sqlite":
        return DjangoSQLite(alias)
    return _postgres(alias)


class DjangoConnection:
    """Every verb is an `atomic()` on the connection of the calling thread."""

    where = "Django's connection"
    clock = None
    scope = None

    def __init__(self, alias: str, begin: Callable[[Any], Any], notify: Callable[[Any], None]) -> None:
        self._alias, self._begin, self._notify = alias, begin, notify

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def cursors(self) -> Cursors:
        """New ones each time: a test that rolls back takes with it what they remember."""
        return Cursors(finds_ahead=False)

    def write(self, pool: str, steps: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        with borrowed(self._alias), transaction.atomic(using=self._alias):
            tx = self._begin(connections[self._alias].connection)
            answer = steps(tx, *args, **kwargs)
            self._notify(tx)
            return answer

    read = write

    def changes(self) -> int:
        """A new number each time: nothing counts the writes of an open transaction."""
        return time.monotonic_ns()

    def close(self) -> None:
        """It is Django's."""


class OnDjango:
    """What both stores have in common: all of it happens on Django's connection."""

    _alias: str

    @property
    def database(self) -> Any:
        return DjangoConnection(self._alias, self._begin, self._notify)

    @abstractmethod
    def _begin(self, connection: Any) -> Any:
        """A transaction of the store on Django's connection."""

    def _notify(self, tx: Any) -> None:
        """Notify workers of what waits now, when it is committed."""

    def claims_on_loop(self, thread: Executor) -> NoReturn:
        """The first call of a worker. All of its threads would have connections of their own."""
        raise TreadleError(NO_WORKER)

    @contextmanager
    def _within(self, connection: Any) -> Generator[Any]:
        """The user's own transaction is that of the test, whichever connection they pass."""
        with transaction.atomic(using=self._alias):
            yield self._begin(connections[self._alias].connection)

    @contextmanager
    def transaction(self, claimed: ClaimedJob, outcome: Callable[[], Outcome | None]) -> Generator[Any]:
        with transaction.atomic(using=self._alias):
            yield connections[self._alias].connection
            tx = self._begin(connections[self._alias].connection)
            claim_settle.settle_in_transaction(tx, claimed, outcome())


class DjangoSQLite(OnDjango, SQLiteStore):
    def __init__(self, alias: str) -> None:
        SQLStore.__init__(self)
        self._alias = alias
        self.path = Path(str(connections[alias].settings_dict["NAME"]))
        self.where = self.url = f"sqlite:///{self.path}"
        self._clock = now
        self._synchronous = "FULL"

    def _begin(self, connection: sqlite3.Connection) -> sqlite_connection.Transaction:
        return sqlite_connection.Transaction(connection, self._clock(), Cursors(finds_ahead=False))

    def schema(self) -> int:
        found: int = self.database.write("other", schema_in, self.where)[0]
        return found

    def upgrade(self) -> int:
        self.database.write("other", upgrade_in, self.where)
        return self.newest_schema()


def _postgres(alias: str) -> PostgresStore:
    try:
        from treadle.stores.postgres.connection import Transaction
    except ModuleNotFoundError as error:  # Django itself would do with psycopg2
        raise MissingExtra("the database on PostgreSQL", str(error.name), "postgres-binary") from error
    from treadle.stores.postgres.notify import CHANNEL
    from treadle.stores.postgres.schema import schema, upgrade
    from treadle.stores.postgres.sql import NOTIFY
    from treadle.stores.postgres.store import PostgresStore

    class DjangoPostgres(OnDjango, PostgresStore):
        def __init__(self) -> None:
            SQLStore.__init__(self)
            self._alias = alias
            self.where = self.url = f"postgresql:///{connections[alias].settings_dict['NAME']}"

        def _begin(self, connection: Any) -> Transaction:
            return Transaction(connection, self.database)

        def _notify(self, tx: Transaction) -> None:
            for queue in tx.queues:
                tx.execute(NOTIFY, {"channel": CHANNEL, "text": queue})

        def schema(self) -> int:
            return schema(self.database)[0]

        def upgrade(self) -> int:
            return upgrade(self.database)

        # Not at once: a statement that commits itself would commit the test's transaction.

        def _insert_now(self, jobs: Sequence[NewJob]) -> list[Job]:
            return SQLStore._insert_now(self, jobs)

        def _save_steps(self, done: Sequence[tuple[ClaimedJob, NewStep]]) -> list[Exception | None]:
            return SQLStore._save_steps(self, done)

        def _claim(self, worker: str, request: ClaimRequest) -> Claim:
            return SQLStore._claim(self, worker, request)

        def settle(self, ended: Sequence[tuple[ClaimedJob, Outcome]]) -> Settled:
            return SQLStore.settle(self, ended)

        def steps(self, id: str) -> list[Step]:
            return SQLStore.steps(self, id)

        def signal(self, new: NewSignal, connection: Any = None) -> Signal:
            return SQLStore.signal(self, new, connection)

    return DjangoPostgres()
