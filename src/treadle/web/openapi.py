"""The OpenAPI document, made from the routes and from the types that the endpoints really use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from treadle.version import __version__
from treadle.web.http import Request, Response
from treadle.web.problem import MEDIA, TITLES
from treadle.web.route import Parameter, Route, route
from treadle.web.site import Site

EVERY = (400, 421, 500)
"""Problems that every route can have: an unknown parameter, another host, a bug."""
SIGNED_IN = (401, 403, 503)
"""Problems of routes that need a caller, and then the database."""


class ProblemDetails(msgspec.Struct):
    """What went wrong (RFC 9457), and what to do about it."""

    type: str
    title: str
    status: int
    detail: str
    next: str


def document(routes: Iterable[Route], server: str) -> dict[str, Any]:
    """OpenAPI 3.1 of the routes that are not pages."""
    listed = [route for route in routes if not route.page]
    types = [ProblemDetails, *_types(listed)]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    known = {repr(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for one in listed:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "treadle", "version": __version__, "description": "Durable background jobs."},
        "servers": [{"url": server or "/"}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _types(routes: Iterable[Route]) -> Iterator[Any]:
    for one in routes:
        for kind in _returns(one).values():
            yield from kind if isinstance(kind, tuple) else () if isinstance(kind, str) else (kind,)
        yield from (parameter.type for parameter in one.parameters)
        if one.body is not None:
            yield one.body


def _operation(route: Route, known: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *re.findall(r"\w+", route.path.removeprefix("/api"))]),
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *(_parameter(p, known) for p in route.parameters)],
        "responses": _responses(route, known),
    }
    if route.scope is not None:
        operation["security"] = [{"token": []}]
        operation["description"] = f"Needs the scope `{route.scope}`."
    if route.body is not None:
        content = {"application/json": {"schema": known[repr(route.body)]}}
        operation["requestBody"] = {"required": route.body_required, "content": content}
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    text = {"type": "string", "minLength": 1}
    names = re.findall(r"{(\w+)}", route.path)
    return [{"name": name, "in": "path", "required": True, "schema": text} for name in names]


def _parameter(parameter: Parameter, known: dict[str, Any]) -> dict[str, Any]:
    schema = dict(known[repr(parameter.type)])
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {"name": parameter.name, "in": parameter.where, "description": parameter.help, "schema": schema}


def _responses(route: Route, known: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, kind in _returns(route).items():
        content = {kind: {}} if isinstance(kind, str) else {"application/json": {"schema": _schema(kind, known)}}
        found[str(status)] = {"description": route.summary, "content": content}
    for status in sorted(_problems(route)):
        content = {MEDIA: {"schema": known[repr(ProblemDetails)]}}
        found[str(status)] = {"description": TITLES[status], "content": content}
    return found


def _returns(route: Route) -> dict[int, Any]:
    return route.returns if isinstance(route.returns, dict) else {200: route.returns}


def _problems(route: Route) -> set[int]:
    of_body = (413, 415) if route.body is not None else ()
    of_path = (404,) if "{" in route.path else ()
    return {*EVERY, *of_body, *of_path, *(SIGNED_IN if route.scope else ()), *route.problems}


def _schema(kind: Any, known: dict[str, Any]) -> Any:
    return {"anyOf": [known[repr(one)] for one in kind]} if isinstance(kind, tuple) else known[repr(kind)]


@route("GET", "/api/openapi.json", "This document", returns=dict[str, Any])
def openapi(site: Site, request: Request) -> Response:
    """Of this site: a read-only one has fewer routes."""
    return Response(data=document(site.routes, request.url("")))
