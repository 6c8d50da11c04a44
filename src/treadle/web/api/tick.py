"""One bounded pass in this process: for cron, serverless platforms and tests."""

from __future__ import annotations

from treadle.web.api.schemas import TickIn
from treadle.web.http import Request, Response
from treadle.web.problem import HTTPProblem
from treadle.web.route import Route
from treadle.web.site import Site
from treadle.worker.tick import TickReport


def tick(site: Site, request: Request) -> Response:
    """Safe to call as often and from as many places as one likes: each is a worker of its own while it runs."""
    if not len(site.app.registry):
        raise HTTPProblem(
            501,
            "this process has no handlers, so it cannot run jobs",
            "mount td.asgi() of the app that declares them, or start it with one: treadle dashboard app:td",
        )
    asked: TickIn = request.body
    report = site.app.tick(max_jobs=asked.max_jobs, max_seconds=asked.max_seconds)
    site.audit(request, "tick", f"{report.ran} ran", report.ran)
    return Response(data=report)


ROUTES = (
    Route(
        method="POST",
        path="/api/jobs/tick",
        do=tick,
        summary="Run what is due, here and now, within bounds",
        scope="tick",
        for_tenants=False,
        slow=True,
        body=TickIn,
        needs_body=False,
        answers={200: TickReport},
        problems=(501,),
    ),
)
