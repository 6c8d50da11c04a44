"""Jobs: a list by filter, one job and its attempts, what can be done to it, and new jobs."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from treadle import filters, views
from treadle.app import Treadle
from treadle.bulk import changes_for
from treadle.dedupe import LONGEST, Dedupe, Mode, Until
from treadle.filters import Filter
from treadle.job import Attempt, Job, NewJob
from treadle.lineage import MOST_RELATED, Lineage
from treadle.reasons import Why
from treadle.redact import Redactor
from treadle.views import JobOut, JobPage, LogPage
from treadle.waits import IfFailed
from treadle.web.api import new_types
from treadle.web.problem import HTTPProblem
from treadle.web.route import Parameter, Request, Response, Route, get, post
from treadle.web.visible_jobs import JobAction

MAX_ROWS = 200
MAX_NEW = 1_000
PLAIN = ("status", "type", "queue", "tenant", "subject", "worker")
"""Terms of a filter that are also parameters of their own."""
FILTER = Parameter("q", str, "A filter: status:failed type:send_* payload.user_id:42 since:1h", default="")
FILTERS = (FILTER, *(Parameter(name, str, f"The same as {name}:… in q") for name in PLAIN))
PAGE = (
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_ROWS)], f"From 1 to {MAX_ROWS}", default=50),
    Parameter("cursor", str, "The next_cursor of the page before"),
)
LISTED = (*FILTERS, *PAGE, Parameter("total", bool, "Whether to count them all, up to 10,000", default=True))
Name = Annotated[str, Meta(max_length=200)]
RequiredName = Annotated[str, Meta(min_length=1, max_length=200)]
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    RequiredName,
    "A text of at most 200 characters that no other request of yours has; kept for 7 days",
    where="header",
)


class Attempts(msgspec.Struct, kw_only=True):
    """The unsuccessful attempts of a job, oldest first."""

    items: list[Attempt]


class Jobs(msgspec.Struct, kw_only=True):
    """Several jobs."""

    items: list[JobOut]


class ChangesIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a clone has of its own."""

    payload: dict[str, Any] | UnsetType = UNSET


Seconds = Annotated[float, Meta(gt=0, le=LONGEST)]


class DedupeIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A dedupe key, and what happens if another job holds it. `wait` and `at_most` belong to debounce, `period` to
    throttle."""

    key: Annotated[str, Meta(min_length=1)] | bool
    mode: Mode = "return"
    until: Until = "ended"
    wait: Seconds | UnsetType = UNSET
    at_most: Seconds | UnsetType = UNSET
    period: Seconds | UnsetType = UNSET


class RescheduleIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where a waiting job moves: at least one of them."""

    run_at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    delay: Annotated[float, Meta(ge=0, le=10**10)] | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-32_767, le=32_767)] | UnsetType = UNSET
    queue: RequiredName | UnsetType = UNSET


class RetryIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which of its steps are done again."""

    from_step: RequiredName | UnsetType = UNSET
    """That step and all later ones are forgotten."""


class NewJobIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A job to be stored. What is left out is as the type's handler declares it."""

    type: RequiredName
    payload: dict[str, Any] = {}
    queue: RequiredName | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-32_767, le=32_767)] | UnsetType = UNSET
    tenant: Name | UnsetType = UNSET
    subject: Name | UnsetType = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    delay: Annotated[float, Meta(ge=0, le=10**10)] | UnsetType = UNSET
    run_at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    start_within: Annotated[float, Meta(ge=0.001, le=10**10)] | UnsetType = UNSET
    """Seconds after its run_at. If it is not started by then, it is cancelled."""
    dedupe: Annotated[str, Meta(min_length=1)] | bool | DedupeIn | UnsetType = UNSET
    after: list[str] | UnsetType = UNSET
    """The ids of its parents: the jobs that have to complete before it starts."""
    if_failed: IfFailed | UnsetType = UNSET
    """What becomes of it if one of them fails."""


def filter_of(request: Request) -> Filter:
    """The filter that the parameters make, limited to the caller's tenant."""
    terms = [f"{name}:{request.query[name]}" for name in PLAIN if request.query.get(name)]
    return request.jobs.filter(filters.parse(" ".join([request.query["q"], *terms])))


@get("/api/jobs", "Jobs that match a filter, newest first, page by page", parameters=LISTED)
def list_jobs(request: Request) -> JobPage:
    wanted = filter_of(request)
    page = request.jobs.page(wanted, request.query["limit"], request.query["cursor"])
    count = request.jobs.count(wanted) if request.query["total"] else None
    return views.job_page([views.job(job, request.redactor) for job in page], page, wanted, count)


@get("/api/jobs/{id}", "One job")
def get_job(request: Request) -> JobOut:
    return views.job(request.jobs.get(request.path["id"]), request.redactor)


@get("/api/jobs/{id}/attempts", "Its unsuccessful attempts, with their tracebacks")
def attempts(request: Request) -> Attempts:
    found, redactor = request.jobs.attempts(request.path["id"]), request.redactor
    return Attempts(items=[views.attempt(attempt, redactor) for attempt in found])


LOGGED = (
    Parameter("after", Annotated[int, Meta(ge=0, le=10**9)], "Skip this many lines: the next of the page before", 0),
    Parameter("limit", Annotated[int, Meta(ge=1, le=1_000)], "From 1 to 1,000", default=1_000),
)


@get("/api/jobs/{id}/logs", "What its handlers have logged, oldest first", parameters=LOGGED)
def logs(request: Request) -> LogPage:
    after, redactor = request.query["after"], request.redactor
    found = request.jobs.logs(request.path["id"], after, request.query["limit"])
    return views.log_page([views.log_line(line, redactor) for line in found], after)


RELATED = Parameter("most", Annotated[int, Meta(ge=1, le=MOST_RELATED)], "Jobs to return at most", default=MOST_RELATED)


@get("/api/jobs/{id}/lineage", "The jobs that it comes from, and that come from it", parameters=(RELATED,))
def lineage(request: Request) -> Lineage:
    return request.jobs.lineage(request.path["id"], request.query["most"])


@get("/api/jobs/{id}/why", "Why it is not running: every reason that holds, the deciding one first")
def why(request: Request) -> Why:
    return views.why(request.jobs.why(request.path["id"]), request.redactor)


def apply(request: Request, action: JobAction, id: str, options: Any) -> JobOut:
    """Does it to one job, records it, and returns the job as it is then. `options`: what a reschedule sets, or the
    step from which a retry begins."""
    job, name = request.jobs.change(action, id, **options), action.__name__
    noted = f"from_step={options['from_step']}" if "from_step" in options else changes_for(name, options)
    request.audit(name, f"{job.id} {noted}".strip())
    return views.job(job, request.redactor)


def action_route(action: JobAction, method: str, path: str, summary: str, body: Any = None) -> None:
    """The route that does it to the job in its path, with the fields of its body."""

    @Route(method, path, summary, scope="manage", body=body, body_required=False, problems=(409,))
    def endpoint(request: Request) -> JobOut:
        return apply(request, action, request.path["id"], given_fields(request.body))


action_route(Treadle.run_now, "POST", "/api/jobs/{id}/run-now", "Let a waiting job wait no longer")
RESCHEDULE = "Move a waiting job to another time, priority or queue"
action_route(Treadle.reschedule, "POST", "/api/jobs/{id}/reschedule", RESCHEDULE, RescheduleIn)


@post(
    "/api/jobs/{id}/clone",
    "A new job like it",
    scope="manage",
    body=ChangesIn,
    body_required=False,
    returns={201: JobOut},
)
def clone(request: Request) -> Response:
    job = request.jobs.change(Treadle.clone, request.path["id"], **given_fields(request.body))
    request.audit("clone", job.id)
    return Response(status=201, data=views.job(job, request.redactor))


RETRY = "Let an ended job run again now, with all of its attempts"
action_route(Treadle.retry, "POST", "/api/jobs/{id}/retry", RETRY, RetryIn)
action_route(
    Treadle.cancel, "POST", "/api/jobs/{id}/cancel", "End a waiting job; tell the worker of a running one to stop it"
)
action_route(Treadle.delete, "DELETE", "/api/jobs/{id}", "Erase a job that is not running")


@post(
    "/api/jobs",
    "Store a job, or up to 1,000 of them: all or none",
    scope="enqueue",
    body=NewJobIn | Annotated[list[NewJobIn], Meta(min_length=1, max_length=MAX_NEW)],
    parameters=(IDEMPOTENCY_KEY,),
    problems=(409, 422),
    returns={200: (JobOut, Jobs), 201: (JobOut, Jobs)},
)
def enqueue(request: Request) -> Response:
    """One or many, all or none. 201 if any is new, 200 if a dedupe key found them all stored already."""
    given: list[NewJobIn] = request.body if isinstance(request.body, list) else [request.body]
    new_jobs = [_new_job(request, one) for one in given]
    key: str | None = request.query[IDEMPOTENCY_KEY.name]
    with new_types.bounded(request, new_jobs):
        jobs = request.jobs.insert(new_jobs) if key is None else _insert_once(request, key, new_jobs)
    stored = {new.id for new in new_jobs} & {job.id for job in jobs}
    if stored:
        what = jobs[0].id if len(jobs) == 1 else ", ".join(sorted({job.type for job in jobs}))
        request.audit("enqueue", what, len(stored))
    redactor, may_read = request.redactor, request.caller.may("read")
    items = [views.job(job, redactor) if job.id in stored or may_read else _receipt(job, redactor) for job in jobs]
    status = 201 if stored else 200
    return Response(status=status, data=Jobs(items=items) if isinstance(request.body, list) else items[0])


def _receipt(job: Job, redactor: Redactor) -> JobOut:
    """A job that was stored before, for a caller that may not read: it may be another caller's, and may have run."""
    blank = msgspec.structs.replace(job, payload={}, result=None, error=None, progress=None)
    return views.job(blank, redactor)


def _insert_once(request: Request, key: str, new_jobs: list[NewJob]) -> list[Job]:
    """A repeated request gets the jobs of the first one with its key."""
    body = hashlib.sha256(msgspec.json.encode(request.body, order="deterministic")).hexdigest()
    jobs = request.jobs.insert_once(key, body, new_jobs)
    if not jobs:
        raise HTTPProblem(409, "the jobs of this request are gone", "they were deleted or pruned; send another key")
    return jobs


def _new_job(request: Request, one: NewJobIn) -> NewJob:
    options = given_fields(one)
    if isinstance(one.dedupe, DedupeIn):
        options["dedupe"] = Dedupe(**given_fields(one.dedupe))
    return request.jobs.request(options.pop("type"), options.pop("payload"), options)


def given_fields(body: msgspec.Struct | None) -> Any:
    """Those that the request has, as keyword arguments."""
    fields = {} if body is None else msgspec.structs.asdict(body)
    return {name: value for name, value in fields.items() if value is not UNSET}
