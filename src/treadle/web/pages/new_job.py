"""A form for a new job: a field for each argument of its handler, as the workers publish them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from treadle import codec
from treadle.errors import BadOption, TreadleError
from treadle.web.api import new_types
from treadle.web.api.filter_terms import known_values
from treadle.web.fields import fields_of, value_of
from treadle.web.pages.actions import CHANGE_FIELDS, form_changes
from treadle.web.render import render
from treadle.web.route import Request, Response, get, post, redirect

MAX_TYPES = 200
"""Types that are suggested."""
ARGUMENT = "arg-"
"""What the names of the arguments' fields begin with, so that none of them is another field."""


@get("/jobs/new", "A form for a new job", scope="enqueue", page=True)
def new_job(request: Request) -> Response:
    return _page(request, request.text("type").strip())


@post("/jobs/new", "Enqueue what the form says", scope="enqueue", page=True)
def enqueue(request: Request) -> Response:
    type = request.field("type").strip()
    try:
        tenant = request.field("tenant").strip()
        options: Any = form_changes(request) | ({"tenant": tenant} if tenant else {})
        new = request.jobs.request(type, _payload(request, type), options)
        with new_types.bounded(request, [new]):
            [job] = request.jobs.insert([new])
    except (TreadleError, msgspec.MsgspecError, RecursionError) as error:
        return _page(request, type, status=400, error=str(error))
    request.audit("enqueue", job.id)
    if request.caller.may("read"):
        return redirect(request.url(f"/jobs/{job.id}"))
    return redirect(request.url("/jobs/new", type=type, stored=job.id))


def _payload(request: Request, type: str) -> dict[str, Any]:
    """The arguments, as far as the form gives them. Those of an unknown type are one JSON object."""
    fields = fields_of(request.jobs.arguments(type)) if type else None
    if fields is not None:
        given = {field.name: value_of(field, request.field(ARGUMENT + field.name)) for field in fields}
        return {name: value for name, value in given.items() if value is not UNSET}
    payload = codec.decode(request.field("payload").strip() or "{}")
    if not isinstance(payload, dict):
        raise BadOption("payload", payload, "a JSON object: names and values in braces")
    return payload


def _page(request: Request, type: str, *, status: int = 200, error: str = "") -> Response:
    fields = fields_of(request.jobs.arguments(type)) if type else None
    suggested = [*request.jobs.published_types(), *known_values(request)["type"]] if request.caller.may("read") else []
    return render(
        request,
        "new_job.html",
        status=status,
        current_page="jobs",
        type=type,
        types=list(dict.fromkeys(suggested))[:MAX_TYPES],
        fields=None if fields is None else [(field, request.field(ARGUMENT + field.name)) for field in fields],
        given={name: request.field(name) for name in (*CHANGE_FIELDS, "tenant", "payload")},
        stored=request.text("stored"),
        error=error,
    )
