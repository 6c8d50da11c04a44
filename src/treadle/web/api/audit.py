"""Who changed what."""

from __future__ import annotations

from datetime import datetime

import msgspec

from treadle import views
from treadle.web.api.jobs import PAGE
from treadle.web.route import Request, get


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


@get("/api/audit", "Who changed what, newest first", scope="manage", for_tenants=False, parameters=PAGE)
def audit(request: Request) -> AuditPage:
    limit: int = request.query["limit"]
    items = [views.from_row(AuditOut, row, "at") for row in request.app.store.audits(limit, request.query["cursor"])]
    return AuditPage(items=items, next_cursor=items[-1].id if len(items) == limit else None)
