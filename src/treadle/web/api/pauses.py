"""What is paused, and workers that are quiet: to see, to pause and to resume."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from treadle import views
from treadle.errors import NoSuchWorker
from treadle.pauses import MOST_REASON, Drained, Pause, Target, checked_target
from treadle.views import WorkerOut
from treadle.web.api.jobs import RequiredName
from treadle.web.problem import HTTPProblem
from treadle.web.route import Request, get, post


class Pauses(msgspec.Struct, kw_only=True):
    """What is paused now, oldest first."""

    items: list[Pause]


class TargetIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A queue, a type or a tenant: exactly one of them."""

    queue: RequiredName | None = None
    type: RequiredName | None = None
    tenant: RequiredName | None = None


class PauseIn(TargetIn, kw_only=True):
    """What to pause, and why."""

    reason: Annotated[str, Meta(max_length=MOST_REASON)] = ""
    until: Annotated[datetime, Meta(tz=True)] | None = None
    """When it ends by itself."""


class Resumed(msgspec.Struct, kw_only=True):
    """The pause that was ended; null if there was none."""

    resumed: Pause | None


@get("/api/pauses", "What is paused, with who and why")
def pauses(request: Request) -> Pauses:
    """A caller bound to a tenant sees the pause of that tenant."""
    return Pauses(items=request.jobs.pauses())


manage = partial(post, scope="manage", for_tenants=False)


@manage("/api/pauses", "Pause a queue, a type or a tenant", body=PauseIn)
def pause(request: Request) -> Pause:
    wanted: PauseIn = request.body
    return pause_and_record(request, target_of(wanted), wanted.reason, wanted.until)


@manage("/api/pauses/resume", "End a pause", body=TargetIn)
def resume(request: Request) -> Resumed:
    return Resumed(resumed=resume_and_record(request, target_of(request.body)))


@manage("/api/pauses/drain", "Pause, and say how much of it still runs", body=PauseIn)
def drain(request: Request) -> Drained:
    """It does not wait: the caller repeats it until nothing runs."""
    wanted: PauseIn = request.body
    target, by = target_of(wanted), request.caller.name
    first = next(request.app.draining(target, reason=wanted.reason, until=wanted.until, by=by, timeout=0))
    request.audit("drain", _what(target, wanted.reason))
    return first


@manage("/api/workers/{id}/quiet", "Let a worker claim nothing more")
def quiet(request: Request) -> WorkerOut:
    return set_quiet(request, request.path["id"], True)


@manage("/api/workers/{id}/resume", "Let a quiet worker claim again")
def unquiet(request: Request) -> WorkerOut:
    return set_quiet(request, request.path["id"], False)


# For the pages, too


def target_of(given: TargetIn) -> Target:
    names = (given.queue, given.type, given.tenant)
    if names.count(None) != 2:
        raise HTTPProblem(400, "it names none or several of queue, type and tenant", "name exactly one")
    return checked_target(*names)


def pause_and_record(request: Request, target: Target, reason: str, until: datetime | timedelta | None) -> Pause:
    made = request.app.pause(**{target.kind: target.name}, reason=reason, until=until, by=request.caller.name)
    request.audit("pause", _what(target, reason))
    return made


def resume_and_record(request: Request, target: Target) -> Pause | None:
    ended = request.app.resume(**{target.kind: target.name})
    if ended is not None:
        request.audit("resume", str(target))
    return ended


def set_quiet(request: Request, worker: str, quiet: bool) -> WorkerOut:
    app = request.app
    (app.quiet if quiet else app.unquiet)(worker)
    now = app.store.now()
    found = next((row for row in app.workers() if row.id == worker), None)
    if found is None:  # it has just stopped
        raise NoSuchWorker(worker)
    request.audit("quiet" if quiet else "unquiet", found.name)
    return views.worker(found, now)


def _what(target: Target, reason: str) -> str:
    return f"{target}: {reason}" if reason else str(target)
