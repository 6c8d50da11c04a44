"""Routes, and what their endpoints get and return. The router, the OpenAPI document and the tests are made from them.

To add one, put `@get(path, summary, …)` or `@post(…)` on a function of the request, which returns the data that is sent
as JSON, or a `Response`; if its file is new, name the file in `MODULES` of its package. The rules:

- An endpoint is sync and runs in a thread; an async one runs on the event loop, and must not block it. It uses
  `request.jobs`, the jobs that the caller may see, and `request.cached(key, seconds, make)` for what many callers need.
  Everything it gets was checked: `request.query["limit"]` is an int within its bounds, `request.body` a Struct,
  `request.path["id"]` a string. A page has `request.text("q")` of its address, `request.field("action")` of its form.
- `scope` is what the caller needs: read, enqueue, tick, manage; None is open to all. It is checked before the endpoint
  runs, and nowhere else. Templates hide a button with `may_manage`, which protects nothing.
- `request.caller.tenant` is None, or the only tenant that the caller may see: `request.jobs` is limited to it. A route
  that is about all tenants says `for_tenants=False`, so that such callers get 403, and uses `request.app`, the Treadle.
- Errors are raised: treadle's own become problems by themselves (web/problem.py), for others
  `raise HTTPProblem(status, detail, next_step)`. Pages show the same problem as HTML.
- GET changes nothing. What changes something is POST or DELETE, is left out of a read-only mount, and ends with
  `request.audit(action, what, count)`.
- Payloads, results, progress, errors and tracebacks go through `treadle.views` before they leave. So do filters when
  they arrive, by `request.jobs.filter`.
- Pages: `render(request, "jobs.html", **values)`; every link by `url("/jobs", q=…)`, every file by
  `static("x.css")`, so that any prefix works. No inline script or style: the CSP forbids both. A form's POST returns
  `redirect(request.url(…))`.
"""

from __future__ import annotations

import inspect
import logging
import string
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, quote, urlencode

import msgspec
from starlette.requests import Request as RawRequest

from treadle.errors import TreadleError
from treadle.json_types import decoder
from treadle.stores.rows import AuditRow
from treadle.web import body
from treadle.web.problem import SEE_OPENAPI, HTTPProblem
from treadle.web.visible_jobs import VisibleJobs
from treadle.web.visible_schedules import VisibleBatches, VisibleSchedules

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.redact import Redactor
    from treadle.web.app import WebApp
    from treadle.web.auth import Principal

Endpoint = Callable[["Request"], Any]
E = TypeVar("E", bound=Endpoint)
T = TypeVar("T")
log = logging.getLogger("treadle.web")


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
    endpoint: Endpoint | None = None
    scope: str | None = "read"
    """What the caller needs. None: nothing, the route is open."""
    for_tenants: bool = True
    """Whether callers bound to a tenant may use it. The endpoint then shows them only that tenant's data."""
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    """What a JSON body is decoded to: a msgspec Struct."""
    body_required: bool = True
    returns: Any = None
    """What a successful response has: a type, several types, the media type of a text; or these by status. By default,
    what the endpoint returns."""
    problems: tuple[int, ...] = ()
    """The statuses of its problems, in addition to those that follow from its path, scope and body."""
    page: bool = False
    """It returns HTML, takes forms, and declares no parameters."""
    stream: bool = False
    """Its response does not end by itself. The endpoint is async, and returns a Starlette response."""
    slow: bool = False
    """It may take long: slow routes have threads of their own, so that others do not wait for them."""

    @property
    def writes(self) -> bool:
        """Whether it is left out of a read-only mount."""
        return self.method not in ("GET", "HEAD")

    def __call__(self, endpoint: E) -> E:
        returns = self.returns or inspect.get_annotations(endpoint, eval_str=True)["return"]
        made = msgspec.structs.replace(self, endpoint=endpoint, returns=returns)
        _BY_MODULE.setdefault(endpoint.__module__, []).append(made)
        return endpoint


get, post = partial(Route, "GET"), partial(Route, "POST")
_BY_MODULE: dict[str, list[Route]] = {}


def routes_of(modules: Iterable[ModuleType]) -> tuple[Route, ...]:
    """The routes of these modules, in the order in which they are written."""
    return tuple(route for module in modules for route in _BY_MODULE[module.__name__])


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request, parsed and checked."""

    web: WebApp
    raw: RawRequest
    route: Route
    caller: Principal
    path: Mapping[str, str] = {}
    query: Mapping[str, Any] = {}
    """The route's parameters by name, converted, with their defaults. Headers too."""
    body: Any = None
    form: Mapping[str, list[str]] = {}
    """The fields of a page's form."""

    @property
    def app(self) -> Treadle:
        """The whole app, with the jobs of all tenants. A caller bound to a tenant never gets it."""
        if self.caller.tenant is not None:
            raise PermissionError(f"{self.route.path} is about all tenants; say for_tenants=False, or use request.jobs")
        return self.web.app

    @property
    def redactor(self) -> Redactor:
        return self.web.app.redactor

    @property
    def jobs(self) -> VisibleJobs:
        return VisibleJobs(self.web.app, self.caller)

    @property
    def schedules(self) -> VisibleSchedules:
        return VisibleSchedules(self.web.app, self.caller)

    @property
    def batches(self) -> VisibleBatches:
        return VisibleBatches(self.web.app, self.caller)

    def cached(self, key: Hashable, seconds: float, make: Callable[[], T], *, share: float = 1.0) -> T:
        """`web.cached` for what the caller may see: callers bound to a tenant share it with that tenant's only."""
        return self.web.cached((self.caller.tenant, key), seconds, make, share=share)

    def url(self, path: str, /, **query: Any) -> str:
        """The address of a path, wherever this is mounted. Parameters that are None or '' are left out."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        prefix = str(self.raw.scope.get("root_path", "")).rstrip("/")
        return prefix + path + (f"?{urlencode(given, doseq=True)}" if given else "")

    def text(self, name: str, default: str = "") -> str:
        """A parameter in a page's address. Pages declare none: whatever a link has is text, and may be missing."""
        return self.raw.query_params.get(name, default)

    def field(self, name: str) -> str:
        return self.form.get(name, [""])[-1]

    def audit(self, action: str, what: str, count: int = 1) -> None:
        """Records that the caller made this change."""
        caller = self.caller
        row = AuditRow(who=caller.name, action=action, what=what, count=count, tenant=caller.tenant or "")
        try:
            self.web.app.store.audit(row)
        except TreadleError as error:  # the change is made: an error would have the caller repeat it
            log.error("not recorded in the audit: %r: %s", row, error)


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """What to send: `data` as JSON, or `text` of the given media type."""

    status: int = 200
    data: Any = None
    text: str | bytes | None = None
    media: str = "application/json"
    headers: Mapping[str, str] = {}


def html(text: str, status: int = 200, headers: Mapping[str, str] = {}) -> Response:
    return Response(status=status, text=text, media="text/html; charset=utf-8", headers=headers)


def redirect(url: str, headers: Mapping[str, str] = {}) -> Response:
    """Sends the browser there with GET, as after a form's POST. Give it `request.url(…)`."""
    return Response(status=303, text="", media="text/plain", headers={"Location": in_ascii(url), **headers})


def in_ascii(url: str | bytes) -> str:
    """The same address, with everything escaped that a header cannot carry."""
    return quote(url, safe=string.punctuation)


async def parse(request: Request) -> Request:
    route, raw = request.route, request.raw
    values: dict[str, Any] = {"path": raw.path_params, "query": _query(route, raw)}
    if route.body is not None:
        values["body"] = await _body(route, raw)
    elif route.page and route.writes:
        values["form"] = await _form(raw)
    _refuse_nul(raw, values.get("form", {}))
    return msgspec.structs.replace(request, **values)


def _refuse_nul(request: RawRequest, form: Mapping[str, list[str]]) -> None:
    """PostgreSQL cannot even compare a text with a NUL. Filters and bodies have checks of their own."""
    query = (text for _, text in request.query_params.multi_items())
    if any("\0" in text for text in chain(query, request.headers.values(), *form.values())):
        raise HTTPProblem(400, "the request has a NUL character", "remove it: no stored text contains one")


def _query(route: Route, request: RawRequest) -> dict[str, Any]:
    """The route's parameters by name. The API refuses others, so that a misspelled filter is not ignored."""
    given = request.query_params
    known = {parameter.name for parameter in route.parameters if parameter.where == "query"}
    if not route.page and (unknown := sorted(given.keys() - known)):
        names = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
        raise HTTPProblem(400, f"{route.method} {route.path} has no parameter {unknown[0]!r}", names)
    return {parameter.name: _value(parameter, request) for parameter in route.parameters}


def _value(parameter: Parameter, request: RawRequest) -> Any:
    source: Mapping[str, str] = request.headers if parameter.where == "header" else request.query_params
    text = source.get(parameter.name)
    if text is None:
        return parameter.default
    try:
        return msgspec.convert(text, parameter.type, strict=False)
    except msgspec.ValidationError as error:
        raise HTTPProblem(400, f"{parameter.name}={text!r}: {error}", parameter.help) from None


async def _body(route: Route, request: RawRequest) -> Any:
    content = await body.read(request)
    if not content and not route.body_required:
        return route.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPProblem(415, f"a body of {kind or 'no kind'}", "send JSON, with Content-Type: application/json")
    try:
        return decoder(route.body)(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPProblem(400, f"the body cannot be read: {error}", SEE_OPENAPI) from None


async def _form(request: RawRequest) -> dict[str, list[str]]:
    content = await body.read(request)
    try:
        return parse_qs(content.decode(), keep_blank_values=True, max_num_fields=1_000)
    except ValueError as error:
        raise HTTPProblem(400, f"the form cannot be read: {error}", "reload the page and try again") from None
