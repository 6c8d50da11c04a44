"""What can be done to one job."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import UNSET

from treadle import views
from treadle.job import Job
from treadle.web.api.jobs import the_job
from treadle.web.api.schemas import ChangesIn
from treadle.web.http import Request, Response
from treadle.web.route import Endpoint, Route
from treadle.web.site import Site


def _do(verb: str, site: Site, request: Request) -> Response:
    """Do it, note it, and show the job as it is then."""
    act: Callable[[str], Job] = getattr(site.app, verb)
    job = act(the_job(site, request).id)
    site.audit(request, verb, job.id)
    return Response(data=views.job(job))


def _route(method: str, path: str, verb: str, summary: str) -> Route:
    do: Endpoint = partial(_do, verb)
    return Route(
        method=method, path=path, do=do, summary=summary, scope="manage", answers={200: Job}, problems=(404, 409)
    )


def clone(site: Site, request: Request) -> Response:
    """A new job like it, with another payload if one is sent."""
    changes: ChangesIn = request.body
    payload = None if changes.payload is UNSET else changes.payload
    job = site.app.clone(the_job(site, request).id, payload)
    site.audit(request, "clone", job.id)
    return Response(status=201, data=views.job(job))


ROUTES = (
    _route("POST", "/api/jobs/{id}/run-now", "run_now", "Let a waiting job wait no longer"),
    Route(
        method="POST",
        path="/api/jobs/{id}/clone",
        do=clone,
        summary="A new job like it",
        scope="manage",
        body=ChangesIn,
        needs_body=False,
        answers={201: Job},
        problems=(404,),
    ),
    _route("POST", "/api/jobs/{id}/retry", "retry", "Let an ended job run again now, with all of its attempts"),
    _route("POST", "/api/jobs/{id}/cancel", "cancel", "End a waiting job; tell the worker of a running one to stop it"),
    _route("DELETE", "/api/jobs/{id}", "delete", "Erase a job that is not running"),
)
