"""Routes. The router, the OpenAPI document and the tests of who may do what are made from one table of them.

To add one, put `@route(method, path, summary, …)` on a function `(site, request) -> Response`; if its file is new, name
the file in `MODULES` of its package. The rules:

- An endpoint is sync and runs in a thread. It uses `site.app`, the Treadle, and `site.cached(key, seconds, make)` for
  what many callers need at once. Everything it gets was checked: `request.query["limit"]` is an int within its bounds,
  `request.body` a Struct, `request.path["id"]` a string. A page has `request.text("q")` of its address and
  `request.field("action")` of its form.
- `scope` is what the caller needs: read, enqueue, tick, manage; None is open to all. It is checked before the endpoint
  runs, and nowhere else. Templates hide a button with `may_manage`, which protects nothing.
- `request.caller.tenant` is None, or the only tenant that the caller may see: filters, counts and enqueues are forced
  to it, and a job of another tenant is not found. A route that cannot do so says `for_tenants=False`: they get 403.
- Errors are raised: treadle's own become problems by themselves (web/problem.py), for others
  `raise HTTPProblem(status, detail, next_step)`. Pages show the same problem as HTML.
- GET changes nothing. What changes something is POST or DELETE, is left out of a read-only site, and ends with
  `site.audit(request, action, what, count)`.
- Payloads, results, errors and tracebacks go through `treadle.views` before they leave.
- Pages: `render(site, request, "jobs.html", **values)`; every link by `url("/jobs", q=…)`, every file by
  `static("x.css")`, so that any prefix works. No inline script or style: the CSP forbids both. A form's POST returns
  `redirect(request.url(…))`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from starlette.responses import Response as RawResponse

    from treadle.web.http import Request, Response
    from treadle.web.site import Site

Endpoint = Callable[["Site", "Request"], "Response"]
Stream = Callable[["Site", "Request"], Awaitable["RawResponse"]]
E = TypeVar("E", bound="Endpoint | Stream")


class Parameter(msgspec.Struct, frozen=True):
    """One query parameter or header: its type is what it is converted to, and what the document says of it."""

    name: str
    type: Any
    help: str
    default: Any = None
    where: str = "query"


class Route(msgspec.Struct, frozen=True):
    """One method of one path. As a decorator, it makes a function its endpoint."""

    method: str
    path: str
    summary: str
    endpoint: Endpoint | Stream | None = None
    scope: str | None = "read"
    """What the caller needs. None: nothing, the route is open."""
    for_tenants: bool = True
    """Whether callers bound to a tenant may use it. The endpoint then shows them only that tenant's data."""
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    """What a JSON body is decoded to: a msgspec Struct."""
    body_required: bool = True
    returns: Any = None
    """What a successful response has: a type, several types, the media type of a text; or these by status."""
    problems: tuple[int, ...] = ()
    """The statuses of its problems, beside those that follow from its path, scope and body."""
    page: bool = False
    """It returns HTML, takes forms, and declares no parameters."""
    stream: bool = False
    """The endpoint is a coroutine function that returns a Starlette response."""
    slow: bool = False
    """It may take long: slow routes have threads of their own, so that others do not wait for them."""

    @property
    def writes(self) -> bool:
        """Whether it is left out of a read-only site."""
        return self.method not in ("GET", "HEAD")

    def __call__(self, endpoint: E) -> E:
        _BY_MODULE.setdefault(endpoint.__module__, []).append(msgspec.structs.replace(self, endpoint=endpoint))
        return endpoint


route = Route
_BY_MODULE: dict[str, list[Route]] = {}


def routes_of(modules: Iterable[ModuleType]) -> tuple[Route, ...]:
    """The routes of these modules, in the order in which they are written."""
    return tuple(route for module in modules for route in _BY_MODULE[module.__name__])
