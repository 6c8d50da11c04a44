"""New jobs."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from treadle import views
from treadle.job import Job, NewJob
from treadle.web.api.schemas import Jobs, NewJobIn
from treadle.web.http import Request, Response
from treadle.web.problem import HTTPProblem
from treadle.web.route import Parameter, Route
from treadle.web.site import Site

MOST = 1_000
Key = Annotated[str, Meta(min_length=1, max_length=200)]
KEY = "A text of at most 200 characters that no other request of yours has; kept for 7 days"


def enqueue(site: Site, request: Request) -> Response:
    """One or many, all or none. 201 if any is new, 200 if a dedupe key found them all stored already."""
    given: list[NewJobIn] = request.body if isinstance(request.body, list) else [request.body]
    new_jobs = [_new_job(site, request, one) for one in given]
    key: str | None = request.query["Idempotency-Key"]
    jobs = site.app.enqueue_many(new_jobs) if key is None else _once(site, request, key, new_jobs)
    stored = {new.id for new in new_jobs} & {job.id for job in jobs}
    if stored:
        site.audit(request, "enqueue", _told(jobs), len(stored))
    items = [views.job(job) for job in jobs]
    status = 201 if stored else 200
    return Response(status=status, data=Jobs(items=items) if isinstance(request.body, list) else items[0])


def _once(site: Site, request: Request, key: str, new_jobs: list[NewJob]) -> list[Job]:
    """A request that comes again with its key gets the jobs of the first. The caller is part of the key."""
    body = hashlib.sha256(msgspec.json.encode(request.body, order="deterministic")).hexdigest()
    jobs, _ = site.app.store.insert_once(request.caller.tenant or "", f"{request.caller.name}: {key}", body, new_jobs)
    if not jobs:
        raise HTTPProblem(409, "the jobs of this request are gone", "they were deleted or pruned; send another key")
    return jobs


def _new_job(site: Site, request: Request, one: NewJobIn) -> NewJob:
    options: dict[str, Any] = one.options()
    if (tenant := request.caller.tenant) is not None:
        if options.get("tenant", tenant) != tenant:
            told = f"tenant={options['tenant']!r}: {request.caller.name} is bound to the tenant {tenant!r}"
            raise HTTPProblem(403, told, "leave tenant out")
        options["tenant"] = tenant
    return site.app.request(one.type, one.payload, **options)


def _told(jobs: list[Job]) -> str:
    """One job by its id, several by their types."""
    return jobs[0].id if len(jobs) == 1 else ", ".join(sorted({job.type for job in jobs}))


ROUTES = (
    Route(
        method="POST",
        path="/api/jobs",
        do=enqueue,
        summary="Store a job, or up to 1,000 of them: all or none",
        scope="enqueue",
        body=NewJobIn | Annotated[list[NewJobIn], Meta(min_length=1, max_length=MOST)],
        parameters=(Parameter("Idempotency-Key", Key, KEY, where="header"),),
        problems=(409, 422),
        answers={200: (Job, Jobs), 201: (Job, Jobs)},
    ),
)
