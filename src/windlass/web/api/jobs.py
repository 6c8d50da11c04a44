"""Jobs, one at a time."""

from __future__ import annotations

from windlass.errors import JobNotFound
from windlass.job import Job
from windlass.web.ask import Answer, Ask
from windlass.web.route import Route
from windlass.web.site import Site


def the_job(site: Site, ask: Ask) -> Job:
    """The job that the path names. One of another tenant does not exist for those who are bound to theirs."""
    job = site.app.get(ask.path["id"])
    if job is None or ask.who.tenant not in (None, job.tenant):
        raise JobNotFound(ask.path["id"])
    return job


def get(site: Site, ask: Ask) -> Answer:
    return Answer(data=the_job(site, ask))


ROUTES = (Route(method="GET", path="/api/jobs/{id}", do=get, summary="One job", answers={200: Job}, problems=(404,)),)
