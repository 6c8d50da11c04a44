"""The list of jobs: a filter, tabs, rows, bulk actions, and suggestions when nothing matches."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from treadle import filters, views
from treadle.errors import BadCursor, BadFilter
from treadle.filters import Filter
from treadle.job import STATES, WAITING, Count, Job, Page, Status, state_of
from treadle.web.formatting import formatter_for, times
from treadle.web.highlight import brief
from treadle.web.pages import queries
from treadle.web.pages.actions import ACTION_BUTTONS
from treadle.web.render import may_manage, render
from treadle.web.route import Request, Response, get, redirect

ROWS = 50
"""Rows of a page. Also how many ids a filter can name."""
TRAIL = 20
"""Pages back that the address remembers. Beyond that, Newer leads to the first page."""
MAX_SUGGESTIONS = 3
MAX_TRIED = 5
"""Terms that are left out in turn: each costs a count."""
Suggestion = tuple[str, str]
"""A text, and a link to another filter, which finds something."""


@get("/jobs", "Jobs, by filter", page=True)
def jobs(request: Request) -> Response:
    q, cursor = request.text("q").strip(), request.text("cursor") or None
    try:
        wanted = filters.parse(q)
        limited = request.jobs.filter(wanted)
    except BadFilter as error:
        return _page(request, status=400, error=str(error), q=q, chips=[])
    if str(wanted) == f"id:{''.join(wanted.ids)}" and len(wanted.ids) == 1 and request.jobs.find(wanted.ids[0]):
        return redirect(request.url(f"/jobs/{wanted.ids[0]}"))
    counts = queries.counts_by_state(request, limited)
    try:
        page = request.jobs.page(limited, ROWS, cursor)
    except BadCursor as error:
        return _page(request, status=400, error=str(error), q=q, chips=_chips(wanted))
    now = formatter_for(request).now
    values: dict[str, Any] = {
        "rows": [_row(views.job(job, request.redactor), now) for job in page],
        "tabs": _tabs(wanted, counts),
        "chips": _chips(wanted),
        "total": count_of(wanted, counts),
        "suggestions": [] if page.jobs else suggest(request, wanted, counts),
    }
    return _page(request, q=str(wanted), page=page, **values, **_pager(request, page, cursor))


def _page(request: Request, *, status: int = 200, error: str = "", **values: Any) -> Response:
    actions = ACTION_BUTTONS.values() if may_manage(request) else ()
    return render(request, "jobs.html", status=status, current_page="jobs", error=error, actions=actions, **values)


def count_of(wanted: Filter, counts: dict[str, Count]) -> Count:
    """How many match, statuses too. Pending is queued, scheduled and retrying."""
    if not wanted.statuses:
        return counts["all"]
    states = {state for name in wanted.statuses for state in (WAITING if name == Status.PENDING else (name,))}
    found = [counts[state] for state in states]
    return Count(sum(count.value for count in found), all(count.exact for count in found))


def _row(job: Job, now: datetime) -> tuple[Job, str, str, str, str, datetime]:
    """A job as the list shows it, with its state, its payload in short, its error, what else is notable, and when."""
    state = state_of(job, now)
    error = job.error if state in ("failed", "retrying", "cancelled") else None
    return job, state, brief(job.payload), error or "", _note(job, state), _moment(job, state)


def _note(job: Job, state: str) -> str:
    if state == "completed" and job.result is not None:
        return brief(job.result, 80)
    notes = [f"subject {job.subject}"] if job.subject else []
    notes += ["waits for its dedupe key"] if job.waits_for_key else []
    notes += [f"snoozed {times(job.snoozes)}"] if job.snoozes else []
    return ", ".join(notes)


def _moment(job: Job, state: str) -> datetime:
    """The time that matters most: when it ended, started, or is due."""
    if state in ("scheduled", "retrying") and not job.waits_for_key:
        return job.run_at
    return job.completed_at or (job.started_at if state == Status.PROCESSING else None) or job.created_at


def _tabs(wanted: Filter, counts: dict[str, Count]) -> list[tuple[str, str, Count, str, bool]]:
    """For each tab: its key, its name, how many jobs it has, its filter, and whether it is selected."""
    tabs = [("all", "All", ()), *((state.name, state.label, (state.name,)) for state in STATES)]
    return [
        (key, name, counts[key], str(wanted.replace(statuses=statuses)), wanted.statuses == statuses)
        for key, name, statuses in tabs
    ]


def _chips(wanted: Filter) -> list[tuple[str, str, str]]:
    """For each term of the filter: its key, its value, and the filter without it."""
    terms = list(wanted.terms())
    texts = [f"{key}:{value}" for key, value in terms]
    return [(key, value, " ".join(texts[:n] + texts[n + 1 :])) for n, (key, value) in enumerate(terms)]


def _pager(request: Request, page: Page, cursor: str | None) -> dict[str, Any]:
    """Keyset paging goes one way; the way back is in the address."""
    trail = [part for part in request.text("trail").split(".") if part]
    q = request.text("q").strip() or None
    older = page.next and request.url("/jobs", q=q, cursor=page.next, trail=".".join([*trail, cursor or "0"][-TRAIL:]))
    newer = None
    if cursor is not None:
        back = trail[-1] if trail else "0"
        newer = request.url("/jobs", q=q, cursor=None if back == "0" else back, trail=".".join(trail[:-1]))
    return {"older": older, "newer": newer}


def suggest(request: Request, wanted: Filter, counts: dict[str, Count]) -> list[Suggestion]:
    """The nearest filters that find something: other statuses first, then the filter without one of its terms."""
    if not wanted.terms():
        return []
    found = _other_statuses(request, wanted, counts) if wanted.statuses else []
    found = found or _without_a_term(request, wanted)
    return found[:MAX_SUGGESTIONS] or [("All jobs", request.url("/jobs"))]


def _other_statuses(request: Request, wanted: Filter, counts: dict[str, Count]) -> list[Suggestion]:
    others = [name for name, count in counts.items() if count.value and name not in ("all", *wanted.statuses)]
    others.sort(key=lambda name: -counts[name].value)
    filters = {name: str(wanted.replace(statuses=(name,))) for name in others}
    return [(f"{counts[name]} {name}", request.url("/jobs", q=filter)) for name, filter in filters.items()]


def _without_a_term(request: Request, wanted: Filter) -> list[Suggestion]:
    found: list[tuple[int, Suggestion]] = []
    for key, value, rest in _chips(wanted)[:MAX_TRIED]:
        count = request.jobs.count(filters.read_back(rest))
        if count.value:
            found.append((count.value, (f"{count} without {key}:{value}", request.url("/jobs", q=rest))))
    return [suggestion for _, suggestion in sorted(found, key=lambda pair: pair[0])]
