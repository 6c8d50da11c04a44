"""The buttons that pause, resume, and let a worker be quiet."""

from __future__ import annotations

from datetime import timedelta

from treadle.errors import BadOption, TreadleError
from treadle.pauses import KINDS, MOST_REASON, Target
from treadle.units import parse_duration
from treadle.web.api.pauses import TargetIn, pause_and_record, resume_and_record, set_quiet, target_of
from treadle.web.problem import HTTPProblem
from treadle.web.render import render
from treadle.web.route import Request, Response, get, post, redirect

LENGTHS = (("", "until resumed"), ("15m", "15 minutes"), ("1h", "1 hour"), ("4h", "4 hours"), ("1d", "1 day"))
"""How long a pause may last, as a page offers it."""
FOREVER = 1e12
"""Seconds beyond all dates, which a timedelta can still hold."""


@get("/pauses/new", "What to pause, and why", scope="manage", page=True, for_tenants=False)
def new(request: Request) -> Response:
    kind = request.text("kind") if request.text("kind") in KINDS else "queue"
    return _form(request, kind, request.text("name"), "")


def _form(request: Request, kind: str, name: str, error: str, status: int = 200) -> Response:
    values = {"kinds": KINDS, "kind": kind, "name": name, "lengths": LENGTHS, "longest": MOST_REASON, "error": error}
    return render(request, "pause.html", status=status, current_page="workers", **values)


@post("/pauses", "Pause it", scope="manage", page=True, for_tenants=False)
def pause(request: Request) -> Response:
    kind, name = request.field("kind"), request.field("name")
    try:
        pause_and_record(request, _target(kind, name), request.field("reason"), chosen_length(request))
    except TreadleError as error:
        return _form(request, kind, name, str(error), 400)
    return redirect(request.url("/workers"))


def chosen_length(request: Request) -> timedelta | None:
    """How long a pause lasts. None: until it is resumed."""
    if (seconds := parse_duration(length := request.field("for"))) is None and length:
        raise BadOption("for", length, "a duration such as 15m or 1h; leave it out to pause until resumed")
    return None if seconds is None else timedelta(seconds=min(seconds, FOREVER))


@post("/pauses/resume", "Resume it", scope="manage", page=True, for_tenants=False)
def resume(request: Request) -> Response:
    resume_and_record(request, _target(request.field("kind"), request.field("name")))
    return redirect(request.url("/workers"))


@post("/workers/quiet", "Let a worker claim nothing, or claim again", scope="manage", page=True, for_tenants=False)
def quiet(request: Request) -> Response:
    set_quiet(request, request.field("id"), request.field("quiet") == "1")
    return redirect(request.url("/workers"))


def _target(kind: str, name: str) -> Target:
    if kind not in KINDS:
        raise HTTPProblem(400, f"{kind!r} cannot be paused", f"choose from {', '.join(KINDS)}")
    return target_of(TargetIn(**{kind: name}))
