"""Databases that keep jobs."""

from __future__ import annotations

from windlass.clock import Clock, now
from windlass.errors import BadOption, MissingExtra
from windlass.stores.base import Store
from windlass.stores.sqlite.store import SQLiteStore


def open_store(url: str, *, synchronous: str = "FULL", clock: Clock = now) -> Store:
    """The store that a URL names. It connects when it is first used."""
    if url.partition("://")[0] in ("postgresql", "postgres"):
        if synchronous != "FULL":
            raise BadOption("synchronous", synchronous, "the server decides that: see its synchronous_commit")
        return _postgres(url, clock)
    return SQLiteStore(url, synchronous=synchronous, clock=clock)


def _postgres(url: str, clock: Clock) -> Store:
    try:
        from windlass.stores.postgres.store import PostgresStore
    except ImportError as error:
        raise MissingExtra("postgresql://", "psycopg", "postgres") from error
    return PostgresStore(url, clock=clock)
