"""Connections to PostgreSQL that record how long each statement takes, for the profile."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from bench.sample import note
from treadle.stores.postgres import at_once_sql, connection, insert_claim_settle_sql, sql
from treadle.stores.postgres.connection import Transaction, at_server_time, named

_ours = {**vars(sql), **vars(insert_claim_settle_sql), **vars(Transaction.sql), **vars(at_once_sql)}
_texts = {name: text for name, text in _ours.items() if isinstance(text, str) and name.isupper()}
_names = {named(how(text)): name for name, text in _texts.items() for how in (str, at_server_time)}


class TimedConnection(connection.Connection):
    """Records how long each statement takes: the round trip, the server, and psycopg's decoding of the answer."""

    def execute(self, query: Any, *parameters: Any, **options: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            return super().execute(query, *parameters, **options)
        finally:
            name = _names.get(query) or " ".join(str(query).split()[:2])
            note(name, time.perf_counter() - began, time.thread_time() - cpu)


def time_statements() -> None:
    """Make every new connection one of these."""
    connection.Connection = TimedConnection  # type: ignore[misc]
