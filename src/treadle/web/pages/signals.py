"""What a job waits for and its steps, as parts of its page, and the form that sends a signal: an approval."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from treadle import codec, views
from treadle.errors import TreadleError
from treadle.job import Job, state_of
from treadle.views import StepOut
from treadle.waits import Signal, Wait
from treadle.web import highlight
from treadle.web.api.signals import send
from treadle.web.formatting import formatter_for
from treadle.web.render import render
from treadle.web.route import Request, Response, get, post, redirect

MOST_SHOWN = 20
"""Waits that are shown, those first that are not over."""
MOST_STEPS = 200
"""The newest steps, which are shown."""
SHORT = 300
"""Characters of a value that is shown without a click."""


class ShownWait(NamedTuple):
    """Something that a job waits for, or has waited for."""

    wait: Wait
    job: Job | None
    state: str
    """Of the job."""
    signal: Signal | None


class ShownStep(NamedTuple):
    """A stored step, with its value."""

    step: StepOut
    value: Markup
    is_long: bool


def shown_waits(request: Request, job: Job) -> dict[str, Any]:
    """What templates/job_waits.html needs."""
    found = request.jobs.waits(job.id)
    shown = [_wait(request, job, wait) for wait in found[:MOST_SHOWN]]
    return {"waits": shown, "waits_open": sum(not wait.met for wait in found), "waits_more": len(found) - len(shown)}


def _wait(request: Request, job: Job, wait: Wait) -> ShownWait:
    if wait.kind == "signal":
        signal = request.jobs.signal(wait.what, job.tenant)
        return ShownWait(wait, None, "", None if signal is None else views.signal(signal, request.redactor))
    other = request.jobs.find(wait.what)
    return ShownWait(wait, other, state_of(other, formatter_for(request).now) if other else "", None)


def shown_steps(request: Request, job: Job) -> dict[str, Any]:
    """What templates/job_steps.html needs."""
    found = [views.step(step, request.redactor) for step in request.jobs.steps(job.id)]
    shown = [
        ShownStep(one, highlight.json(one.value), len(codec.encode(one.value)) > SHORT) for one in found[-MOST_STEPS:]
    ]
    return {"steps": shown, "steps_before": len(found) - len(shown)}


@get("/jobs/{id}/signal", "Send a signal?", scope="manage", page=True)
def signal_form(request: Request) -> Response:
    return _form(request, request.jobs.get(request.path["id"]), request.text("name"), "true")


@post("/jobs/{id}/signal", "Send a signal", scope="manage", page=True)
def send_signal(request: Request) -> Response:
    job, name, text = request.jobs.get(request.path["id"]), request.field("name"), request.field("value")
    try:
        send(request, name, codec.decode(text.strip() or "null"), job.tenant)
    except (TreadleError, msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        return _form(request, job, name, text, status=400, error=str(error))
    return redirect(request.url(f"/jobs/{job.id}"))


def _form(request: Request, job: Job, name: str, text: str, *, status: int = 200, error: str = "") -> Response:
    found = request.jobs.signal(name, job.tenant)
    before = None if found is None else views.signal(found, request.redactor)
    values = {"job": job, "name": name, "text": text, "before": before, "error": error}
    return render(request, "signal.html", status=status, current_page="jobs", **values)
