"""Numbers: counts of jobs, usage over time, queues, groups of failures, workers."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from treadle import clock, units, views
from treadle.filters import Filter
from treadle.job import STATE_NAMES, Backlog, FailureGroup
from treadle.stores.rows import QueueStats
from treadle.views import UsageOut, WorkerOut
from treadle.web.api.jobs import FILTERS, filter_of
from treadle.web.problem import HTTPProblem
from treadle.web.route import Parameter, Request, Response, get
from treadle.web.visible_jobs import VisibleJobs

MAX_COUNTED = 50_000
"""Only this many of the newest jobs are counted where there is no tally."""
QUERY_SHARE = 0.05
"""At most this part of the time goes into one query: a count by tenant or subject reads every job."""
LIVE_SHARE = 0.2
"""The share of a query that people watch: it is cheap at any size, and must be true within a second."""
MAX_GROUPS = 200
"""There may be a tenant for every job."""
MAX_STEPS = 1_500
MAX_USAGE_ROWS = 20_000
"""Steps times groups."""
Groups = Annotated[str, Meta(pattern=r"^(status|type|queue|tenant|subject)(,(status|type|queue|tenant|subject)){0,4}$")]
UsageKeys = Annotated[str, Meta(pattern=r"^((type|queue|tenant)(,(type|queue|tenant)){0,2})?$")]
Minutes = Annotated[int, Meta(ge=60, le=86_400, multiple_of=60)]
COUNT_BY = Parameter(
    "group_by", Groups, "Some of status, type, queue, tenant, subject, with commas between them", default="status"
)
USAGE_BY = Parameter(
    "group_by", UsageKeys, "Some of type, queue, tenant, with commas between them; nothing for the sum", default="type"
)
STEP = Parameter("step", Minutes, "Whole minutes, in seconds: 60 to 86400", default=300)
WINDOW = Parameter("window", str, "How far back: 24h, 7d", default="24h")
USAGE = (WINDOW, STEP, USAGE_BY)
BACKLOG = (WINDOW, STEP)


class Rest(msgspec.Struct, kw_only=True):
    """The groups that are not listed: how many, and with how many jobs together."""

    groups: int
    count: int


class Stats(msgspec.Struct, kw_only=True):
    """How many jobs there are, grouped as was asked for: the largest groups."""

    items: list[dict[str, Any]]
    other: Rest
    exact: bool
    """False if only the newest jobs were counted, because it would have taken too long."""
    as_of: datetime


class UsagePage(msgspec.Struct, kw_only=True):
    """Steps in which nothing was run are left out."""

    since: datetime
    until: datetime
    step: int
    items: list[UsageOut]


_COUNTS: dict[str, Any] = {"queue": str, "type": str, **dict.fromkeys(STATE_NAMES, int), "limit": int | None}
_FIELDS = {**_COUNTS, "oldest_due": datetime | None, "next_due": datetime | None, "exact": bool, "others": int}
_struct = partial(msgspec.defstruct, kw_only=True, module=__name__)
QueueOut = _struct("LaneOut", _FIELDS.items(), namespace={"__doc__": "Jobs of one type in one queue."})
_ITEMS = [("items", list[QueueOut])]  # type: ignore[valid-type]
Queues = _struct("Lanes", _ITEMS, namespace={"__doc__": "By queue and type."})
"""The OpenAPI document has both under names that clients know."""


class Failures(msgspec.Struct, kw_only=True):
    """Failed jobs by type and error, the latest first."""

    items: list[FailureGroup]


class Workers(msgspec.Struct, kw_only=True):
    """Who works, oldest first."""

    items: list[WorkerOut]


@get("/api/stats", "How many jobs there are, grouped", parameters=(*FILTERS, COUNT_BY))
def stats(request: Request) -> Stats:
    by = tuple(dict.fromkeys(request.query["group_by"].split(",")))
    wanted = filter_of(request)
    make = partial(_count, request.jobs, by, wanted)
    return request.cached(("stats", by, wanted), 0.5, make, share=QUERY_SHARE)


def _count(jobs: VisibleJobs, by: tuple[str, ...], wanted: Filter) -> Stats:
    found = jobs.counts(by, wanted, MAX_COUNTED)
    rows = sorted(found.rows, key=lambda row: -row["count"])
    rest = Rest(groups=len(rows[MAX_GROUPS:]), count=sum(row["count"] for row in rows[MAX_GROUPS:]))
    return Stats(items=rows[:MAX_GROUPS], other=rest, exact=found.exact, as_of=clock.to_datetime(jobs.now()))


@get("/api/metrics", "Runs, failures, busy and waiting time, step by step", parameters=USAGE)
def usage(request: Request) -> UsagePage:
    step: int = request.query["step"]
    since, until = _window(request.query["window"], step, request.jobs.now() // clock.SECOND)
    by = tuple(dict.fromkeys(name for name in request.query["group_by"].split(",") if name))
    most = MAX_USAGE_ROWS + 1
    rows = request.jobs.usage(since, until, by=by, step=step, at_most=most)
    if len(rows) > MAX_USAGE_ROWS:
        problem = f"that would be more than {MAX_USAGE_ROWS:,} rows"
        raise HTTPProblem(400, problem, "choose a longer step, a shorter window, or fewer groups")
    items = [views.usage(row, by) for row in rows]
    return UsagePage(since=since, until=until, step=step, items=items)


def _window(text: str, step: int, now: int) -> tuple[datetime, datetime]:
    """From when until when, in whole steps. The last one is under way."""
    seconds = units.parse_duration(text)
    if seconds is None or not 60 <= seconds <= 400 * 86_400:
        raise HTTPProblem(400, f"window={text!r}", "give a length of time from 1m to 400d, such as 24h")
    if seconds / step > MAX_STEPS:
        problem = f"that would be {seconds / step:,.0f} steps of at most {MAX_STEPS:,}"
        raise HTTPProblem(400, problem, "choose a longer step")
    until = clock.to_datetime((now - now % step + step) * clock.SECOND)
    return until - timedelta(seconds=seconds - seconds % step or step), until


class BacklogPage(msgspec.Struct, kw_only=True):
    """Steps in which no worker counted are left out."""

    since: datetime
    until: datetime
    step: int
    items: list[Backlog]


@get(
    "/api/backlog",
    "How many jobs waited and ran, step by step: the most of each",
    for_tenants=False,
    parameters=BACKLOG,
)
def backlog(request: Request) -> BacklogPage:
    step: int = request.query["step"]
    since, until = _window(request.query["window"], step, request.app.store.now() // clock.SECOND)
    items = request.app.backlog(since, until, step=step)
    return BacklogPage(since=since, until=until, step=step, items=items)


@get("/api/queues", "What waits and what runs, by queue and type", for_tenants=False, returns=Queues)
def queues(request: Request) -> Response:
    return Response(data=Queues(items=[QueueOut(**views.queue(row)) for row in queue_stats(request)]))


def queue_stats(request: Request) -> list[QueueStats]:
    """As pages, metrics and the API show them: read once for all of these."""
    return request.web.cached("queues", 0.5, request.app.queue_stats, share=LIVE_SHARE)


@get("/api/failures", "Failed and retrying jobs, by type and error", for_tenants=False)
def failures(request: Request) -> Failures:
    rows = request.web.cached("failures", 1.0, request.app.failures)
    return Failures(items=[views.failure(row, request.redactor) for row in rows])


@get("/api/workers", "Who works, since when, and whether they are alive", for_tenants=False)
def workers(request: Request) -> Workers:
    rows, now = request.app.workers(), request.app.store.now()
    return Workers(items=[views.worker(row, now) for row in rows])
