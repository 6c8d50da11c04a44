"""Connections to SQLite that record how long each statement takes, for the profile."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

from bench.sample import note
from treadle.stores.sqlite import insert_claim_settle_sql, sql
from treadle.stores.sqlite.connection import Transaction

_ours = {**vars(sql), **vars(insert_claim_settle_sql), **vars(Transaction.sql)}
_names = {text: name for name, text in _ours.items() if isinstance(text, str) and name.isupper()}
_names = {text: name for text, name in _names.items() if text not in ("BEGIN", "COMMIT")}  # recorded under these words


class TimedConnection(sqlite3.Connection):
    """Records how long each statement takes, with the wait for the interpreter afterwards."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            return super().execute(sql, *parameters)
        finally:
            note(_name(sql), time.perf_counter() - began, time.thread_time() - cpu)

    def executemany(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            return super().executemany(sql, *parameters)
        finally:
            note(_name(sql), time.perf_counter() - began, time.thread_time() - cpu)


def _name(sql: str) -> str:
    return _names.get(sql) or " ".join(sql.split()[:2])


def time_statements() -> None:
    """Make every new connection one of these."""
    connect = sqlite3.connect

    def timed(*args: Any, **options: Any) -> Any:
        return connect(*args, **{"factory": TimedConnection, **options})

    sqlite3.connect = timed
