"""The list of jobs: a filter, tabs, rows, and what to do with them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from treadle import filters, views
from treadle.errors import BadCursor, BadFilter
from treadle.filters import Filter
from treadle.job import STATES, WAITING, Count, Job, Page, Progress, Status, state_of
from treadle.web.api.job_list import bound
from treadle.web.formatting import of as words_of
from treadle.web.highlight import brief
from treadle.web.http import Request, Response, redirect
from treadle.web.pages import cached
from treadle.web.pages.actions import ACTS
from treadle.web.pages.suggestions import loosen
from treadle.web.render import render
from treadle.web.route import Parameter, Route
from treadle.web.site import Site

ROWS = 50
"""A page of them; also how many ids a filter can name."""
TRAIL = 20
"""Pages back that the address remembers; beyond, Newer is the first page."""


class Row(NamedTuple):
    """A job as the list shows it."""

    job: Job
    state: str
    payload: str
    error: str
    note: str
    progress: Progress | None
    at: datetime
    same: dict[str, str]
    """Filters for what it has in common with others."""


class Chip(NamedTuple):
    """A term of the filter, and the filter without it."""

    key: str
    value: str
    without: str


class Tab(NamedTuple):
    key: str
    name: str
    told: str
    """How many."""
    q: str
    chosen: bool


def jobs(site: Site, request: Request) -> Response:
    q, cursor = request.query["q"].strip(), request.query["cursor"] or None
    try:
        wanted = filters.parse(q)
    except BadFilter as error:
        return _page(site, request, status=400, error=str(error), q=q, chips=[])
    if str(wanted) == f"id:{''.join(wanted.ids)}" and len(wanted.ids) == 1 and site.app.get(wanted.ids[0]):
        return redirect(request.url(f"/jobs/{wanted.ids[0]}"))
    mine = bound(request, wanted)
    counts = cached.tabs(site, mine)
    try:
        page = site.app.jobs(mine, limit=ROWS, cursor=cursor)
    except BadCursor as error:
        return _page(site, request, status=400, error=str(error), q=q, chips=_chips(wanted))
    total = count_of(wanted, counts)
    empty = None if page.jobs else loosen(site, request, wanted, counts)
    values: dict[str, Any] = {
        "rows": _rows(request, page),
        "tabs": _tabs(wanted, counts),
        "chips": _chips(wanted),
        "empty": empty,
    }
    return _page(site, request, q=str(wanted), page=page, total=total, **values, **_pager(request, page, cursor))


def _page(site: Site, request: Request, *, status: int = 200, error: str = "", **values: Any) -> Response:
    may_manage = request.caller.may("manage") and not site.read_only
    actions = [(act.key, act.name, act.tone) for act in ACTS.values()]
    given = {"place": "jobs", "error": error, "may_manage": may_manage, "actions": actions, **values}
    return render(site, request, "jobs.html", status=status, **given)


def count_of(wanted: Filter, counts: dict[str, Count]) -> Count:
    """How many match, statuses too. Pending is queued, scheduled and retrying."""
    if not wanted.statuses:
        return counts["all"]
    states = {state for name in wanted.statuses for state in (WAITING if name == Status.PENDING else (name,))}
    found = [counts[state] for state in states]
    return Count(sum(count.value for count in found), all(count.exact for count in found))


def _rows(request: Request, page: Page) -> list[Row]:
    now = words_of(request).now
    return [_row(views.job(job), now) for job in page]


def _row(job: Job, now: datetime) -> Row:
    state = state_of(job, now)
    return Row(
        job=job,
        state=state,
        payload=brief(job.payload),
        error=(job.error or "") if state in ("failed", "retrying", "cancelled") else "",
        note=_note(job, state),
        progress=job.progress if state == Status.PROCESSING else None,
        at=_moment(job, state),
        same={"queue": str(Filter(queues=(job.queue,))), "tenant": str(Filter(tenants=(job.tenant,)))},
    )


def _note(job: Job, state: str) -> str:
    if state == "completed" and job.result is not None:
        return brief(job.result, 80)
    return f"subject {job.subject}" if job.subject else ""


def _moment(job: Job, state: str) -> datetime:
    """What matters of its times: when it ended, started, or is due."""
    if state in ("scheduled", "retrying"):
        return job.run_at
    return job.completed_at or (job.started_at if state == Status.PROCESSING else None) or job.created_at


def _tabs(wanted: Filter, counts: dict[str, Count]) -> list[Tab]:
    tabs = [("all", "All"), *((state.name, state.label) for state in STATES)]
    return [_tab(wanted, counts, key, name) for key, name in tabs]


def _tab(wanted: Filter, counts: dict[str, Count], key: str, name: str) -> Tab:
    statuses = () if key == "all" else (key,)
    return Tab(key, name, str(counts[key]), str(wanted.replace(statuses=statuses)), wanted.statuses == statuses)


def _chips(wanted: Filter) -> list[Chip]:
    terms = [(key, value) for key, value in wanted.terms()]
    texts = [f"{key}:{value}" for key, value in terms]
    return [Chip(key, value, " ".join(texts[:n] + texts[n + 1 :])) for n, (key, value) in enumerate(terms)]


def _pager(request: Request, page: Page, cursor: str | None) -> dict[str, Any]:
    """Keyset paging goes one way; the way back is in the address."""
    trail = [part for part in request.query["trail"].split(".") if part]
    q = request.query["q"].strip() or None
    older = page.next and request.url("/jobs", q=q, cursor=page.next, trail=".".join([*trail, cursor or "0"][-TRAIL:]))
    newer = None
    if cursor is not None:
        back = trail[-1] if trail else "0"
        newer = request.url("/jobs", q=q, cursor=None if back == "0" else back, trail=".".join(trail[:-1]))
    return {"older": older, "newer": newer}


ROUTES = (
    Route(
        method="GET",
        path="/jobs",
        do=jobs,
        summary="Jobs, by filter",
        parameters=(
            Parameter("q", str, "A filter", default=""),
            Parameter("cursor", str, "Where the page goes on", default=""),
            Parameter("trail", str, "The way back", default=""),
        ),
        page=True,
    ),
)
