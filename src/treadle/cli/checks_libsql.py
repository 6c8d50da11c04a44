"""What the doctor looks at where the jobs are on a libSQL server."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from treadle.cli.finding import Finding, Level
from treadle.cli.output import clean
from treadle.worker.worker import POLL

if TYPE_CHECKING:
    from treadle.app import Treadle

LOOKS = 5
FAR = 0.1
"""Seconds. A claim is four journeys, during which nobody else can write."""


def checks(app: Treadle, status: Mapping[str, Any], *, quick: bool) -> Iterator[Finding]:
    """As much as the server tells: it answers, with which SQLite, and how soon."""
    yield Finding("server", Level.OK, f"libSQL server with SQLite {clean(status['sqlite_version'])}")
    yield _journey(statistics.median(_looks(app)))
    every = "second" if POLL == 1 else f"{POLL:g} s"
    yield Finding("watch", Level.OK, f"a worker does not hear others: it looks for jobs once a {every}")


def _looks(app: Treadle) -> Iterator[float]:
    for _ in range(LOOKS):
        began = time.perf_counter()
        app.store.policies()
        yield time.perf_counter() - began


def _journey(seconds: float) -> Finding:
    text = f"it answers in {1000 * seconds:.1f} ms"
    if seconds < FAR:
        return Finding("journey", Level.OK, text)
    return Finding("journey", Level.WARNING, f"{text}, and a claim takes four", "run workers near the server")
