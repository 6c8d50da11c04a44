"""How far a process has claimed, so that it does not step over what it took before.

A row that was deleted stays in the index until vacuum may remove it, and that is never while somebody holds an old
snapshot. A claim that begins at the start of a range would step over more and more of them. So it begins where the last
one ended. What falls behind that (late commits, jobs given back, rows that were skipped because a claim that was
rolled back had them) is found by a full look: before every claim while looks are cheap, else after a claim that found
too little, when somebody of this process has put a job, and once a second; but if looks are dear, never for more than a
tenth of the time.
"""

from __future__ import annotations

import threading
import time

from treadle.stores.sql.claim_order import ReadyRange

START = (-(1 << 63), "00000000-0000-0000-0000-000000000000")
Position = tuple[int, str]

CHEAP = 0.002
"""Seconds that a look may take to be made before every claim."""
DEAR = 0.02
"""Seconds from which on a look must wait until nine times as long has passed."""


class Cursors:
    """Of one process, for all of its claims."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: dict[ReadyRange, Position] = {}
        self.ranges: list[tuple[ReadyRange, int | None]] = []
        """What the last full look has found, each with the room that its type had, if it is limited."""
        self._looked = -1e9
        self._cost = self._last_cost = 0.0
        self._spoilt = True

    def look_first(self) -> bool:
        """Whether the next claim should begin with a full look."""
        since = time.monotonic() - self._looked
        return self._cost <= CHEAP or ((self._spoilt or since >= 1.0) and self.may_look())

    def may_look(self) -> bool:
        """Whether a claim that found too little from where it stood should look at everything."""
        return self._cost <= DEAR or time.monotonic() - self._looked >= 9 * self._cost

    def spoil(self) -> None:
        """Something may have come before where we stand."""
        self._spoilt = True

    def looked(self, seconds: float, ranges: list[tuple[ReadyRange, int | None]], heads: list[Position]) -> None:
        """A full look took so long and found these, which begin there."""
        self._looked = time.monotonic()
        self._spoilt = False
        self._cost, self._last_cost = min(seconds, self._last_cost), seconds  # one slow look may be anything
        with self._lock:
            self.ranges = ranges
            self._positions = {range: head for (range, _), head in zip(ranges, heads, strict=True)}

    def start(self, range: ReadyRange) -> Position:
        return self._positions.get(range, START)

    def passed(self, range: ReadyRange, position: Position) -> None:
        """A claim has come so far in this range."""
        with self._lock:
            if position > self._positions.get(range, START):
                self._positions[range] = position
