"""The OpenAPI document, made from the routes and from the types that the endpoints really use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from treadle.version import __version__
from treadle.web.problem import MEDIA, TITLES, ProblemDetails
from treadle.web.route import Parameter, Request, Route, get

EVERY = (400, 421, 500)
"""Problems that every route can have: an unknown parameter, another host, a bug."""
SIGNED_IN = (401, 403, 503)
"""Problems of routes that need a caller, and then the database."""


def document(routes: Iterable[Route], server: str) -> dict[str, Any]:
    """OpenAPI 3.1 of the routes that are not pages."""
    schemas = Schemas()
    schemas.of(ProblemDetails)
    paths: dict[str, dict[str, Any]] = {}
    for one in routes:
        if not one.page:
            paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    security = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "treadle", "version": __version__, "description": "Durable background jobs."},
        "servers": [{"url": server or "/"}],
        "paths": paths,
        "components": {"schemas": schemas.components, "securitySchemes": security},
    }


class Schemas:
    """The JSON schemas of types. Those that have a name are components, which the others refer to."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        if isinstance(kind, tuple):
            return {"anyOf": [self.of(one) for one in kind]}
        (schema,), named = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
        self.components |= named
        return schema


def _operation(route: Route, schemas: Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *re.findall(r"\w+", route.path.removeprefix("/api"))]),
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *(_parameter(p, schemas) for p in route.parameters)],
        "responses": _responses(route, schemas),
    }
    if route.scope is not None:
        operation["security"] = [{"token": []}]
        operation["description"] = f"Needs the scope `{route.scope}`."
    if route.body is not None:
        content = {"application/json": {"schema": schemas.of(route.body)}}
        operation["requestBody"] = {"required": route.body_required, "content": content}
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    text = {"type": "string", "minLength": 1}
    names = re.findall(r"{(\w+)}", route.path)
    return [{"name": name, "in": "path", "required": True, "schema": text} for name in names]


def _parameter(parameter: Parameter, schemas: Schemas) -> dict[str, Any]:
    schema = schemas.of(parameter.type)
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {"name": parameter.name, "in": parameter.where, "description": parameter.help, "schema": schema}


def _responses(route: Route, schemas: Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {}
    returns = route.returns if isinstance(route.returns, dict) else {200: route.returns}
    for status, kind in returns.items():
        content = {kind: {}} if isinstance(kind, str) else {"application/json": {"schema": schemas.of(kind)}}
        found[str(status)] = {"description": route.summary, "content": content}
    for status in sorted(_problems(route)):
        content = {MEDIA: {"schema": schemas.of(ProblemDetails)}}
        found[str(status)] = {"description": TITLES[status], "content": content}
    return found


def _problems(route: Route) -> set[int]:
    of_body = (413, 415) if route.body is not None else ()
    of_path = (404,) if "{" in route.path else ()
    return {*EVERY, *of_body, *of_path, *(SIGNED_IN if route.scope else ()), *route.problems}


@get("/api/openapi.json", "This document")
def openapi(request: Request) -> dict[str, Any]:
    """The document of this mount: a read-only one has fewer routes."""
    return document(request.web.routes, request.url(""))
