"""One thing done to many jobs, in batches: each is short, so that nobody waits for long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from treadle.errors import BadOption, CountMoved
from treadle.filters import EVERYTHING, Filter
from treadle.ids import after, new_id

if TYPE_CHECKING:
    from treadle.stores.base import Store
    from treadle.stores.rows import Batch

ACTIONS = ("retry", "run_now", "cancel", "delete")
BATCH = 50
COUNTED = 1_000_000
"""So many are looked at to say how many match."""


class Bulk:
    """An action over a filter. `total` is how many match, `exact` whether there are no more; iterate to carry it out.

    Jobs that are stored after it began are left alone, and so are those to which it cannot be done any more.
    """

    def __init__(self, store: Store, action: str, wanted: Filter, expected: int | None = None) -> None:
        if action not in ACTIONS:
            raise BadOption("action", action, f"one of {', '.join(ACTIONS)}")
        if wanted == EVERYTHING:
            raise BadOption("filter", "", 'all jobs there are? Say which: "status:failed"')
        self.store, self.action, self.wanted = store, action, wanted
        self.operation: str | None = None
        """The one that it is booked as, if there are books."""
        found = store.counts((), wanted, COUNTED)
        self.total = sum(row["count"] for row in found.rows)
        self.exact = found.exact
        self.done = self.skipped = 0
        self.position: str | None = self._start()
        if expected is not None and expected != self.total:
            raise CountMoved(expected, self.total)

    def _start(self) -> str:
        """Above all jobs there are. One may have an id of a later time than ours, by another host's clock."""
        newest = self.store.jobs(EVERYTHING, 1).jobs
        return max([new_id(), *(after(job.id) for job in newest)])

    def step(self) -> Batch:
        """The next batch."""
        batch = self.store.batch(self.action, self.wanted, self.position, BATCH, self.operation)
        self.position = batch.position
        self.done += batch.done
        self.skipped += batch.skipped
        return batch

    def __iter__(self) -> Iterator[Bulk]:
        """Itself, after each batch."""
        while self.position is not None:
            self.step()
            yield self
