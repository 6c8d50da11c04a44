"""Databases that keep jobs."""

from __future__ import annotations

from treadle.clock import Clock, now
from treadle.errors import BadOption, MissingExtra
from treadle.settings import database_url
from treadle.stores.base import Store
from treadle.stores.libsql.url import SCHEMES as LIBSQL_SCHEMES
from treadle.stores.sqlite.store import SQLiteStore


def open_store(url: str, *, synchronous: str = "FULL", clock: Clock = now) -> Store:
    """The store that a URL names. It connects when it is first used."""
    url = database_url(url)
    scheme = url.partition("://")[0]
    if scheme != "sqlite" and synchronous != "FULL":
        raise BadOption("synchronous", synchronous, "the server decides that, not its clients")
    if scheme in ("postgresql", "postgres"):
        try:
            from treadle.stores.postgres.store import PostgresStore
        except ImportError as error:
            raise MissingExtra("postgresql://", "psycopg", "postgres-binary") from error
        return PostgresStore(url, clock=clock)
    if scheme in LIBSQL_SCHEMES:
        from treadle.stores.libsql.store import LibSQLStore  # it imports an HTTP client, which others do not need

        return LibSQLStore(url, clock=clock)
    return SQLiteStore(url, synchronous=synchronous, clock=clock)
