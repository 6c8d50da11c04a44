"""Streams that record how long each round trip takes, for the profile."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.sample import note
from treadle.stores.libsql.hrana import Result, Statement, Stream
from treadle.stores.sqlite import insert_claim_settle_sql, sql
from treadle.stores.sqlite.connection import Transaction

_ours = {**vars(sql), **vars(insert_claim_settle_sql), **vars(Transaction.sql)}
_names = {text: name for name, text in _ours.items() if isinstance(text, str) and name.isupper()}
_names = {text: name for text, name in _names.items() if text not in ("BEGIN", "COMMIT")}  # recorded under these words


def time_statements() -> None:
    """Make every stream record its round trips, each by its first statement and whether it commits."""
    execute = Stream.execute

    def timed(self: Stream, statements: Sequence[Statement], *, last: bool) -> list[Result]:
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            return execute(self, statements, last=last)
        finally:
            note(_name([text for text, _ in statements]), time.perf_counter() - began, time.thread_time() - cpu)

    Stream.execute = timed  # type: ignore[method-assign]  # for this process, which is profiled


def _name(texts: Sequence[str]) -> str:
    names = [_names.get(text) or " ".join(text.split()[:2]) for text in texts]
    shown = [name for name in names if name not in ("BEGIN IMMEDIATE", "TICK")] or ["(close)"]
    return shown[0] if len(shown) == 1 else f"{shown[0]} … {shown[-1]}"
