"""Limits: how much of each is used, to see; to set and to unset."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from treadle.limits import LimitState, Rate
from treadle.views import LimitsOut, limit
from treadle.web.api.jobs import Name, RequiredName
from treadle.web.api.pauses import manage
from treadle.web.route import Request, Response, get


class LimitName(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A limit, or one key of it."""

    name: RequiredName
    key: Name = ""


class LimitIn(LimitName, kw_only=True):
    """What to change of it. What is left out stays as it is."""

    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    rate: Rate | None = None


class Unset(msgspec.Struct, kw_only=True):
    """False if it was not changed before."""

    unset: bool


@get("/api/limits", "Limits, how much of each is used, and who changed it", returns=LimitsOut)
def limits(request: Request) -> Response:
    """A caller bound to a tenant sees what was changed for that tenant."""
    return Response(data=LimitsOut(items=request.jobs.limits()))


@manage("/api/limits", "Change a limit, until it is unset", body=LimitIn, returns=LimitState, problems=(404,))
def set_limit(request: Request) -> Response:
    given: LimitIn = request.body
    changed = set_and_record(request, given.name, given.key, given.concurrency, given.rate)
    return Response(data=limit(changed, request.redactor))


@manage("/api/limits/unset", "Go by the code again", body=LimitName, returns=Unset)
def unset_limit(request: Request) -> Response:
    return Response(data=Unset(unset=unset_and_record(request, request.body.name, request.body.key)))


# For the pages, too


def set_and_record(request: Request, name: str, key: str, concurrency: int | None, rate: Rate | None) -> LimitState:
    app = request.app
    changed = app.limits.set(name, key=key, concurrency=concurrency, rate=rate, by=request.caller.name)
    request.audit("set_limit", request.redactor.text(f"{changed}: {changed.bounds}"))
    return changed


def unset_and_record(request: Request, name: str, key: str) -> bool:
    before = request.app.limits.get(name, key=key) or LimitState(name=name, key=key)
    unset = request.app.limits.unset(name, key=key)
    if unset:
        request.audit("unset_limit", request.redactor.text(str(before)))
    return unset
