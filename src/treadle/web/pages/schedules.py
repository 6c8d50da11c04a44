"""The pages of schedules: a list, one schedule, and the question before something is done to it."""

from __future__ import annotations

from typing import NamedTuple

from treadle import views
from treadle.errors import BadOption
from treadle.schedule import Schedule
from treadle.schedule_diagnosis import ScheduleReason
from treadle.schedules import Schedules
from treadle.web import formatting, highlight
from treadle.web.api.bulk import start
from treadle.web.pages.actions import chosen
from treadle.web.pages.pauses import LENGTHS, chosen_length
from treadle.web.render import may_manage, render
from treadle.web.route import Request, Response, get, post, redirect

MAX_ROWS = 100


class ScheduleAction(NamedTuple):
    """A button, and the question before it."""

    key: str
    name: str
    text: str
    tone: str = ""


ACTIONS = (
    ScheduleAction("run", "Run now", "A job is stored now, even if the schedule is paused. Its moments stay the same."),
    ScheduleAction(
        "pause", "Pause", "Its moments are skipped until you resume it. A deployment does not end the pause."
    ),
    ScheduleAction("resume", "Resume", "It fires again from its next moment on. Moments of the pause are skipped."),
    ScheduleAction(
        "backfill", "Backfill", "The jobs of past moments are stored, except those that are stored already."
    ),
    ScheduleAction("delete", "Delete", "The schedule is deleted. Its jobs stay. You cannot undo this.", tone="danger"),
)
BUTTONS = {
    "paused": ("resume", "To go on, use the Resume button."),
    "waits": ("run", "To run it now, use the Run now button."),
    "orphaned": ("delete", "If its code is gone, use the Delete button."),
}
"""By the code of a reason: the action on this page that is the next step."""
BY_KEY = {action.key: action for action in ACTIONS}


@get("/schedules", "Schedules", page=True)
def schedules(request: Request) -> Response:
    tenant, cursor = request.text("tenant") or None, request.text("cursor") or None
    page = request.schedules.page(tenant, MAX_ROWS, cursor)
    return render(
        request,
        "schedules.html",
        current_page="schedules",
        rows=[(one, views.schedule_rule(one)) for one in page],
        tenant=tenant,
        older=request.url("/schedules", tenant=tenant, cursor=page.next) if page.next else None,
        first=request.url("/schedules", tenant=tenant) if cursor else None,
    )


@get("/schedule", "One schedule", page=True)
def schedule(request: Request) -> Response:
    out = request.schedules.out(request.text("name"), request.text("tenant") or None)
    one = out.schedule
    actions = [action for action in ACTIONS if _applies(action, one)] if may_manage(request) else []
    possible = {action.key for action in actions}
    return render(
        request,
        "schedule.html",
        current_page="schedules",
        one=one,
        rule=views.schedule_rule(one),
        reasons=[(reason, _next_step(reason, possible)) for reason in out.why.reasons],
        moments=[(at, views.schedule_moment(one, at)) for at in one.upcoming],
        jobs=out.jobs,
        payload=highlight.json(one.payload) if one.payload else None,
        actions=actions,
    )


def _next_step(reason: ScheduleReason, possible: set[str]) -> str:
    """What to do about a reason: the button, where this page has one, instead of a command."""
    action, text = BUTTONS.get(reason.code, ("", ""))
    return text if action in possible else formatting.sentence(reason.way_out)


def _applies(action: ScheduleAction, schedule: Schedule) -> bool:
    """For looks only: the library decides."""
    if action.key == "delete":
        return schedule.source == "runtime" or schedule.orphaned
    return (schedule.pause is not None) == (action.key == "resume") or action.key in ("run", "backfill")


@get("/schedule/confirm", "Are you sure?", scope="manage", page=True)
def confirm(request: Request) -> Response:
    action = chosen(request.text("action"), BY_KEY)
    one = request.schedules.get(request.text("name"), request.text("tenant") or None)
    return _confirm_page(request, action, one)


def _confirm_page(
    request: Request, action: ScheduleAction, one: Schedule, status: int = 200, error: str = ""
) -> Response:
    return render(
        request,
        "confirm.html",
        status=status,
        current_page="schedules",
        action=action,
        post_to=request.url("/schedule/act"),
        hidden=[("name", one.name), ("tenant", one.tenant)],
        text=action.text,
        filter=None,
        title=f"{action.name}: {one.name}",
        go=action.name,
        keep="Go back",
        back=_address(request, one),
        error=error,
        given={name: request.field(name) for name in ("reason", "start", "end")},
        lengths=LENGTHS,
    )


@post("/schedule/act", "Pause, resume, run … a schedule", scope="manage", page=True)
def act(request: Request) -> Response:
    action = chosen(request.field("action"), BY_KEY)
    one = request.schedules.get(request.field("name"), request.field("tenant") or None)
    if action.key == "backfill":
        return _backfill(request, action, one)
    return _changed(request, action, one)


def _changed(request: Request, action: ScheduleAction, one: Schedule) -> Response:
    name, tenant = one.name, one.tenant
    if action.key == "run":
        job = request.schedules.change(Schedules.run_now, name, tenant)
        request.audit("run_schedule", name)
        return redirect(request.url(f"/jobs/{job.id}"))
    if action.key == "pause":
        try:
            request.schedules.pause(name, tenant, request.field("reason"), chosen_length(request))
        except BadOption as error:
            return _confirm_page(request, action, one, status=400, error=str(error))
    else:
        request.schedules.change(Schedules.resume if action.key == "resume" else Schedules.delete, name, tenant)
    request.audit(f"{action.key}_schedule", name)
    return redirect(request.url("/schedules") if action.key == "delete" else _address(request, one))


def _backfill(request: Request, action: ScheduleAction, one: Schedule) -> Response:
    fmt = formatting.formatter_for(request)
    try:
        first, last = (fmt.read(request.field(name)) for name in ("start", "end"))
        work = request.schedules.backfill(one.name, one.tenant, first, last)
    except (ValueError, OverflowError, BadOption) as error:
        text = str(error) if isinstance(error, BadOption) else "write times such as 2026-11-01T08:30"
        return _confirm_page(request, action, one, status=400, error=text)
    return redirect(request.url(f"/operations/{start(request, work).id}"))


def _address(request: Request, one: Schedule) -> str:
    return request.url("/schedule", name=one.name, tenant=one.tenant)
