"""Who works."""

from __future__ import annotations

from treadle import clock
from treadle.health import is_live, silence
from treadle.stores.base import WorkerRow
from treadle.web.api.schemas import Doing, WorkerOut, Workers
from treadle.web.http import Request, Response
from treadle.web.route import Route
from treadle.web.site import Site


def workers(site: Site, request: Request) -> Response:
    rows, now = site.app.workers(), site.app.store.now()
    return Response(data=Workers(items=[_out(row, now) for row in rows]))


def _out(row: WorkerRow, now: int) -> WorkerOut:
    return WorkerOut(
        id=row.id,
        name=row.name,
        concurrency=row.concurrency,
        queues=row.queues,
        types=row.types,
        version=row.version,
        started_at=clock.to_datetime(row.started_at),
        seen_at=clock.to_datetime(row.seen_at),
        silent_for=silence(row, now),
        live=is_live(row, now),
        running=row.leases,
        doing=[Doing(type=type, count=count, since=clock.to_datetime(since)) for type, count, since in row.doing],
    )


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
