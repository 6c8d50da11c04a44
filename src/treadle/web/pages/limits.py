"""The form that changes a limit, and the button that unsets it."""

from __future__ import annotations

from msgspec import UNSET

from treadle.errors import BadOption, TreadleError
from treadle.limits import parse_rate
from treadle.web.api.limits import set_and_record, unset_and_record
from treadle.web.fields import Field, value_of
from treadle.web.render import render
from treadle.web.route import Request, Response, get, post, redirect


@get("/limits/edit", "What to change of a limit", scope="manage", page=True, for_tenants=False)
def edit(request: Request) -> Response:
    return _form(request, request.text("name"), request.text("key"), "")


def _form(request: Request, name: str, key: str, error: str, status: int = 200) -> Response:
    values = {"name": name, "key": key, "limit": request.app.limits.get(name, key=key), "error": error}
    return render(request, "limit.html", status=status, current_page="workers", **values)


@post("/limits", "Change it", scope="manage", page=True, for_tenants=False)
def change(request: Request) -> Response:
    name, key, rate = (request.field(field).strip() for field in ("name", "key", "rate"))
    try:
        burst = _number(request, "burst")
        if burst is not None and not rate:
            raise BadOption("burst", burst, "it is part of a rate: fill that in, too")
        parsed = parse_rate(rate, burst or 0) if rate else None
        set_and_record(request, name, key, _number(request, "concurrency"), parsed)
    except TreadleError as error:
        return _form(request, name, key, str(error), 400)
    return redirect(request.url("/workers"))


def _number(request: Request, name: str) -> int | None:
    found = value_of(Field(name, "integer", required=False), request.field(name))
    return None if found is UNSET else found


@post("/limits/unset", "Go by the code again", scope="manage", page=True, for_tenants=False)
def unset(request: Request) -> Response:
    unset_and_record(request, request.field("name"), request.field("key"))
    return redirect(request.url("/workers"))
