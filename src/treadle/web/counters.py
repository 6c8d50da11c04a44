"""Counters of what was run since this process started, for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from treadle import clock
from treadle.job import Usage

if TYPE_CHECKING:
    from treadle.app import Treadle

STEP = 60
KINDS = ("runs", "completed", "failures", "busy", "waiting")
Key = tuple[str, str]
"""A type, and one of the kinds."""


class Counters:
    """Sums the minutes that are over and queries the rest, so that a query never covers more than a few minutes."""

    def __init__(self, app: Treadle) -> None:
        self._app = app
        self._lock = threading.Lock()
        began = clock.now() // clock.SECOND
        self._since = began - began % STEP
        self._closed: Counter[Key] = Counter()
        """The sums of the minutes that are over."""

    def totals(self) -> dict[Key, float]:
        """Since the minute in which this process started, by type and kind."""
        with self._lock:
            now = self._app.store.now() // clock.SECOND
            rows = self._usage(self._since, now)
            found = self._closed + _sum(rows)
            self._close(rows, now)
            return dict(found)

    def _usage(self, since: int, now: int) -> list[Usage]:
        start, end = clock.to_datetime(since * clock.SECOND), clock.to_datetime((now + STEP) * clock.SECOND)
        return self._app.usage(start, end, by=("type",), step=STEP)

    def _close(self, rows: list[Usage], now: int) -> None:
        """A minute is over one minute after its end: until then a transaction may still add to it."""
        until = now - now % STEP - STEP
        if until > self._since:
            self._closed += _sum([row for row in rows if clock.from_datetime(row.at) < until * clock.SECOND])
            self._since = until


def _sum(rows: list[Usage]) -> Counter[Key]:
    found: Counter[Key] = Counter()
    for row in rows:
        for kind in KINDS:
            found[(row.key[0], kind)] += getattr(row, kind)
    return found
