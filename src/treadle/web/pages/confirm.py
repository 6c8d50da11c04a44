"""Before jobs are changed: how many, which, and are you sure? After: one is done at once, several are an operation."""

from __future__ import annotations

from typing import NamedTuple

from treadle import filters
from treadle.bulk import Bulk
from treadle.errors import CountMoved, JobNotFound
from treadle.filters import Filter
from treadle.job import Count
from treadle.web.api.bulk import prepare, start
from treadle.web.api.job_list import bound
from treadle.web.formatting import number
from treadle.web.http import Request, Response, redirect
from treadle.web.pages.actions import ACTS, Act
from treadle.web.problem import HTTPProblem
from treadle.web.render import render
from treadle.web.route import Parameter, Route
from treadle.web.site import Site


class Which(NamedTuple):
    """The jobs that are meant: these, or all that a filter finds."""

    ids: list[str]
    filter: str

    @property
    def one(self) -> str | None:
        return self.ids[0] if len(self.ids) == 1 else None

    def wanted(self, request: Request) -> Filter:
        text = f"id:{','.join(self.ids)}" if self.ids else self.filter
        return bound(request, filters.parse(text))


def confirm(site: Site, request: Request) -> Response:
    """Request. If all that a filter finds is meant, the number has to be typed."""
    act = _act(request.query["action"])
    ids = request.raw.query_params.getlist("id")
    which = Which([] if request.query["all"] else ids, request.query["q"])
    if not which.ids and not request.query["all"]:
        raise HTTPProblem(400, "no job is selected", "go back and select some, or tick “all matching”")
    count = _count(prepare(site, act.key, which.wanted(request), None))
    about = site.app.get(which.one) if which.one else None
    if which.one and (about is None or request.caller.tenant not in (None, about.tenant)):
        raise JobNotFound(which.one)
    return _page(site, request, act, which, count, about=about)


def do(site: Site, request: Request) -> Response:
    """Do it, to as many as were shown; if there are others now, request again."""
    act = _act(request.field("action"))
    which = Which(request.form.get("id", []), request.field("q"))
    if which.one:
        return _do_one(site, request, act, which.one)
    work = prepare(site, act.key, which.wanted(request), None)
    count, expected = _count(work), request.field("expected")
    if not which.ids and request.field("typed").strip().replace(",", "").rstrip("+") != expected:
        wrong = f"type {expected} to confirm; you typed {request.field('typed')!r}"
        return _page(site, request, act, which, count, status=400, error=wrong)
    if expected != str(count.value):
        moved = str(CountMoved(int(expected) if expected.isdecimal() else 0, count.value))
        return _page(site, request, act, which, count, status=412, error=moved)
    return redirect(request.url(f"/operations/{start(site, request, work).id}"))


def _do_one(site: Site, request: Request, act: Act, id: str) -> Response:
    job = site.app.get(id)
    if job is None or request.caller.tenant not in (None, job.tenant):
        raise JobNotFound(id)
    getattr(site.app, act.key)(id)
    site.audit(request, act.key, id)
    return redirect(request.url("/jobs" if act.key == "delete" else f"/jobs/{id}"))


def _act(key: str) -> Act:
    if key not in ACTS:
        raise HTTPProblem(400, f"nothing is called {key!r}", f"it is one of {', '.join(ACTS)}")
    return ACTS[key]


def _count(work: Bulk) -> Count:
    return Count(work.total, work.exact)


def _page(
    site: Site,
    request: Request,
    act: Act,
    which: Which,
    count: Count,
    *,
    status: int = 200,
    error: str = "",
    about: object = None,
) -> Response:
    back = request.url(f"/jobs/{which.one}") if which.one else request.url("/jobs", q=which.filter)
    given = {"act": act, "which": which, "count": count, "shown": number(count), "error": error, "about": about}
    return render(site, request, "confirm.html", status=status, place="jobs", back=back, **given)


ROUTES = (
    Route(
        method="GET",
        path="/jobs/confirm",
        do=confirm,
        summary="Are you sure?",
        scope="manage",
        parameters=(
            Parameter("action", str, "retry, run_now, cancel or delete", default=""),
            Parameter("q", str, "A filter", default=""),
            Parameter("all", str, "1: all that match", default=""),
        ),
        page=True,
    ),
    Route(method="POST", path="/jobs/act", do=do, summary="Retry, cancel … jobs", scope="manage", page=True),
)
