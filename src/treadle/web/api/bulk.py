"""Work on many jobs at once: bulk operations, and a tick that runs what is due."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from treadle import filters, views
from treadle.bulk import Bulk
from treadle.filters import MOST_VALUES, Filter
from treadle.ids import is_id
from treadle.job import Count
from treadle.stores.rows import Operation
from treadle.views import Total
from treadle.web.api.jobs import limit_to_tenant
from treadle.web.bulk_runner import fix_times
from treadle.web.http import Request, Response, from_row
from treadle.web.problem import HTTPProblem
from treadle.web.route import route
from treadle.web.site import Site
from treadle.worker.tick import TickReport


class BulkIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to do, and to which jobs: those that match a filter, or these."""

    action: Literal["retry", "run_now", "cancel", "delete"]
    filter: str | UnsetType = UNSET
    ids: Annotated[list[str], Meta(min_length=1, max_length=MOST_VALUES)] | UnsetType = UNSET
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


@route(
    "POST",
    "/api/jobs/bulk",
    "Retry, cancel, delete or run now all jobs that match, in batches",
    scope="manage",
    body=BulkIn,
    returns={200: Counted, 202: Started},
    problems=(412,),
)
def bulk(site: Site, request: Request) -> Response:
    given: BulkIn = request.body
    expected = None if given.expected_count is UNSET or given.dry_run else given.expected_count
    work = prepare(site, given.action, _filter(request, given), expected)
    total = views.total(Count(work.total, work.exact))
    if given.dry_run:
        return Response(data=Counted(total=total))
    operation = start(site, request, work)
    headers = {"Location": request.url(f"/api/operations/{operation.id}")}
    return Response(status=202, data=Started(operation_id=operation.id, total=total), headers=headers)


def prepare(site: Site, action: str, wanted: Filter, expected: int | None) -> Bulk:
    """Counts the jobs. Raises CountMoved if another number was expected."""
    return site.app.bulk(action, fix_times(wanted, site.app.store.now()), expected=expected)


def start(site: Site, request: Request, work: Bulk) -> Operation:
    """Begins what was counted, and records who did."""
    operation = site.bulk_runner.start(request.caller.name, work)
    site.audit(request, work.action, operation.filter, work.total)
    return operation


def _filter(request: Request, given: BulkIn) -> Filter:
    if (given.filter is UNSET) == (given.ids is UNSET):
        raise HTTPProblem(400, "the jobs are not specified, or twice", "give either filter or ids")
    if given.ids is not UNSET:
        if wrong := next((id for id in given.ids if not is_id(id)), None):
            example = "an id looks like 01970000-0000-7000-8000-000000000000"
            raise HTTPProblem(400, f"{wrong!r} is not a job id", example)
        return limit_to_tenant(request, Filter(ids=tuple(given.ids)))
    return limit_to_tenant(request, filters.parse(given.filter if given.filter is not UNSET else ""))


@route("GET", "/api/operations/{id}", "How far a bulk operation is", returns=OperationOut)
def get_operation(site: Site, request: Request) -> Response:
    return Response(data=operation_out(find_operation(site, request)))


def find_operation(site: Site, request: Request) -> Operation:
    """The operation that the path names, if the caller may see it. One whose process is gone is resumed here."""
    found = site.app.store.operation(request.path["id"])
    if found is None or request.caller.tenant not in (None, *filters.parse(found.filter).tenants):
        missing = f"there is no operation {request.path['id']!r}"
        raise HTTPProblem(404, missing, "operations are deleted 30 days after they end")
    if not site.read_only:
        site.bulk_runner.resume(found)
    return found


def operation_out(row: Operation) -> OperationOut:
    return from_row(OperationOut, row, "started_at", "updated_at", "ended_at")


@route(
    "POST",
    "/api/jobs/tick",
    "Run what is due, here and now, within bounds",
    scope="tick",
    for_tenants=False,
    slow=True,
    body=TickIn,
    body_required=False,
    returns=TickReport,
    problems=(501,),
)
def tick(site: Site, request: Request) -> Response:
    """For cron, serverless platforms and tests. Any number may run at once: each is a worker of its own."""
    if not len(site.app.registry):
        way_out = "mount td.asgi() of the app that declares them, or start it with one: treadle dashboard app:td"
        raise HTTPProblem(501, "this process has no handlers, so it cannot run jobs", way_out)
    given: TickIn = request.body
    report = site.app.tick(max_jobs=given.max_jobs, max_seconds=given.max_seconds)
    site.audit(request, "tick", f"{report.ran} ran", report.ran)
    return Response(data=report)
