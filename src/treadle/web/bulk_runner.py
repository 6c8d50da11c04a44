"""Runs bulk operations in a thread, batch by batch. Their progress is in the database, for every process to see."""

from __future__ import annotations

import logging
import queue
import threading

from treadle import clock, filters
from treadle.app import Treadle
from treadle.bulk import Bulk
from treadle.filters import Filter, Moment
from treadle.ids import new_id
from treadle.stores.rows import Operation

ABANDONED = 30 * clock.SECOND
"""An operation without progress for this long has lost its process. The next process that sees it resumes it."""

log = logging.getLogger("treadle.web")


class BulkRunner:
    """One thread of a site, which runs operations in the order in which they were started."""

    def __init__(self, app: Treadle) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._todo: queue.SimpleQueue[tuple[str, Bulk] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False

    def start(self, who: str, work: Bulk) -> Operation:
        """Begins, and returns at once."""
        operation = Operation(new_id(), who, work.action, str(work.wanted), work.total, position=work.position)
        self._app.store.start_operation(operation)
        self._put(operation.id, work)
        return operation

    def resume(self, operation: Operation) -> None:
        """Takes it over if its process is gone."""
        store = self._app.store
        if operation.ended_at is not None or operation.updated_at > store.now() - ABANDONED:
            return
        if store.resume_operation(operation):
            self._put(operation.id, Bulk(store, operation.action, filters.parse(operation.filter)))

    def close(self) -> None:
        """Stops after the current batch. The next process that reads the operation resumes it."""
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
            self._run(*todo)

    def _run(self, id: str, work: Bulk) -> None:
        while work.position is not None and not self._closing:
            try:
                work.step()
            except Exception as error:  # show it on the operation's page, and go on with the next one
                log.exception("operation %s failed", id)
                self._record_failure(id, error)
                return

    def _record_failure(self, id: str, error: Exception) -> None:
        try:
            self._app.store.fail_operation(id, str(error))
        except Exception:  # the database is gone: the next process that reads the operation resumes it
            log.warning("could not record that operation %s failed", id)


def fix_times(wanted: Filter, now: int) -> Filter:
    """`since:1h` means an hour before the operation began, however long that takes."""

    def moment(at: Moment | None) -> Moment | None:
        return clock.to_datetime(now - clock.seconds(at)) if isinstance(at, int | float) else at

    return wanted.replace(since=moment(wanted.since), until=moment(wanted.until))
