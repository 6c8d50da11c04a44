"""Databases that keep jobs."""

from __future__ import annotations

from windlass.clock import Clock, now
from windlass.stores.base import Store
from windlass.stores.sqlite.store import SQLiteStore


def open_store(url: str, *, synchronous: str = "FULL", clock: Clock = now) -> Store:
    """The store that a URL names. It connects when it is first used."""
    return SQLiteStore(url, synchronous=synchronous, clock=clock)
