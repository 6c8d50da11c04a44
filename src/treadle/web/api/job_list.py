"""Lists of jobs: which, how many, and what comes after them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from treadle import filters, views
from treadle.filters import Filter
from treadle.web.http import Request, Response
from treadle.web.problem import HTTPProblem
from treadle.web.route import Parameter, Route
from treadle.web.site import Site

MOST = 200
PLAIN = ("status", "type", "queue", "tenant", "subject", "worker")
"""Terms that may be parameters of their own, too."""


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
    count = site.app.count(wanted) if request.query["total"] else None
    return Response(data=views.job_page([views.job(job) for job in page], page, wanted, count))


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
        answers={200: views.JobPage},
    ),
)
