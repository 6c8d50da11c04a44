"""Stretches of time that pages look back over, in steps that a chart can show; and usage put into those steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from treadle import clock
from treadle.job import Usage

WINDOWS = {"1h": (3600, 60), "6h": (6 * 3600, 300), "24h": (86_400, 1200), "7d": (7 * 86_400, 7200)}
LONGER = {**WINDOWS, "30d": (30 * 86_400, 86_400), "90d": (90 * 86_400, 86_400)}
"""Seconds, and seconds of a step."""


class Window(NamedTuple):
    """From `since` on, so many steps of so many seconds; the last one is under way."""

    key: str
    since: datetime
    until: datetime
    step: int

    @property
    def span(self) -> timedelta:
        return self.until - self.since

    @property
    def starts(self) -> list[datetime]:
        return [self.since + timedelta(seconds=n) for n in range(0, int(self.span.total_seconds()), self.step)]


def window(key: str, now: int, kinds: dict[str, tuple[int, int]] = WINDOWS) -> Window:
    """The stretch of that name that ends with the step of now; another name is the first one."""
    key = key if key in kinds else next(iter(kinds))
    length, step = kinds[key]
    seconds = now // clock.SECOND
    end = seconds - seconds % step + step
    return Window(key, clock.to_datetime((end - length) * clock.SECOND), clock.to_datetime(end * clock.SECOND), step)


class Sums(NamedTuple):
    """What usage adds up to."""

    runs: int = 0
    completed: int = 0
    failures: int = 0
    busy: float = 0.0
    waiting: float = 0.0

    def plus(self, used: Usage) -> Sums:
        return Sums(
            self.runs + used.runs,
            self.completed + used.completed,
            self.failures + used.failures,
            self.busy + used.busy,
            self.waiting + used.waiting,
        )

    @property
    def ended(self) -> int:
        """Runs that were a success or a failure: a snoozed or cancelled one is neither."""
        return self.completed + self.failures

    @property
    def run(self) -> float | None:
        """Seconds of a run, on average."""
        return self.busy / self.runs if self.runs else None

    @property
    def wait(self) -> float | None:
        """Seconds before a run, on average."""
        return self.waiting / self.runs if self.runs else None


def total(rows: Iterable[Usage]) -> Sums:
    sums = Sums()
    for row in rows:
        sums = sums.plus(row)
    return sums


def by_step(rows: Iterable[Usage], over: Window) -> list[Sums]:
    """One for each step."""
    found = [Sums() for _ in over.starts]
    for row in rows:
        n = int((row.at - over.since).total_seconds() // over.step)
        if 0 <= n < len(found):
            found[n] = found[n].plus(row)
    return found


def by_key(rows: Iterable[Usage], place: int = 0) -> dict[str, list[Usage]]:
    """The rows of each type, queue or tenant: what stands at this place of their key."""
    found: dict[str, list[Usage]] = {}
    for row in rows:
        found.setdefault(row.key[place], []).append(row)
    return found


def thinned(values: Sequence[float], most: int) -> list[float]:
    """As many numbers as a small drawing can show: neighbours are added up."""
    size = -(-len(values) // most) or 1
    return [sum(values[n : n + size]) for n in range(0, len(values), size)]
