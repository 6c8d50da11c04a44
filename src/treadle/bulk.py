"""One action on many jobs, in short transactions, so that other writers never wait for long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from treadle.errors import BadOption, CountMoved
from treadle.filters import EVERYTHING, Filter
from treadle.function import Changes, make_reschedule
from treadle.ids import after, new_id
from treadle.job import UNCHANGED, Reschedule

if TYPE_CHECKING:
    from treadle.stores.base import Store
    from treadle.stores.rows import BulkChunk

ActionName = Literal["retry", "run_now", "reschedule", "cancel", "delete"]
ACTIONS: tuple[str, ...] = get_args(ActionName)
CHUNK = 50
"""Jobs that are changed in one transaction."""
COUNTED = 1_000_000
"""Jobs that are looked at to count the matches."""


def changes_for(action: str, changes: Changes) -> Reschedule:
    """What a bulk action sets: something if it is a reschedule, else nothing."""
    if action == "reschedule":
        return make_reschedule(changes)
    if changes:
        raise BadOption("changes", changes, f"{action} takes none; only reschedule does")
    return UNCHANGED


class Bulk:
    """An action on the jobs that match a filter. `total` is how many match; if not `exact`, there may be more.

    Iterate to carry it out. It skips jobs stored after it began, and jobs whose status no longer allows the action.
    """

    def __init__(
        self, store: Store, action: str, wanted: Filter, expected: int | None = None, changes: Reschedule = UNCHANGED
    ) -> None:
        if action not in ACTIONS:
            raise BadOption("action", action, f"one of {', '.join(ACTIONS)}")
        if wanted == EVERYTHING:
            raise BadOption("filter", "", 'an empty filter means all jobs; say which, such as "status:failed"')
        self.store, self.action, self.wanted = store, action, wanted
        # A delay counts from now for all of them, however long it takes to get to the last one.
        self.changes = msgspec.structs.replace(changes, run_at=changes.due(store.now()), delay=None)
        """What a reschedule sets."""
        self.operation: str | None = None
        """The id of the operation that records it, if one does."""
        found = store.counts((), wanted, COUNTED)
        self.total = sum(row["count"] for row in found.rows)
        self.exact = found.exact
        self.done = self.skipped = 0
        self.position: str | None = self._start()
        if expected is not None and expected != self.total:
            raise CountMoved(expected, self.total)

    def _start(self) -> str:
        """An id above all jobs. A host with another clock may have made an id later than ours."""
        newest = self.store.jobs(EVERYTHING, 1).jobs
        return max([new_id(), *(after(job.id) for job in newest)])

    def step(self) -> BulkChunk:
        what = (self.action, self.wanted, self.position, CHUNK, self.operation)
        chunk = self.store.change_next(*what, changes=self.changes)
        self.position = chunk.position
        self.done += chunk.done
        self.skipped += chunk.skipped
        return chunk

    def __iter__(self) -> Iterator[Bulk]:
        """Yields itself after each chunk."""
        while self.position is not None:
            self.step()
            yield self
