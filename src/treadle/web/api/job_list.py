"""Lists of jobs: which, how many, and what comes after them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from treadle import filters
from treadle.filters import Filter
from treadle.job import Count, Job
from treadle.web import shown
from treadle.web.http import Request, Response
from treadle.web.problem import HTTPProblem
from treadle.web.route import Parameter, Route
from treadle.web.site import Site

MOST = 200
PLAIN = ("status", "type", "queue", "tenant", "subject", "worker")
"""Terms that may be parameters of their own, too."""


class Total(msgspec.Struct, kw_only=True):
    """How many there are. `gte`: at least so many."""

    value: int
    relation: str

    @classmethod
    def of(cls, count: Count) -> Total:
        return cls(value=count.value, relation="eq" if count.exact else "gte")


class JobPage(msgspec.Struct, kw_only=True):
    """Some jobs, newest first."""

    items: list[Job]
    next_cursor: str | None
    total: Total | None
    searched: int | None
    """If the search ended before the page was full: after how many jobs. `next_cursor` goes on from there."""
    filter: str
    """What was asked for, as treadle understood it."""


FILTER = Parameter("q", str, "A filter: status:failed type:send_* payload.user_id:42 since:1h", default="")
FILTERS = (FILTER, *(Parameter(name, str, f"The same as {name}:… in q") for name in PLAIN))


def filter_of(request: Request) -> Filter:
    """The filter that the parameters make, for the caller's own tenant if they are bound to one."""
    terms = [f"{name}:{request.query[name]}" for name in PLAIN if request.query.get(name)]
    return bound(request, filters.parse(" ".join([request.query["q"], *terms])))


def bound(request: Request, wanted: Filter) -> Filter:
    """The same, for the caller's own tenant only."""
    tenant = request.caller.tenant
    if tenant is None:
        return wanted
    if wanted.tenants and not filters.matches(tenant, wanted.tenants):
        told = f"{request.caller.name} is bound to the tenant {tenant!r}"
        raise HTTPProblem(403, told, "leave tenant: out of the filter")
    return wanted.replace(tenants=(tenant,))


def jobs(site: Site, request: Request) -> Response:
    wanted = filter_of(request)
    page = site.app.jobs(wanted, limit=request.query["limit"], cursor=request.query["cursor"])
    total: Any = Total.of(site.app.count(wanted)) if request.query["total"] else None
    return Response(
        data=JobPage(
            items=[shown.job(job) for job in page.jobs],
            next_cursor=page.next,
            total=total,
            searched=page.searched,
            filter=str(wanted),
        )
    )


ROUTES = (
    Route(
        method="GET",
        path="/api/jobs",
        do=jobs,
        summary="Jobs that match a filter, newest first, page by page",
        parameters=(
            *FILTERS,
            Parameter("limit", Annotated[int, Meta(ge=1, le=MOST)], f"From 1 to {MOST}", default=50),
            Parameter("cursor", str, "The next_cursor of the page before"),
            Parameter("total", bool, "Whether to count them all, up to 10,000", default=True),
        ),
        answers={200: JobPage},
    ),
)
