"""How far a process has claimed, so that it does not step over what it took before.

A row that was deleted stays in the index until vacuum may remove it, which it cannot while a transaction holds an old
snapshot. A claim that begins at the start of a range would step over more and more of them. So it begins where the last
one ended. What falls behind that (late commits, released jobs, rows that were skipped because a claim that was
rolled back had them) is found by a full look: before every claim while looks are cheap, else after a claim that found
too little, when this process has enqueued a job, and once a second; but if looks are expensive, never for more than a
tenth of the time.
"""

from __future__ import annotations

import threading
import time

from treadle.stores.claim_order import ReadyRange

START = (-(1 << 63), "00000000-0000-0000-0000-000000000000")
Position = tuple[int, str]

CHEAP = 0.002
"""A look that takes at most this many seconds is made before every claim."""
EXPENSIVE = 0.02
"""After a look that took longer than this, the next waits for nine times as long."""


class Cursors:
    """The positions of one process, for all of its claims."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: dict[ReadyRange, Position] = {}
        self.ranges: list[tuple[ReadyRange, int | None]] = []
        """What the last full look found, each with the free slots of its type, if that is limited."""
        self._looked = -1e9
        self._cost = self._last_cost = 0.0
        self._stale = True

    def look_first(self) -> bool:
        """Whether the next claim should begin with a full look."""
        since = time.monotonic() - self._looked
        return self._cost <= CHEAP or ((self._stale or since >= 1.0) and self.may_look())

    def may_look(self) -> bool:
        """Whether a claim that found too little after its position should look at everything."""
        return self._cost <= EXPENSIVE or time.monotonic() - self._looked >= 9 * self._cost

    def mark_stale(self) -> None:
        """There may be a job before our positions."""
        self._stale = True

    def looked(self, seconds: float, ranges: list[tuple[ReadyRange, int | None]], heads: list[Position]) -> None:
        """A full look took this long and found these ranges, which begin at `heads`."""
        self._looked = time.monotonic()
        self._stale = False
        self._cost, self._last_cost = min(seconds, self._last_cost), seconds  # one slow look may be chance
        with self._lock:
            self.ranges = ranges
            self._positions = {range: head for (range, _), head in zip(ranges, heads, strict=True)}

    def start(self, range: ReadyRange) -> Position:
        return self._positions.get(range, START)

    def passed(self, range: ReadyRange, position: Position) -> None:
        """A claim has reached this position in the range."""
        with self._lock:
            if position > self._positions.get(range, START):
                self._positions[range] = position
