"""One thing done to many jobs: counted first, then done batch by batch while somebody watches."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from treadle import clock, filters, views
from treadle.bulk import Bulk
from treadle.filters import MOST_VALUES, Filter
from treadle.ids import is_id
from treadle.job import Count
from treadle.stores.rows import Operation
from treadle.views import Total
from treadle.web.api.job_list import bound
from treadle.web.bulk_runner import fixed
from treadle.web.http import Request, Response
from treadle.web.problem import HTTPProblem
from treadle.web.route import Route
from treadle.web.site import Site

Action = Literal["retry", "run_now", "cancel", "delete"]


class BulkIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to do, and to which jobs: those that match a filter, or these."""

    action: Action
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


def bulk(site: Site, request: Request) -> Response:
    asked: BulkIn = request.body
    expected = None if asked.expected_count is UNSET or asked.dry_run else asked.expected_count
    work = prepare(site, asked.action, _wanted(request, asked), expected)
    total = views.total(Count(work.total, work.exact))
    if asked.dry_run:
        return Response(data=Counted(total=total))
    operation = start(site, request, work)
    headers = {"Location": request.url(f"/api/operations/{operation.id}")}
    return Response(status=202, data=Started(operation_id=operation.id, total=total), headers=headers)


def prepare(site: Site, action: str, wanted: Filter, expected: int | None) -> Bulk:
    """Count. Raises CountMoved if another number was expected."""
    return site.app.bulk(action, fixed(wanted, site.app.store.now()), expected=expected)


def start(site: Site, request: Request, work: Bulk) -> Operation:
    """Begin what was counted, and note who did."""
    operation = site.bulk_runner.start(request.caller.name, work)
    site.audit(request, work.action, operation.filter, work.total)
    return operation


def _wanted(request: Request, asked: BulkIn) -> Filter:
    if (asked.filter is UNSET) == (asked.ids is UNSET):
        raise HTTPProblem(400, "which jobs?", "say either filter or ids")
    if asked.ids is not UNSET:
        if wrong := next((id for id in asked.ids if not is_id(id)), None):
            raise HTTPProblem(400, f"{wrong!r} is no job's id", "an id looks like 01970000-0000-7000-8000-000000000000")
        return bound(request, Filter(ids=tuple(asked.ids)))
    return bound(request, filters.parse(asked.filter if asked.filter is not UNSET else ""))


def operation(site: Site, request: Request) -> Response:
    return Response(data=as_out(the_operation(site, request)))


def the_operation(site: Site, request: Request) -> Operation:
    """The operation that the path names, for those who may see it. One that has lost its process goes on here."""
    found = site.app.store.operation(request.path["id"])
    if found is None or request.caller.tenant not in (None, *filters.parse(found.filter).tenants):
        raise HTTPProblem(
            404, f"there is no operation {request.path['id']!r}", "those that ended are forgotten after 30 days"
        )
    if not site.read_only:
        site.bulk_runner.go_on_with(found)
    return found


def as_out(operation: Operation) -> OperationOut:
    ended = operation.ended_at
    return OperationOut(
        id=operation.id,
        who=operation.who,
        action=operation.action,
        filter=operation.filter,
        total=operation.total,
        done=operation.done,
        skipped=operation.skipped,
        started_at=clock.to_datetime(operation.started_at),
        updated_at=clock.to_datetime(operation.updated_at),
        ended_at=None if ended is None else clock.to_datetime(ended),
        error=operation.error,
    )


ROUTES = (
    Route(
        method="POST",
        path="/api/jobs/bulk",
        do=bulk,
        summary="Retry, cancel, delete or run now all jobs that match, in batches",
        scope="manage",
        body=BulkIn,
        answers={200: Counted, 202: Started},
        problems=(412,),
    ),
    Route(
        method="GET",
        path="/api/operations/{id}",
        do=operation,
        summary="How far a bulk operation is",
        answers={200: OperationOut},
        problems=(404,),
    ),
)
