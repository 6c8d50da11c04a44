"""One job: what it is, its attempts, why it is not running."""

from __future__ import annotations

from treadle import views
from treadle.diagnosis import Why
from treadle.errors import JobNotFound
from treadle.job import Job
from treadle.web.api.schemas import Attempts
from treadle.web.http import Request, Response
from treadle.web.route import Route
from treadle.web.site import Site


def the_job(site: Site, request: Request) -> Job:
    """The job that the path names. One of another tenant does not exist for those who are bound to theirs."""
    job = site.app.get(request.path["id"])
    if job is None or request.caller.tenant not in (None, job.tenant):
        raise JobNotFound(request.path["id"])
    return job


def get(site: Site, request: Request) -> Response:
    return Response(data=views.job(the_job(site, request)))


def attempts(site: Site, request: Request) -> Response:
    job = the_job(site, request)
    return Response(data=Attempts(items=[views.attempt(attempt) for attempt in site.app.attempts(job.id)]))


def why(site: Site, request: Request) -> Response:
    return Response(data=views.why(site.app.why(the_job(site, request).id)))


ROUTES = (
    Route(method="GET", path="/api/jobs/{id}", do=get, summary="One job", answers={200: Job}, problems=(404,)),
    Route(
        method="GET",
        path="/api/jobs/{id}/attempts",
        do=attempts,
        summary="Its unsuccessful attempts, with their tracebacks",
        answers={200: Attempts},
        problems=(404,),
    ),
    Route(
        method="GET",
        path="/api/jobs/{id}/why",
        do=why,
        summary="Why it is not running: every reason that holds, the deciding one first",
        answers={200: Why},
        problems=(404,),
    ),
)
