"""The steps of a job's handler, what the job waits for, and the signals that let it go on.

A signal is named by a parameter, not by the path: its name may contain a slash.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from treadle import views
from treadle.views import StepOut
from treadle.waits import Signal, Wait
from treadle.web.api.jobs import Name, RequiredName
from treadle.web.api.schedules import TENANT
from treadle.web.problem import HTTPProblem
from treadle.web.route import Parameter, Request, Response, get, post


class Steps(msgspec.Struct, kw_only=True):
    """The stored steps of a job, oldest first."""

    items: list[StepOut]


class Waits(msgspec.Struct, kw_only=True):
    """What a job waits for, and has waited for: up to 1,000, those first that are not over."""

    items: list[Wait]


class SignalIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A signal to be sent."""

    name: RequiredName
    value: Any = None
    tenant: Name | UnsetType = UNSET


@get("/api/jobs/{id}/steps", "The stored steps of its handler")
def steps(request: Request) -> Steps:
    found, redactor = request.jobs.steps(request.path["id"]), request.redactor
    return Steps(items=[views.step(step, redactor) for step in found])


@get("/api/jobs/{id}/waits", "What it waits for, and has waited for")
def waits(request: Request) -> Waits:
    return Waits(items=request.jobs.waits(request.path["id"]))


@get(
    "/api/signal",
    "A signal: the first that was sent of its name",
    parameters=(Parameter("name", Name, "The name of the signal", default=""), TENANT),
    problems=(404,),
)
def get_signal(request: Request) -> Signal:
    name = request.query["name"]
    found = request.jobs.signal(name, request.query["tenant"])
    if found is None:
        raise HTTPProblem(404, f"nobody has sent the signal {name!r}", "send it: POST /api/signals")
    return views.signal(found, request.redactor)


@post(
    "/api/signals",
    "Send a signal, unless there is one of its name: the first counts",
    scope="manage",
    body=SignalIn,
    problems=(422,),
    returns={200: Signal, 201: Signal},
)
def send_signal(request: Request) -> Response:
    """201 if it is new, 200 if there was one of its name, which is returned."""
    given: SignalIn = request.body
    found, new = send(request, given.name, given.value, None if given.tenant is UNSET else given.tenant)
    return Response(status=201 if new else 200, data=views.signal(found, request.redactor))


def send(request: Request, name: str, value: Any, tenant: str | None) -> tuple[Signal, bool]:
    """Send a signal as the caller, and record it. Return the one that counts, and whether it is new."""
    found, new = request.jobs.send_signal(name, value, tenant)
    if new:
        request.audit("signal", f"{name} for {found.tenant}" if found.tenant else name)
    return found, new
