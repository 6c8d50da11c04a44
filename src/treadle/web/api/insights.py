"""Over time, by lane, and what is wrong: what the pages draw, as data."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from treadle import clock, units, views
from treadle.job import FailureGroup
from treadle.views import UsageOut
from treadle.web.api.schemas import LaneOut, Lanes
from treadle.web.http import Request, Response
from treadle.web.problem import HTTPProblem
from treadle.web.route import Parameter, Route
from treadle.web.site import Site

POINTS = 1_500
"""Most steps of one answer."""
MOST = 20_000
"""Most rows of one answer: steps times groups."""
GROUPS = "Some of type, queue, tenant, with commas between them; nothing for the sum"
Groups = Annotated[str, Meta(pattern=r"^((type|queue|tenant)(,(type|queue|tenant)){0,2})?$")]


class UsagePage(msgspec.Struct, kw_only=True):
    """Steps in which nothing was run are left out."""

    since: datetime
    until: datetime
    step: int
    items: list[UsageOut]


class Failures(msgspec.Struct, kw_only=True):
    """Failed jobs by type and error, the latest first."""

    items: list[FailureGroup]


def metrics(site: Site, request: Request) -> Response:
    step: int = request.query["step"]
    seconds = units.parse_duration(request.query["window"])
    if seconds is None or not 60 <= seconds <= 400 * 86_400:
        raise HTTPProblem(400, f"window={request.query['window']!r}", "a length of time from 1m to 400d, such as 24h")
    if seconds / step > POINTS:
        raise HTTPProblem(
            400, f"that would be {seconds / step:,.0f} steps of at most {POINTS:,}", "choose a longer step"
        )
    by = tuple(dict.fromkeys(name for name in request.query["group_by"].split(",") if name))
    now = site.app.store.now() // clock.SECOND
    until = clock.to_datetime((now - now % step + step) * clock.SECOND)
    since = until - timedelta(seconds=seconds - seconds % step or step)
    rows = site.app.usage(since, until, by=by, step=step, tenant=request.caller.tenant)
    if len(rows) > MOST:
        told = f"that would be {len(rows):,} rows, and {MOST:,} can be"
        raise HTTPProblem(400, told, "choose a longer step, a shorter window, or fewer groups")
    items = [views.usage(row, by) for row in rows]
    return Response(data=UsagePage(since=since, until=until, step=step, items=items))


def queues(site: Site, request: Request) -> Response:
    rows = site.cached("lanes", 0.5, site.app.queue_stats)
    return Response(data=Lanes(items=[LaneOut(**views.queue(row)) for row in rows]))


def failures(site: Site, request: Request) -> Response:
    rows = site.cached("failures", 1.0, site.app.failures)
    return Response(data=Failures(items=[views.failure(row) for row in rows]))


ROUTES = (
    Route(
        method="GET",
        path="/api/metrics",
        do=metrics,
        summary="Runs, failures, busy and waiting time, step by step",
        parameters=(
            Parameter("window", str, "How far back: 24h, 7d", default="24h"),
            Parameter(
                "step",
                Annotated[int, Meta(ge=60, le=86_400, multiple_of=60)],
                "Whole minutes, in seconds: 60 to 86400",
                default=300,
            ),
            Parameter("group_by", Groups, GROUPS, default="type"),
        ),
        answers={200: UsagePage},
    ),
    Route(
        method="GET",
        path="/api/queues",
        do=queues,
        summary="What waits and what runs, by queue and type",
        for_tenants=False,
        answers={200: Lanes},
    ),
    Route(
        method="GET",
        path="/api/failures",
        do=failures,
        summary="The newest failed jobs, by type and error",
        for_tenants=False,
        answers={200: Failures},
    ),
)
