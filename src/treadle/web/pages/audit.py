"""Who changed what."""

from __future__ import annotations

from treadle import clock
from treadle.errors import BadCursor
from treadle.ids import is_id
from treadle.web.api.bulk import as_out
from treadle.web.http import Request, Response
from treadle.web.render import render
from treadle.web.route import Parameter, Route
from treadle.web.site import Site

ROWS = 100
OPERATIONS = 10


def audit(site: Site, request: Request) -> Response:
    cursor = request.query["cursor"] or None
    if cursor is not None and not is_id(cursor):
        raise BadCursor(cursor)
    rows = site.app.store.audits(ROWS, cursor)
    return render(
        site,
        request,
        "audit.html",
        place="audit",
        rows=[(row, clock.to_datetime(row.at), _job(row.what)) for row in rows],
        operations=[as_out(one) for one in site.app.store.operations(OPERATIONS)] if cursor is None else [],
        older=request.url("/audit", cursor=rows[-1].id) if len(rows) == ROWS else None,
        newest=request.url("/audit") if cursor else None,
    )


def _job(what: str) -> str | None:
    """The job that it is about, if it is one."""
    return what if is_id(what) else None


ROUTES = (
    Route(
        method="GET",
        path="/audit",
        do=audit,
        summary="Who changed what",
        scope="manage",
        parameters=(Parameter("cursor", str, "Where the page goes on", default=""),),
        page=True,
        for_tenants=False,
    ),
)
