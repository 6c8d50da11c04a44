"""Connections that block: psycopg, psycopg2, SQLAlchemy, Django.

No driver is imported. Whoever has a connection has loaded its module, and nobody else needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from treadle.errors import BadConnection
from treadle.stores.user_connections.base import CLOSED, FAILED, Driver, Rows
from treadle.stores.user_connections.placeholders import numbered


class Psycopg(Driver):
    begin = "open one: with connection.transaction(): …"

    def trouble(self) -> tuple[str, str] | None:
        return CLOSED if self.connection.closed else None

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        psycopg = sys.modules["psycopg"]
        # Not connection.cursor(): users choose what kind of cursor and rows that gives.
        with psycopg.Cursor(self.connection, row_factory=psycopg.rows.tuple_row) as cursor:
            with self.connection.pipeline() if in_pipeline(self.connection) else nullcontext():
                cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []


def in_pipeline(connection: Any) -> bool:
    """In a pipeline answers come later, errors too. The end of an inner one brings them now."""
    return bool(connection.info.pipeline_status)


class Psycopg2(Driver):
    begin = "turn autocommit off, or send BEGIN first"

    def trouble(self) -> tuple[str, str] | None:
        return CLOSED if self.connection.closed else None

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        plain = sys.modules["psycopg2.extensions"].cursor
        with self.connection.cursor(cursor_factory=plain) as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []


class Django(Driver):
    begin = "wrap it in transaction.atomic()"

    def trouble(self) -> tuple[str, str] | None:
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

    def trouble(self) -> tuple[str, str] | None:
        return None  # SQLAlchemy raises its own error, see below

    def run(self, sql: str, parameters: Mapping[str, Any]) -> Rows:
        try:
            return run_sqlalchemy(self.connection, sql, parameters)
        except sys.modules["sqlalchemy.exc"].InvalidRequestError as error:
            raise unusable(self.connection, error) from error


def run_sqlalchemy(connection: Any, sql: str, parameters: Mapping[str, Any]) -> Rows:
    """As the driver wants it: text() would take the colons in a statement for parameters."""
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
            raise BadConnection(
                connection, f"its driver {other} is none that treadle knows", "use psycopg, psycopg2 or asyncpg"
            )
    # A user who streams has said so for the whole connection; a SAVEPOINT cannot be streamed.
    result = connection.exec_driver_sql(sql, given or None, {"stream_results": False, "yield_per": None})
    return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


def connection_of(connection: Any) -> Any:
    """The Connection that a Session works on. The Session begins with it, so that it also commits it."""
    if isinstance(connection, sys.modules["sqlalchemy"].Connection):
        return connection
    return connection.connection()


def unusable(connection: Any, error: Exception) -> BadConnection:
    """SQLAlchemy's own word for a Connection or Session that is closed, has failed, or has no bind."""
    return BadConnection(connection, f"SQLAlchemy says: {error.args[0]}", "pass one that is open, and has not failed")


def not_postgresql(found: str) -> tuple[str, str]:
    return f"it is to {found}", "pass one to the PostgreSQL database of the jobs"
