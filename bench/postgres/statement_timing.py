"""Connections to PostgreSQL that record how long each statement takes, for the profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from bench.sample import note
from treadle.stores.postgres import at_once_sql, connection, insert_claim_settle_sql, sql
from treadle.stores.postgres.connection import Transaction
from treadle.stores.postgres.placeholders import at_server_time, named

_ours = {**vars(sql), **vars(insert_claim_settle_sql), **vars(Transaction.sql), **vars(at_once_sql)}
_texts = {name: text for name, text in _ours.items() if isinstance(text, str) and name.isupper()}
_statements = {how(text): name for name, text in _texts.items() for how in (str, at_server_time)}
_names = {form(text): name for text, name in _statements.items() for form in (str, named)}


class TimedConnection(connection.Connection):
    """Records how long each statement takes: the round trip, the server, and psycopg's decoding of the answer."""

    def execute(self, *args: Any, **options: Any) -> Any:
        return _timed(super().execute, *args, **options)

    def execute_numbered(self, statement: str, parameters: Mapping[str, Any], **options: Any) -> Any:
        return _timed(super().execute_numbered, statement, parameters, **options)


def _timed(execute: Callable[..., Any], statement: Any, *args: Any, **options: Any) -> Any:
    began, cpu = time.perf_counter(), time.thread_time()
    try:
        return execute(statement, *args, **options)
    finally:
        name = _names.get(statement) or " ".join(str(statement).split()[:2])
        note(name, time.perf_counter() - began, time.thread_time() - cpu)


def time_statements() -> None:
    """Make every new connection one of these."""
    connection.Connection = TimedConnection  # type: ignore[misc]
