"""A backfill: the jobs of past moments of a schedule, in short transactions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Self

from treadle import clock
from treadle.errors import BadOption, ScheduleNotFound
from treadle.filters import Filter, read_back
from treadle.job import UNCHANGED
from treadle.schedule import LATE, moments_between
from treadle.settings import checked_moment

if TYPE_CHECKING:
    from treadle.stores.base import Store
    from treadle.stores.rows import Operation

CHUNK = 100
"""Moments that are stored in one transaction."""
MOST_MOMENTS = 10_000


class Backfill:
    """The moments of a schedule from one time on and before another. `total` is how many there are.

    Iterate to store their jobs. Those that are stored already are skipped.
    """

    action, changes = "backfill", UNCHANGED

    def __init__(self, store: Store, tenant: str, name: str, start: int, end: int) -> None:
        row = store.schedule(tenant, name)
        if row is None:
            raise ScheduleNotFound(name, tenant)
        self.store, self.tenant, self.name = store, tenant, name
        self.wanted = Filter(schedules=(name,), tenants=(tenant,))
        self.operation: str | None = None
        """The id of the operation that records it, if one does."""
        self._end = end
        self._moments = moments_between(row.rule, start, end, MOST_MOMENTS + 1)
        self.total, self.exact = len(self._moments), True
        self.done = self.skipped = 0
        self.position: str | None = f"{start} {end}"

    @classmethod
    def between(cls, store: Store, tenant: str, name: str, start: datetime, end: datetime) -> Self:
        """A new one, or an error that says what is wrong with the time."""
        first, last = (clock.from_datetime(checked_moment(*given)) for given in (("start", start), ("end", end)))
        now, span = store.now(), f"{start} to {end}"
        if first >= last:
            raise BadOption("start, end", span, "the start has to be before the end")
        if last > now + LATE:
            raise BadOption("end", str(end), "it has to be in the past: later moments fire by themselves")
        made = cls(store, tenant, name, first, min(last, now + 1))
        if made.total > MOST_MOMENTS:
            raise BadOption("start, end", span, f"these are more than {MOST_MOMENTS:,} moments; take a part of them")
        return made

    @classmethod
    def resumed(cls, store: Store, operation: Operation) -> Self:
        """One whose process is gone, from where it stopped."""
        wanted, (start, end) = read_back(operation.filter), map(int, (operation.position or "0 0").split())
        return cls(store, str(wanted.tenants[0]), str(wanted.schedules[0]), start, end)

    def step(self) -> None:
        some, self._moments = self._moments[:CHUNK], self._moments[CHUNK:]
        self.position = f"{self._moments[0]} {self._end}" if self._moments else None
        stored = self.store.backfill(self.tenant, self.name, some, self.operation, self.position)
        self.done += stored
        self.skipped += len(some) - stored

    def __iter__(self) -> Iterator[Backfill]:
        """Yields itself after each transaction."""
        while self.position is not None:
            self.step()
            yield self
