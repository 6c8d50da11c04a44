"""Does one thing to many jobs, in a thread, batch by batch. What it has done stands in the database for all to see."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING

from treadle import clock, filters
from treadle.bulk import Bulk
from treadle.filters import Filter, Moment
from treadle.ids import new_id
from treadle.stores.rows import Operation

if TYPE_CHECKING:
    from treadle.app import Treadle

ABANDONED = 30 * clock.SECOND
"""An operation that has not moved for so long has lost its process, and whoever sees that goes on with it."""

log = logging.getLogger("treadle.web")


class BulkRunner:
    """One thread of a site that works off operations in the order in which they came."""

    def __init__(self, app: Treadle) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._todo: queue.SimpleQueue[tuple[str, Bulk] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False

    def start(self, who: str, work: Bulk) -> Operation:
        """Begin, and return at once."""
        operation = Operation(new_id(), who, work.action, str(work.wanted), work.total, position=work.position)
        self._app.store.start_operation(operation)
        self._put(operation.id, work)
        return operation

    def go_on_with(self, operation: Operation) -> None:
        """If its process is gone, it is ours."""
        store = self._app.store
        if operation.ended_at is not None or operation.updated_at > store.now() - ABANDONED:
            return
        if store.resume_operation(operation):
            self._put(operation.id, Bulk(store, operation.action, filters.parse(operation.filter)))

    def close(self) -> None:
        """End after the batch that is under way. Whoever looks at the operation later goes on with it."""
        self._closing = True
        self._todo.put(None)

    def _put(self, id: str, work: Bulk) -> None:
        work.operation = id
        self._todo.put((id, work))
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="treadle-operations", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (todo := self._todo.get()) is not None:
            self._carry_out(*todo)

    def _carry_out(self, id: str, work: Bulk) -> None:
        while work.position is not None and not self._closing:
            try:
                work.step()
            except Exception as error:  # whatever it is, those who watch should see it, and others get their turn
                log.exception("operation %s stops", id)
                self._give_up(id, error)
                return

    def _give_up(self, id: str, error: Exception) -> None:
        try:
            self._app.store.fail_operation(id, str(error))
        except Exception:  # the database is gone: whoever sees the operation later goes on with it
            log.warning("operation %s could not be ended", id)


def fixed(wanted: Filter, now: int) -> Filter:
    """`since:1h` means an hour before the operation began, however long that takes."""

    def moment(at: Moment | None) -> Moment | None:
        return clock.to_datetime(now - clock.seconds(at)) if isinstance(at, int | float) else at

    return wanted.replace(since=moment(wanted.since), until=moment(wanted.until))
