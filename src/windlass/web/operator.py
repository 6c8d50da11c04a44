"""Does one thing to many jobs, in a thread, batch by batch. What it has done stands in the database for all to see."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING

from windlass import clock, filters
from windlass.errors import WindlassError
from windlass.filters import Filter, Moment
from windlass.ids import new_id
from windlass.stores.base import Batch, Operation

if TYPE_CHECKING:
    from windlass.app import Windlass

BATCH = 200
"""Jobs in one transaction: workers wait no longer than for that."""
ABANDONED = 30 * clock.SECOND
"""An operation that has not moved for so long has lost its process, and whoever sees that goes on with it."""
LAST = "ffffffff-ffff-ffff-ffff-ffffffffffff"
"""After every job's id: where an operation is that has done nothing yet."""

log = logging.getLogger("windlass.web")


class Operator:
    """One thread of a site that works off operations in the order in which they came."""

    def __init__(self, app: Windlass) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._todo: queue.SimpleQueue[tuple[Operation, Filter] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, who: str, action: str, wanted: Filter, total: int) -> Operation:
        """Begin, and return at once."""
        wanted = fixed(wanted, self._app.store.now())
        operation = Operation(new_id(), who, action, str(wanted), total)
        self._app.store.start_operation(operation)
        self._put(operation, wanted)
        return operation

    def go_on_with(self, operation: Operation) -> None:
        """If its process is gone, it is ours."""
        now = self._app.store.now()
        if operation.ended_at is None and operation.updated_at < now - ABANDONED:
            self._app.store.go_on(operation.id, Batch(0, 0, operation.position or LAST))
            self._put(operation, filters.parse(operation.filter))

    def close(self) -> None:
        """End after the batch that is under way. Whoever looks at the operation later goes on with it."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._todo.put(None)

    def _put(self, operation: Operation, wanted: Filter) -> None:
        self._todo.put((operation, wanted))
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="windlass-operations", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (todo := self._todo.get()) is not None:
            self._carry_out(*todo)

    def _carry_out(self, operation: Operation, wanted: Filter) -> None:
        store, position = self._app.store, operation.position
        while True:
            try:
                batch = store.batch(operation.action, wanted, position, BATCH)
                store.go_on(operation.id, batch)
            except WindlassError as error:
                log.warning("operation %s stops: %s", operation.id, error)
                self._give_up(operation, position, error)
                return
            position = batch.position
            if position is None or self._thread is None:
                return

    def _give_up(self, operation: Operation, position: str | None, error: WindlassError) -> None:
        try:
            self._app.store.go_on(operation.id, Batch(0, 0, position), str(error))
        except WindlassError:  # the database is gone: whoever sees the operation later goes on with it
            log.warning("operation %s could not be ended", operation.id)


def fixed(wanted: Filter, now: int) -> Filter:
    """`since:1h` means an hour before the operation began, however long that takes."""

    def moment(at: Moment | None) -> Moment | None:
        return clock.to_datetime(now - clock.seconds(at)) if isinstance(at, int | float) else at

    return wanted.but(since=moment(wanted.since), until=moment(wanted.until))
