"""Work on many jobs at once: bulk operations and the thread that runs them, and a tick that runs what is due."""

from __future__ import annotations

import logging
import queue
import threading
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from treadle import clock, codec, filters, views
from treadle.app import Treadle
from treadle.backfill import Backfill
from treadle.bulk import ActionName, Bulk
from treadle.filters import MOST_VALUES, Filter, Moment
from treadle.function import Changes
from treadle.ids import is_id, new_id
from treadle.job import UNCHANGED, Count, Reschedule
from treadle.stores.rows import Operation
from treadle.views import Total
from treadle.web.api.jobs import RescheduleIn, given_fields
from treadle.web.problem import HTTPProblem
from treadle.web.route import Request, Response, get, post
from treadle.worker.tick import TickReport

ABANDONED = 30 * clock.SECOND
"""An operation without progress for this long has lost its process. The next process that sees it resumes it."""

log = logging.getLogger("treadle.web")


class BulkIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to do, and to which jobs: those that match a filter, or these."""

    action: ActionName
    filter: str | UnsetType = UNSET
    ids: Annotated[list[str], Meta(min_length=1, max_length=MOST_VALUES)] | UnsetType = UNSET
    changes: RescheduleIn | UnsetType = UNSET
    """What a reschedule sets."""
    expected_count: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    """How many you think they are. If they are not, nothing is done."""
    dry_run: bool = False
    """Only count."""


class Counted(msgspec.Struct, kw_only=True):
    """How many jobs it would be."""

    total: Total


class OperationOut(msgspec.Struct, kw_only=True):
    """How far it is."""

    id: str
    who: str
    action: str
    filter: str
    changes: str
    """What a reschedule sets, as in `run_at=2026-11-17T08:00:00Z priority=5`."""
    total: int
    done: int
    skipped: int
    started_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    error: str | None


class Started(msgspec.Struct, kw_only=True):
    """It has begun."""

    operation_id: str
    total: Total


class TickIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How much one pass may do."""

    max_jobs: Annotated[int, Meta(ge=1, le=10_000)] = 100
    max_seconds: Annotated[float, Meta(gt=0, le=900)] = 10.0


@post(
    "/api/jobs/bulk",
    "Retry, cancel, delete, run now or reschedule all jobs that match, in batches",
    scope="manage",
    body=BulkIn,
    returns={200: Counted, 202: Started},
    problems=(412,),
)
def bulk(request: Request) -> Response:
    given: BulkIn = request.body
    expected = None if given.expected_count is UNSET or given.dry_run else given.expected_count
    changes: Changes = {} if given.changes is UNSET else given_fields(given.changes)
    work = prepare(request, given.action, _filter(given), expected, changes)
    return Response(data=Counted(total=_total(work))) if given.dry_run else started(request, work)


def _total(work: Bulk | Backfill) -> Total:
    return views.total(Count(work.total, work.exact))


def started(request: Request, work: Bulk | Backfill) -> Response:
    """Begins what was counted. The response says where its progress is."""
    operation = start(request, work)
    headers = {"Location": request.url(f"/api/operations/{operation.id}")}
    return Response(status=202, data=Started(operation_id=operation.id, total=_total(work)), headers=headers)


def prepare(request: Request, action: str, wanted: Filter, expected: int | None, changes: Changes) -> Bulk:
    """Counts the jobs. Raises CountMoved if another number was expected."""
    return request.jobs.bulk(action, fix_times(wanted, request.jobs.now()), expected, changes)


def fix_times(wanted: Filter, now: int) -> Filter:
    """`since:1h` means an hour before the operation began, however long that takes."""

    def moment(at: Moment | None) -> Moment | None:
        return clock.to_datetime(now - clock.seconds(at)) if isinstance(at, int | float) else at

    return wanted.replace(since=moment(wanted.since), until=moment(wanted.until))


def start(request: Request, work: Bulk | Backfill) -> Operation:
    """Begins what was counted, and records who did."""
    operation = request.web.bulk_runner.start(request.caller.name, work)
    request.audit(work.action, f"{operation.filter} {work.changes}".strip(), work.total)
    return operation


def _filter(given: BulkIn) -> Filter:
    if (given.filter is UNSET) == (given.ids is UNSET):
        raise HTTPProblem(400, "the jobs are not specified, or twice", "give either filter or ids")
    if given.ids is not UNSET:
        if (wrong := next((id for id in given.ids if not is_id(id)), None)) is not None:
            example = "an id looks like 01970000-0000-7000-8000-000000000000"
            raise HTTPProblem(400, f"{wrong!r} is not a job id", example)
        return Filter(ids=tuple(given.ids))
    return filters.parse(given.filter if given.filter is not UNSET else "")


@get("/api/operations/{id}", "How far a bulk operation is")
def get_operation(request: Request) -> OperationOut:
    return operation_out(find_operation(request))


def find_operation(request: Request) -> Operation:
    """The operation that the path names, if the caller may see it. One whose process is gone is resumed here."""
    found = request.jobs.operation(request.path["id"])
    if found is None:
        missing = f"there is no operation {request.path['id']!r}"
        raise HTTPProblem(404, missing, "operations are deleted 30 days after they end")
    if not request.web.read_only:
        request.web.bulk_runner.resume(found)
    return found


def operation_out(row: Operation) -> OperationOut:
    shown = msgspec.structs.replace(row, changes=str(_stored_changes(row)))
    return views.from_row(OperationOut, shown, "started_at", "updated_at", "ended_at")


def _stored_changes(row: Operation) -> Reschedule:
    """What its reschedule sets. What was broken by hand sets nothing."""
    return codec.decode_as(row.changes, Reschedule) or UNCHANGED


@post(
    "/api/jobs/tick",
    "Run what is due, here and now, within bounds",
    scope="tick",
    for_tenants=False,
    slow=True,
    body=TickIn,
    body_required=False,
    problems=(501,),
)
def tick(request: Request) -> TickReport:
    """For cron, serverless platforms and tests. Any number may run at once: each is a worker of its own."""
    if not len(request.app.registry):
        way_out = "mount td.asgi() of the app that declares them, or start it with one: treadle dashboard app:td"
        raise HTTPProblem(501, "this process has no handlers, so it cannot run jobs", way_out)
    given: TickIn = request.body
    report = request.app.tick(max_jobs=given.max_jobs, max_seconds=given.max_seconds)
    request.audit("tick", f"{report.ran} ran", report.ran)
    return report


class BulkRunner:
    """One thread of a mount, which runs operations chunk by chunk, in the order in which they were started.

    Their progress is in the database, for every process to see.
    """

    def __init__(self, app: Treadle) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._todo: queue.SimpleQueue[tuple[str, Bulk | Backfill] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False

    def start(self, who: str, work: Bulk | Backfill) -> Operation:
        filter, changes = str(work.wanted), codec.as_json(work.changes)
        operation = Operation(new_id(), who, work.action, filter, work.total, position=work.position, changes=changes)
        self._app.store.start_operation(operation)
        self._put(operation.id, work)
        return operation

    def resume(self, operation: Operation) -> None:
        """Takes it over if its process is gone."""
        store = self._app.store
        if operation.ended_at is not None or operation.updated_at > store.now() - ABANDONED:
            return
        if store.resume_operation(operation):
            self._put(operation.id, self._rest_of(operation))

    def _rest_of(self, operation: Operation) -> Bulk | Backfill:
        if operation.action == Backfill.action:
            return Backfill.resumed(self._app.store, operation)
        wanted = views.visible(filters.read_back(operation.filter), self._app.redactor)
        return Bulk(self._app.store, operation.action, wanted, changes=_stored_changes(operation))

    def close(self) -> None:
        """Stops after the current chunk. The next process that reads the operation resumes it."""
        self._closing = True
        self._todo.put(None)

    def _put(self, id: str, work: Bulk | Backfill) -> None:
        work.operation = id
        self._todo.put((id, work))
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="treadle-operations", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (todo := self._todo.get()) is not None:
            self._run(*todo)

    def _run(self, id: str, work: Bulk | Backfill) -> None:
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
