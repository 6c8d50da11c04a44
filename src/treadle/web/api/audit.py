"""Who changed what."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from treadle import clock
from treadle.stores.rows import AuditRow
from treadle.web.http import Request, Response
from treadle.web.route import Parameter, route
from treadle.web.site import Site

MAX_ROWS = 200


class AuditOut(msgspec.Struct, kw_only=True):
    """One change."""

    id: str
    at: datetime
    who: str
    action: str
    what: str
    count: int
    tenant: str


class AuditPage(msgspec.Struct, kw_only=True):
    """Changes, newest first."""

    items: list[AuditOut]
    next_cursor: str | None


@route(
    "GET",
    "/api/audit",
    "Who changed what, newest first",
    scope="manage",
    for_tenants=False,
    parameters=(
        Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_ROWS)], f"From 1 to {MAX_ROWS}", default=50),
        Parameter("cursor", str, "The next_cursor of the page before"),
    ),
    returns=AuditPage,
)
def audit(site: Site, request: Request) -> Response:
    limit: int = request.query["limit"]
    items = [_out(row) for row in site.app.store.audits(limit, request.query["cursor"])]
    return Response(data=AuditPage(items=items, next_cursor=items[-1].id if len(items) == limit else None))


def _out(row: AuditRow) -> AuditOut:
    fields: dict[str, Any] = {name: getattr(row, name) for name in AuditOut.__struct_fields__}
    fields["at"] = clock.to_datetime(row.at)
    return AuditOut(**fields)
