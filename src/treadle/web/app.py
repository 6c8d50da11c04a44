"""The ASGI app: finds the route, identifies the caller, runs the endpoint in a thread, sends its response."""

from __future__ import annotations

import logging
import time
from typing import Any, cast

import msgspec
from anyio import to_thread
from starlette import routing
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as RawRequest
from starlette.responses import Response as RawResponse
from starlette.types import Receive, Scope, Send

from treadle.errors import TreadleError
from treadle.web import parsing, problem, security
from treadle.web.http import Request, Response
from treadle.web.principal import NOBODY, Principal
from treadle.web.problem import HTTPProblem
from treadle.web.problem_page import problem_page
from treadle.web.route import Endpoint, Route, Stream
from treadle.web.site import Site

log = logging.getLogger("treadle.web")


class WebApp:
    """One mount as an ASGI app. It needs no lifespan: what it starts, it starts when it is asked."""

    def __init__(self, site: Site, routes: tuple[Route, ...]) -> None:
        self.site = site
        self.routes = tuple(route for route in routes if not (site.read_only and route.changes))
        paths: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            paths.setdefault(route.path, {})[route.method] = route
        first = sorted(paths, key=lambda path: ("{" in path, path))  # /jobs/tick before /jobs/{id}
        found = [Path(path, PathHandler(site, paths[path]), methods=list(paths[path])) for path in first]
        self._router = routing.Router(found, redirect_slashes=False, default=PathHandler(site, {}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            await self._router({**scope, "path": scope["path"] or "/"}, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            happened = (await receive())["type"]
            if happened == "lifespan.shutdown":
                self.site.close()
            await send({"type": f"{happened}.complete"})
            if happened == "lifespan.shutdown":
                return


class Path(routing.Route):
    """One path. If it lacks the method, another path may match (GET /jobs/tick is a job). If none does, we answer."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class PathHandler:
    """The methods of one path. Without any, it is where paths lead that do not exist."""

    def __init__(self, site: Site, routes: dict[str, Route]) -> None:
        self._site = site
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = RawRequest(scope, receive)
        began = time.perf_counter()
        try:
            response = await self._respond(raw)
        except ClientDisconnect:
            return
        for name, value in security.headers(self._site.frame_ancestors).items():
            response.headers.setdefault(name, value)
        response.headers["Server-Timing"] = f"app;dur={(time.perf_counter() - began) * 1000:.1f}"
        await response(scope, receive, send)

    async def _respond(self, raw: RawRequest) -> RawResponse:
        request = Request(raw=raw, route=self._route(raw), caller=NOBODY)
        try:
            security.check_host(raw, self._site.hosts)
            security.check_origin(raw)
            self._must_exist(raw)
            if (entered := await self._site.log_in(raw)) is not None:
                return to_raw(entered)
            caller = await self._site.identify(raw) if request.route.scope else None
            request = msgspec.structs.replace(request, caller=caller or NOBODY)
            authorize(self._site, request.route, caller)
            return await call(self._site, await with_input(request))
        except HTTPProblem as found:
            return to_problem(self._site, request, found)
        except TreadleError as error:
            return to_problem(self._site, request, problem.of_error(error))
        except ClientDisconnect:
            raise
        except HTTPException as error:  # the way of Starlette and FastAPI to say no, for the mount's own `auth`
            return to_problem(self._site, request, problem.of_framework(error.status_code, error.detail, error.headers))
        except Exception:
            log.exception("%s %r went wrong", raw.method, raw.url.path)
            return to_problem(self._site, request, problem.unexpected())

    def _route(self, raw: RawRequest) -> Route:
        """The route asked for; of a path that has none, one that stands for it in problems."""
        method = "GET" if raw.method == "HEAD" else raw.method
        if (route := self._routes.get(method)) is not None:
            return route
        wants_html = "text/html" in raw.headers.get("accept", "")
        return Route(method=method, path="", do=_nothing, summary="", page=wants_html)

    def _must_exist(self, raw: RawRequest) -> None:
        if not self._routes:
            raise HTTPProblem(404, f"there is no {raw.url.path}", problem.ALL)
        allowed = ", ".join(sorted(self._routes))
        method = "GET" if raw.method == "HEAD" else raw.method
        if method not in self._routes:
            raise HTTPProblem(405, f"{method} is not possible here", f"use {allowed}", headers={"Allow": allowed})


def _nothing(site: Site, request: Request) -> Response:
    raise AssertionError("_must_exist lets nobody come here")


def authorize(site: Site, route: Route, caller: Principal | None) -> None:
    """Whether they may. The only place that decides it."""
    if route.scope is None:
        return
    if caller is None:
        raise HTTPProblem(401, "nobody is signed in", site.way_in, headers={"WWW-Authenticate": site.challenge})
    if not caller.may(route.scope):
        has = f"{caller.name} has {', '.join(sorted(caller.scopes)) or 'no scope'}"
        raise HTTPProblem(403, f"this needs the scope {route.scope!r}; {has}", "use a token or a login that has it")
    if caller.tenant is not None and not route.for_tenants:
        told = f"{caller.name} is bound to the tenant {caller.tenant!r}, and this is about all of them"
        raise HTTPProblem(403, told, "use a token or a login without a tenant")


async def with_input(request: Request) -> Request:
    """The same with its parameters, and what it brings."""
    route, raw = request.route, request.raw
    values: dict[str, Any] = {"path": raw.path_params, "query": parsing.query(route, raw)}
    if route.body is not None:
        values["body"] = await parsing.body(route, raw)
    elif route.page and route.changes:
        values["form"] = await parsing.form(raw)
    return msgspec.structs.replace(request, **values)


async def call(site: Site, request: Request) -> RawResponse:
    if request.route.stream:
        return await cast(Stream, request.route.do)(site, request)
    limiter = site.slow if request.route.slow else None
    return to_raw(await to_thread.run_sync(cast(Endpoint, request.route.do), site, request, limiter=limiter))


def to_raw(response: Response) -> RawResponse:
    content = msgspec.json.encode(response.data) if response.text is None else response.text
    return RawResponse(content, response.status, dict(response.headers), media_type=response.media)


def to_problem(site: Site, request: Request, found: HTTPProblem) -> RawResponse:
    if request.route.page:
        shown = problem_page(site, request, found)
    else:
        shown = Response(status=found.status, data=found.as_dict(), media=problem.MEDIA)
    response = to_raw(shown)
    response.headers.update(found.headers)
    return response
