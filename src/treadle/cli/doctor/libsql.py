"""Checks of a libSQL server."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

from treadle.cli.doctor.finding import Finding, ok, warning
from treadle.cli.output import clean
from treadle.stores.base import Store
from treadle.worker.worker import POLL

SAMPLES = 5
FAR = 0.1
"""Seconds. A claim takes four round trips, during which nobody else can write."""


def checks(store: Store, status: Mapping[str, Any]) -> Iterator[Finding]:
    """The server answers: with which SQLite, and how soon."""
    yield ok("server", f"libSQL server with SQLite {clean(status['sqlite_version'])}")
    yield round_trip(statistics.median(_seconds(store)))
    every = "second" if POLL == 1 else f"{POLL:g} s"
    yield ok("watch", f"the server sends no notifications: a worker polls for jobs once a {every}")


def _seconds(store: Store) -> Iterator[float]:
    for _ in range(SAMPLES):
        began = time.perf_counter()
        store.policies()
        yield time.perf_counter() - began


def round_trip(seconds: float) -> Finding:
    text = f"it answers in {1000 * seconds:.1f} ms"
    if seconds < FAR:
        return ok("round_trip", text)
    return warning("round_trip", f"{text}, and a claim takes four round trips", "run workers near the server")
