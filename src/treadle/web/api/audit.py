"""Who changed what."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from treadle import clock
from treadle.web.http import Request, Response
from treadle.web.route import Parameter, Route
from treadle.web.site import Site

MOST = 200


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


def audit(site: Site, request: Request) -> Response:
    limit: int = request.query["limit"]
    rows = site.app.store.audits(limit, request.query["cursor"])
    items = [
        AuditOut(
            id=row.id,
            at=clock.to_datetime(row.at),
            who=row.who,
            action=row.action,
            what=row.what,
            count=row.count,
            tenant=row.tenant,
        )
        for row in rows
    ]
    return Response(data=AuditPage(items=items, next_cursor=items[-1].id if len(items) == limit else None))


ROUTES = (
    Route(
        method="GET",
        path="/api/audit",
        do=audit,
        summary="Who changed what, newest first",
        scope="manage",
        for_tenants=False,
        parameters=(
            Parameter("limit", Annotated[int, Meta(ge=1, le=MOST)], f"From 1 to {MOST}", default=50),
            Parameter("cursor", str, "The next_cursor of the page before"),
        ),
        answers={200: AuditPage},
    ),
)
