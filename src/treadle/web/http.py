"""Requests and responses as endpoints see them: plain data, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, urlencode

import msgspec
from starlette.requests import Request as RawRequest

from treadle import clock
from treadle.web.problem import SEE_OPENAPI, HTTPProblem
from treadle.web.route import Parameter, Route

if TYPE_CHECKING:
    from treadle.web.auth import Principal

S = TypeVar("S", bound=msgspec.Struct)
MAX_BODY = 2 << 20
"""Bytes. A payload has at most 1 MiB, but its JSON may be longer than ours."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request, parsed and checked."""

    raw: RawRequest
    route: Route
    caller: Principal
    path: Mapping[str, str] = {}
    query: Mapping[str, Any] = {}
    """The route's parameters by name, converted, with their defaults. Headers too."""
    body: Any = None
    form: Mapping[str, list[str]] = {}
    """The fields of a page's form."""

    def url(self, path: str, /, **query: Any) -> str:
        """The address of a path, wherever the site is mounted. Parameters that are None or '' are left out."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        prefix = str(self.raw.scope.get("root_path", "")).rstrip("/")
        return prefix + path + (f"?{urlencode(given, doseq=True)}" if given else "")

    def text(self, name: str, default: str = "") -> str:
        """A parameter in a page's address. Pages declare none: whatever a link has is text, and may be missing."""
        return self.raw.query_params.get(name, default)

    def field(self, name: str) -> str:
        return self.form.get(name, [""])[-1]


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """What to send: `data` as JSON, or `text` of the given media type."""

    status: int = 200
    data: Any = None
    text: str | bytes | None = None
    media: str = "application/json"
    headers: Mapping[str, str] = {}


def from_row(kind: type[S], row: msgspec.Struct, *times: str) -> S:
    """A row of the store as the API shows it. The fields in `times` are microseconds in the row, or None."""
    fields: dict[str, Any] = {name: getattr(row, name) for name in kind.__struct_fields__}
    return kind(**fields | {name: clock.to_datetime(fields[name]) for name in times if fields[name] is not None})


def html(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status=status, text=text, media="text/html; charset=utf-8", headers=headers or {})


def redirect(url: str, headers: Mapping[str, str] | None = None) -> Response:
    """Sends the browser there with GET, as after a form's POST. Give it `request.url(…)`."""
    return Response(status=303, text="", media="text/plain", headers={"Location": url, **(headers or {})})


async def parse(request: Request) -> Request:
    """The same request with its parameters, body and form."""
    route, raw = request.route, request.raw
    values: dict[str, Any] = {"path": raw.path_params, "query": _query(route, raw)}
    if route.body is not None:
        values["body"] = await _body(route, raw)
    elif route.page and route.writes:
        values["form"] = await _form(raw)
    return msgspec.structs.replace(request, **values)


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
    content = await _content(request)
    if not content and not route.body_required:
        return route.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPProblem(415, f"a body of {kind or 'no kind'}", "send JSON, with Content-Type: application/json")
    try:
        return msgspec.json.decode(content, type=route.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPProblem(400, f"the body cannot be read: {error}", SEE_OPENAPI) from None


async def _form(request: RawRequest) -> dict[str, list[str]]:
    content = await _content(request)
    try:
        return parse_qs(content.decode(), keep_blank_values=True, max_num_fields=1_000)
    except ValueError as error:
        raise HTTPProblem(400, f"the form cannot be read: {error}", "reload the page and try again") from None


async def _content(request: RawRequest) -> bytes:
    """The whole body. One that is too large is not read to its end."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY:
            raise HTTPProblem(413, f"the body has more than {MAX_BODY:,} bytes", "send less at once")
    return bytes(content)
