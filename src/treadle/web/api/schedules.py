"""Schedules: a list, one with its next moments and newest jobs, and what can be done to it.

A schedule is named by a parameter, not by the path: its name may contain a slash.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from treadle import views
from treadle.schedule import Schedule
from treadle.schedules import Schedules
from treadle.views import ScheduleOut, SchedulesOut
from treadle.web.api.bulk import Started, started
from treadle.web.api.jobs import PAGE, Name
from treadle.web.route import Parameter, Request, Response, Route, get

TENANT = Parameter("tenant", Name, "Whose it is; nothing for none, or for your own")
NAMED = (Parameter("name", Name, "The name of the schedule", default=""), TENANT)
changes = partial(Route, scope="manage", parameters=NAMED, problems=(404,))


class SchedulePauseIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Why it is paused, and until when."""

    reason: Name = ""
    until: Annotated[datetime, Meta(tz=True)] | None = None


class BackfillIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which moments: from `start` on and before `end`."""

    start: Annotated[datetime, Meta(tz=True)]
    end: Annotated[datetime, Meta(tz=True)]


@get("/api/schedules", "Schedules, by tenant and name, page by page", parameters=(TENANT, *PAGE))
def list_schedules(request: Request) -> SchedulesOut:
    page = request.schedules.page(request.query["tenant"], request.query["limit"], request.query["cursor"])
    items = [views.schedule(one, request.redactor) for one in page]
    return SchedulesOut(items=items, next_cursor=page.next)


@get(
    "/api/schedule",
    "One schedule: its next ten moments, why it did not fire or when it will, its newest jobs",
    parameters=NAMED,
    problems=(404,),
)
def get_schedule(request: Request) -> ScheduleOut:
    return request.schedules.out(*named(request))


def named(request: Request) -> tuple[str, str | None]:
    return request.query["name"], request.query["tenant"]


@changes(
    "POST",
    "/api/schedule/pause",
    "Skip its moments until it is resumed, or until a time",
    body=SchedulePauseIn,
    body_required=False,
)
def pause(request: Request) -> Schedule:
    given: SchedulePauseIn = request.body
    found = request.schedules.pause(*named(request), given.reason, given.until)
    return _changed(request, "pause_schedule", found)


@changes("POST", "/api/schedule/resume", "Fire again, from the next moment on")
def resume(request: Request) -> Schedule:
    return _changed(request, "resume_schedule", request.schedules.change(Schedules.resume, *named(request)))


@changes("DELETE", "/api/schedule", "Forget it; its jobs stay", problems=(404, 409))
def delete(request: Request) -> Schedule:
    return _changed(request, "delete_schedule", request.schedules.change(Schedules.delete, *named(request)))


def _changed(request: Request, action: str, schedule: Schedule) -> Schedule:
    request.audit(action, schedule.name)
    return views.schedule(schedule, request.redactor)


@changes("POST", "/api/schedule/run", "Store a job of it now, even if it is paused", returns={201: views.JobOut})
def run(request: Request) -> Response:
    job = request.schedules.change(Schedules.run_now, *named(request))
    request.audit("run_schedule", job.schedule or "")
    return Response(status=201, data=views.job(job, request.redactor))


@changes(
    "POST",
    "/api/schedule/backfill",
    "Store the jobs of past moments, in batches",
    body=BackfillIn,
    returns={202: Started},
)
def backfill(request: Request) -> Response:
    given: BackfillIn = request.body
    return started(request, request.schedules.backfill(*named(request), given.start, given.end))
