"""Who works."""

from __future__ import annotations

from treadle import views
from treadle.web.api.schemas import Workers
from treadle.web.http import Request, Response
from treadle.web.route import Route
from treadle.web.site import Site


def workers(site: Site, request: Request) -> Response:
    rows, now = site.app.workers(), site.app.store.now()
    return Response(data=Workers(items=[views.worker(row, now) for row in rows]))


ROUTES = (
    Route(
        method="GET",
        path="/api/workers",
        do=workers,
        summary="Who works, since when, and whether they are alive",
        for_tenants=False,
        answers={200: Workers},
    ),
)
