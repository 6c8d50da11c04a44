"""The ASGI app: finds the route, identifies the caller, runs the endpoint in a thread, sends its response."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import cast

import msgspec
from anyio import to_thread
from starlette import routing
from starlette.requests import ClientDisconnect
from starlette.requests import Request as RawRequest
from starlette.responses import Response as RawResponse
from starlette.types import Receive, Scope, Send

from treadle.app import Treadle
from treadle.errors import BadOption
from treadle.web import api, openapi, pages, problem, render, security
from treadle.web.api.monitoring import Counters
from treadle.web.auth import NOBODY, Auth, Login, Principal, allow_everyone
from treadle.web.http import Request, Response, parse
from treadle.web.problem import HTTPProblem
from treadle.web.route import Endpoint, Route, Stream, routes_of
from treadle.web.site import Site

API = routes_of((*api.MODULES, openapi))
ROUTES = (*API, *routes_of((*pages.MODULES, render)))
"""All routes. A path with a parameter is matched after the paths without."""

log = logging.getLogger("treadle.web")


def asgi(
    app: Treadle,
    *,
    auth: Auth | Login,
    read_only: bool = False,
    hosts: Collection[str] | None = None,
    frame_ancestors: str = "'none'",
    title: str = "treadle",
    price: float | None = None,
) -> WebApp:
    """What `td.asgi` returns: the dashboard and the API of one app, for any ASGI server or framework.

    With `allow_everyone` it answers only to this machine's own names, unless `hosts` says otherwise.
    """
    if not callable(auth) and not isinstance(auth, Login):
        way_out = "give a function of the request; treadle.web.allow_everyone lets everybody do everything"
        raise BadOption("auth", auth, way_out)
    if hosts is None and auth is allow_everyone:
        hosts = security.LOOPBACK
    return WebApp(Site(app, auth, read_only, hosts, frame_ancestors, title, price))


class WebApp:
    """One mount as an ASGI app. It needs no lifespan: it starts its threads when a request needs them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        site.routes = tuple(route for route in ROUTES if not (site.read_only and route.writes))
        site.counters = Counters(site.app)
        paths: dict[str, dict[str, Route]] = {}
        for route in site.routes:
            paths.setdefault(route.path, {})[route.method] = route
        first = sorted(paths, key=lambda path: ("{" in path, path))  # /jobs/tick before /jobs/{id}
        found = [Path(path, PathHandler(site, paths[path]), methods=list(paths[path])) for path in first]
        self._router = routing.Router(found, redirect_slashes=False, default=PathHandler(site, {}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            await self._router({**scope, "path": scope["path"] or "/"}, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while (happened := (await receive())["type"]) != "lifespan.shutdown":
            await send({"type": f"{happened}.complete"})
        self.site.close()
        await send({"type": "lifespan.shutdown.complete"})


class Path(routing.Route):
    """One path. If it lacks the method, another path may match (GET /jobs/tick is a job). If none does, we answer."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class PathHandler:
    """The methods of one path. One without methods handles all paths that do not exist."""

    def __init__(self, site: Site, routes: dict[str, Route]) -> None:
        self._site, self._routes = site, routes

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
            self._check_exists(raw, request.route)
            if (signed_in := await self._site.log_in(raw)) is not None:
                return to_raw(signed_in)
            caller = await self._site.identify(raw) if request.route.scope else None
            request = msgspec.structs.replace(request, caller=caller or NOBODY)
            authorize(self._site, request.route, caller)
            return await call(self._site, await parse(request))
        except ClientDisconnect:
            raise
        except Exception as error:
            found = problem.of(error, request.route.page)
            if found.status == 500:
                log.exception("%s %r failed", raw.method, raw.url.path)
            return to_problem(self._site, request, found)

    def _route(self, raw: RawRequest) -> Route:
        """The requested route. If there is none, a stand-in that says how to show the problem."""
        method = "GET" if raw.method == "HEAD" else raw.method
        wants_html = "text/html" in raw.headers.get("accept", "")
        return self._routes.get(method) or Route(method, "", "", page=wants_html)

    def _check_exists(self, raw: RawRequest, route: Route) -> None:
        if not self._routes:
            raise HTTPProblem(404, f"there is no {raw.url.path}", problem.SEE_OPENAPI)
        if route.method not in self._routes:
            allowed = ", ".join(sorted(self._routes))
            raise HTTPProblem(405, f"{route.method} is not possible here", f"use {allowed}", headers={"Allow": allowed})


def authorize(site: Site, route: Route, caller: Principal | None) -> None:
    """Raises if the caller may not use the route. No other place decides that."""
    if route.scope is None:
        return
    if caller is None:
        raise HTTPProblem(401, "you are not signed in", site.sign_in_hint, headers={"WWW-Authenticate": site.challenge})
    if not caller.may(route.scope):
        has = f"{caller.name} has {', '.join(sorted(caller.scopes)) or 'no scope'}"
        raise HTTPProblem(403, f"this needs the scope {route.scope!r}; {has}", "use a token or a login that has it")
    if caller.tenant is not None and not route.for_tenants:
        bound = f"{caller.name} is bound to the tenant {caller.tenant!r}, and this is about all tenants"
        raise HTTPProblem(403, bound, "use a token or a login without a tenant")


async def call(site: Site, request: Request) -> RawResponse:
    if request.route.stream:
        return await cast(Stream, request.route.endpoint)(site, request)
    limiter = site.slow_limiter if request.route.slow else None
    return to_raw(await to_thread.run_sync(cast(Endpoint, request.route.endpoint), site, request, limiter=limiter))


def to_raw(response: Response) -> RawResponse:
    content = msgspec.json.encode(response.data) if response.text is None else response.text
    return RawResponse(content, response.status, dict(response.headers), media_type=response.media)


def to_problem(site: Site, request: Request, found: HTTPProblem) -> RawResponse:
    """A problem as JSON, or as a page if the route is one."""
    if request.route.page:
        shown = render.render(site, request, "problem.html", status=found.status, problem=found)
    else:
        shown = Response(status=found.status, data=found.as_dict(), media=problem.MEDIA)
    response = to_raw(shown)
    response.headers.update(found.headers)
    return response
