"""The user's own connection, and the drivers that block: psycopg, psycopg2, SQLAlchemy, Django.

A store sends statements in the user's transaction, and commits nothing. No driver is imported: a user who has a
connection has loaded its module.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from typing import Any, ClassVar

from treadle.errors import BadConnection

Rows = list[tuple[Any, ...]]

SAVEPOINT = "SAVEPOINT treadle"
RELEASE = "RELEASE treadle"
ROLLBACK = ("ROLLBACK TO SAVEPOINT treadle", "RELEASE SAVEPOINT treadle")
"""Spelled differently from RELEASE: these are also sent when everything else is refused."""

# The start time distinguishes servers, also a copy from a backup, whose system identifier and oids are the same.
# Unlike pg_control_system(), any role may read it. In UTC, because a session may have its own time zone.
IDENTITY = """
SELECT current_database() || '@'
    || to_char(pg_postmaster_start_time() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24.MI.SS.US')
"""

NO_TRANSACTION, FAILED_TRANSACTION = "25P01", "25P02"
CLOSED = "it is closed", "pass an open one"
FAILED = "its transaction has failed", "roll it back first"


class Driver(ABC):
    """The user's connection, of one kind. Nothing here commits, rolls back their work or closes it."""

    begin: ClassVar[str]
    """How users of it open a transaction."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def __repr__(self) -> str:  # errors must show the user's connection
        return repr(self.connection)

    def execute(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """All rows of one statement, [] if it has none.

        Parameters are `%(name)s`, and the statement has no other percent sign. Each is cast to a type that Python has:
        text (str), bigint (int), double precision (float), boolean (bool). Columns too: other types, such as jsonb
        and timestamptz, come back differently from each driver, and as users have configured it.
        """
        if (problem := self.problem()) is not None:
            raise BadConnection(self.connection, *problem)
        try:
            return self.run(sql, parameters)
        except Exception as error:
            # Ask the server: what a driver remembers is wrong after a COMMIT that was sent as text.
            state = sqlstate(error)
            if state == NO_TRANSACTION:
                raise BadConnection(self.connection, "no transaction is open on it", self.begin) from error
            if state == FAILED_TRANSACTION:
                raise BadConnection(self.connection, *FAILED) from error
            raise

    def problem(self) -> tuple[str, str] | None:
        """What is wrong with the connection, and the way out, as far as it shows without asking the server."""
        return CLOSED if self.connection.closed else None

    @abstractmethod
    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        """All rows of a statement on a connection without a problem."""


@contextmanager
def savepoint(connection: Driver) -> Generator[None]:
    """If the block raises, nothing of it stays in the user's transaction, which can go on.

    It comes first, because it fails if the user has no transaction.
    """
    connection.execute(SAVEPOINT, {})
    try:
        yield
        connection.execute(RELEASE, {})
    except BaseException:
        with suppress(Exception):  # the connection is lost, and the transaction with it
            for statement in ROLLBACK:
                connection.execute(statement, {})
        raise


def identity(connection: Driver) -> str:
    """The same for all connections to one database, until its server restarts: before you say that two differ, ask
    both again."""
    [[answer]] = connection.execute(IDENTITY, {})
    return str(answer)


def sqlstate(error: BaseException | None) -> str | None:
    """The server's code for an error, however deeply SQLAlchemy or Django have wrapped it."""
    if error is None:
        return None
    for name in ("sqlstate", "pgcode"):
        if isinstance(code := getattr(error, name, None), str):
            return code
    return sqlstate(getattr(error, "orig", None) or error.__cause__)


_NAMED = re.compile(r"%\((\w+)\)s")


@lru_cache(256)
def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """The same with `$1, $2 …`, and the names in that order. A name that is used twice has one number."""
    numbers: dict[str, int] = {}
    text = _NAMED.sub(lambda found: f"${numbers.setdefault(found[1], len(numbers) + 1)}", sql)
    return text, tuple(numbers)


# The drivers


class Psycopg(Driver):
    begin = "open one: with connection.transaction(): …"

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        psycopg = sys.modules["psycopg"]
        # Not connection.cursor(): users choose the kind of cursor and rows that it returns.
        with psycopg.Cursor(self.connection, row_factory=psycopg.rows.tuple_row) as cursor:
            with self.connection.pipeline() if in_pipeline(self.connection) else nullcontext():
                cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []


def in_pipeline(connection: Any) -> bool:
    """In a pipeline, answers and errors come later. The end of an inner pipeline brings them now."""
    return bool(connection.info.pipeline_status)


class Psycopg2(Driver):
    begin = "turn autocommit off, or send BEGIN first"

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        plain = sys.modules["psycopg2.extensions"].cursor
        with self.connection.cursor(cursor_factory=plain) as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []


class Django(Driver):
    begin = "wrap it in transaction.atomic()"

    def problem(self) -> tuple[str, str] | None:
        if getattr(self.connection, "vendor", None) != "postgresql":
            return not_postgresql(getattr(self.connection, "vendor", "no database"))
        if self.connection.closed_in_transaction:
            return CLOSED
        return FAILED if self.connection.needs_rollback else None

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


class SQLAlchemy(Driver):
    """A Connection, a Session, or a scoped_session."""

    begin = "it is in AUTOCOMMIT: leave that isolation level to another connection"

    def problem(self) -> tuple[str, str] | None:
        return None  # SQLAlchemy raises its own error, see below

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        with sqlalchemy_errors(self.connection):
            return run_sqlalchemy(self.connection, sql, parameters)


def run_sqlalchemy(connection: Any, sql: str, parameters: Mapping[str, Any]) -> Rows:
    """Through the driver's own SQL: text() would take the colons in a statement for parameters."""
    connection = connection_of(connection)
    if connection.dialect.name != "postgresql":
        raise BadConnection(connection, *not_postgresql(connection.dialect.name))
    given: Any = parameters
    match connection.dialect.driver:
        case "psycopg" | "psycopg_async" | "psycopg2":
            pass
        case "asyncpg":
            sql, names = numbered(sql)
            given = tuple(parameters[name] for name in names)
        case other:
            problem = f"treadle does not know its driver {other}"
            raise BadConnection(connection, problem, "use psycopg, psycopg2 or asyncpg")
    # A user who streams sets it for the whole connection, and a SAVEPOINT cannot be streamed.
    result = connection.exec_driver_sql(sql, given or None, {"stream_results": False, "yield_per": None})
    return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


def connection_of(connection: Any) -> Any:
    """The Connection that a Session works on. The Session begins with it, so that it also commits it."""
    if isinstance(connection, sys.modules["sqlalchemy"].Connection):
        return connection
    return connection.connection()


@contextmanager
def sqlalchemy_errors(connection: Any) -> Generator[None]:
    """What SQLAlchemy says of a Connection or Session that is closed, has failed, or has no bind."""
    try:
        yield
    except sys.modules["sqlalchemy.exc"].InvalidRequestError as error:
        problem = f"SQLAlchemy says: {error.args[0]}"
        raise BadConnection(connection, problem, "pass one that is open, and has not failed") from error


def not_postgresql(found: str) -> tuple[str, str]:
    return f"it is to {found}", "pass one to the PostgreSQL database of the jobs"
