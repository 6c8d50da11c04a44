"""The ASGI app: finds the route, asks who it is, calls the endpoint in a thread, and makes a response of what comes."""

from __future__ import annotations

import logging
import time
from typing import Any, cast

import msgspec
from anyio import to_thread
from starlette import routing
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from treadle.errors import TreadleError
from treadle.web import parsing, problem, security
from treadle.web.http import Answer, Ask
from treadle.web.principal import NOBODY, Principal
from treadle.web.problem import Problem
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
    """A path of ours. If its method is not there, another may have it (GET /jobs/tick is a job); if none, we answer."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class PathHandler:
    """The methods of one path. Without any, it is where paths lead that do not exist."""

    def __init__(self, site: Site, routes: dict[str, Route]) -> None:
        self._site = site
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        began = time.perf_counter()
        try:
            response = await self._respond(request)
        except ClientDisconnect:
            return
        for name, value in security.headers(self._site.frame_ancestors).items():
            response.headers.setdefault(name, value)
        response.headers["Server-Timing"] = f"app;dur={(time.perf_counter() - began) * 1000:.1f}"
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        ask = Ask(request=request, route=self._route(request), who=NOBODY)
        try:
            security.check_host(request, self._site.hosts)
            security.check_origin(request)
            self._must_exist(request)
            if (entered := await self._site.enter(request)) is not None:
                return respond(entered)
            who = await self._site.who(request) if ask.route.scope else None
            ask = msgspec.structs.replace(ask, who=who or NOBODY)
            allow(self._site, ask.route, who)
            return await call(self._site, await complete(ask))
        except Problem as found:
            return refuse(self._site, ask, found)
        except TreadleError as error:
            return refuse(self._site, ask, problem.of_error(error))
        except ClientDisconnect:
            raise
        except HTTPException as error:  # the way of Starlette and FastAPI to say no, for the mount's own `auth`
            return refuse(self._site, ask, problem.of_framework(error.status_code, error.detail, error.headers))
        except Exception:
            log.exception("%s %r went wrong", request.method, request.url.path)
            return refuse(self._site, ask, problem.unexpected())

    def _route(self, request: Request) -> Route:
        """The route asked for; of a path that has none, one that stands for it in problems."""
        method = "GET" if request.method == "HEAD" else request.method
        if (route := self._routes.get(method)) is not None:
            return route
        wants_html = "text/html" in request.headers.get("accept", "")
        return Route(method=method, path="", do=_nothing, summary="", page=wants_html)

    def _must_exist(self, request: Request) -> None:
        if not self._routes:
            raise Problem(404, f"there is no {request.url.path}", problem.ALL)
        allowed = ", ".join(sorted(self._routes))
        method = "GET" if request.method == "HEAD" else request.method
        if method not in self._routes:
            raise Problem(405, f"{method} is not possible here", f"use {allowed}", headers={"Allow": allowed})


def _nothing(site: Site, ask: Ask) -> Answer:
    raise AssertionError("_must_exist lets nobody come here")


def allow(site: Site, route: Route, who: Principal | None) -> None:
    """Whether they may. The only place that decides it."""
    if route.scope is None:
        return
    if who is None:
        raise Problem(401, "nobody is signed in", site.way_in, headers={"WWW-Authenticate": site.challenge})
    if not who.may(route.scope):
        has = f"{who.name} has {', '.join(sorted(who.scopes)) or 'no scope'}"
        raise Problem(403, f"this needs the scope {route.scope!r}; {has}", "use a token or a login that has it")
    if who.tenant is not None and not route.for_tenants:
        told = f"{who.name} is bound to the tenant {who.tenant!r}, and this is about all of them"
        raise Problem(403, told, "use a token or a login without a tenant")


async def complete(ask: Ask) -> Ask:
    """The same with its parameters, and what it brings."""
    route, request = ask.route, ask.request
    values: dict[str, Any] = {"path": request.path_params, "query": parsing.query(route, request)}
    if route.body is not None:
        values["body"] = await parsing.body(route, request)
    elif route.page and route.changes:
        values["form"] = await parsing.form(request)
    return msgspec.structs.replace(ask, **values)


async def call(site: Site, ask: Ask) -> Response:
    if ask.route.stream:
        return await cast(Stream, ask.route.do)(site, ask)
    limiter = site.slow if ask.route.slow else None
    return respond(await to_thread.run_sync(cast(Endpoint, ask.route.do), site, ask, limiter=limiter))


def respond(answer: Answer) -> Response:
    content = msgspec.json.encode(answer.data) if answer.text is None else answer.text
    return Response(content, answer.status, dict(answer.headers), media_type=answer.media)


def refuse(site: Site, ask: Ask, found: Problem) -> Response:
    if ask.route.page:
        answer = problem_page(site, ask, found)
    else:
        answer = Answer(status=found.status, data=found.as_dict(), media=problem.MEDIA)
    response = respond(answer)
    response.headers.update(found.headers)
    return response
