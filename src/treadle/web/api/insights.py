"""Over time, by lane, and what is wrong: what the pages draw, as data."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from treadle import clock, units
from treadle.job import STATE_NAMES, FailureGroup, Usage
from treadle.stores.rows import QueueStats
from treadle.web import shown
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


class UsageOut(msgspec.Struct, kw_only=True):
    """What was run in one step of time."""

    at: datetime
    group: dict[str, str]
    runs: int
    completed: int
    failures: int
    busy_seconds: float
    waiting_seconds: float


class UsagePage(msgspec.Struct, kw_only=True):
    """Steps in which nothing was run are left out."""

    since: datetime
    until: datetime
    step: int
    items: list[UsageOut]


LaneOut = msgspec.defstruct(
    "LaneOut",
    [
        ("queue", str),
        ("type", str),
        *((name, int) for name in STATE_NAMES),
        ("limit", int | None),
        ("oldest_due", datetime | None),
        ("next_due", datetime | None),
        ("exact", bool),
    ],
    kw_only=True,
    namespace={"__doc__": "Jobs of one type in one queue."},
    module=__name__,
)


class Lanes(msgspec.Struct, kw_only=True):
    """By queue and type."""

    items: list[LaneOut]  # type: ignore[valid-type]


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
    items = [_usage(row, by) for row in rows]
    return Response(data=UsagePage(since=since, until=until, step=step, items=items))


def _usage(row: Usage, by: tuple[str, ...]) -> UsageOut:
    return UsageOut(
        at=row.at,
        group=dict(zip(by, row.key, strict=True)),
        runs=row.runs,
        completed=row.completed,
        failures=row.failures,
        busy_seconds=row.busy,
        waiting_seconds=row.waiting,
    )


def queues(site: Site, request: Request) -> Response:
    rows = site.cached("lanes", 0.5, site.app.queue_stats)
    return Response(data=Lanes(items=[_lane(row) for row in rows]))


def _lane(row: QueueStats) -> msgspec.Struct:
    fields = msgspec.structs.asdict(row)
    for name in ("oldest_due", "next_due"):
        if isinstance(fields[name], int):
            fields[name] = clock.to_datetime(fields[name])
    return LaneOut(**fields.pop("counts"), **fields)


def failures(site: Site, request: Request) -> Response:
    rows = site.cached("failures", 1.0, site.app.failures)
    return Response(data=Failures(items=[shown.failure(row) for row in rows]))


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
