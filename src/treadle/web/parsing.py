"""From a request to an Request: parameters, forms and bodies, checked and converted, or a problem that shows which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request as RawRequest

from treadle.web.problem import ALL, HTTPProblem
from treadle.web.route import Parameter, Route

MAX_BODY = 2 << 20
"""Bytes. A payload may have 1 MiB, and may be written wastefully."""


def query(route: Route, request: RawRequest) -> dict[str, Any]:
    """The route's parameters by name. The API knows no others, so that a misspelt filter is not a silent nothing."""
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


async def body(route: Route, request: RawRequest) -> Any:
    """The JSON body, as what the route says it is."""
    content = await _content(request)
    if not content and not route.needs_body:
        return route.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPProblem(415, f"a body of {kind or 'no kind'}", "send JSON, with Content-Type: application/json")
    try:
        return msgspec.json.decode(content, type=route.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPProblem(400, f"the body cannot be read: {error}", ALL) from None


async def form(request: RawRequest) -> dict[str, list[str]]:
    """The fields of a form."""
    content = await _content(request)
    try:
        return parse_qs(content.decode(), keep_blank_values=True, max_num_fields=1_000)
    except ValueError as error:
        raise HTTPProblem(400, f"the form cannot be read: {error}", "reload the page and try again") from None


async def _content(request: RawRequest) -> bytes:
    """The whole body, unless it is too large: then as little of it as possible."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise HTTPProblem(413, f"the body has more than {MAX_BODY:,} bytes", "send less at once")
        parts.append(part)
    return b"".join(parts)
