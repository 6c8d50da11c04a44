"""One request, followed: finds the route, identifies the caller, runs the endpoint in a thread, sends its response."""

from __future__ import annotations

import inspect
import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec
from anyio import to_thread
from starlette import routing
from starlette.requests import ClientDisconnect
from starlette.requests import Request as RawRequest
from starlette.responses import Response as RawResponse
from starlette.types import Receive, Scope, Send

from treadle.web import problem, render, security
from treadle.web.auth import NOBODY, Principal, Redirected
from treadle.web.problem import HTTPProblem
from treadle.web.route import Request, Response, Route, parse

if TYPE_CHECKING:
    from treadle.web.app import WebApp
    from treadle.web.login import Login

log = logging.getLogger("treadle.web")


class Path(routing.Route):
    """One path. If it lacks the method, another path may match (GET /jobs/tick is a job). If none does, we answer."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class PathHandler:
    """The methods of one path. One without methods handles all paths that do not exist."""

    def __init__(self, web: WebApp, routes: dict[str, Route]) -> None:
        self._web, self._routes = web, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = RawRequest(scope, receive)
        began = time.perf_counter()
        try:
            response = await self._respond(raw)
        except ClientDisconnect:
            return
        for name, value in security.headers(self._web.frame_ancestors).items():
            response.headers.setdefault(name, value)
        response.headers["Server-Timing"] = f"app;dur={(time.perf_counter() - began) * 1000:.1f}"
        await response(scope, receive, send)

    async def _respond(self, raw: RawRequest) -> RawResponse:
        request = Request(web=self._web, raw=raw, route=self._route(raw), caller=NOBODY)
        try:
            security.check_host(raw, self._web.hosts)
            security.check_origin(raw)
            self._check_exists(raw, request.route)
            if request.route.scope and (signed_in := await self._web.log_in(raw)) is not None:
                return to_raw(signed_in)
            caller = await self._web.identify(raw) if request.route.scope else None
            request = msgspec.structs.replace(request, caller=caller or NOBODY)
            authorize(self._web, request.route, caller)
            with self._web.bodies.room_for(raw):
                return await call(await parse(request))
        except ClientDisconnect:
            raise
        except Redirected as elsewhere:  # a program cannot sign in there
            return elsewhere.response if request.route.page else to_problem(request, _not_signed_in(None))
        except Exception as error:
            found = problem.of(error, request.route.page)
            if found.details.status == 500:
                log.exception("%s %r failed", raw.method, raw.scope["path"])
            if found.details.status == 401 and request.route.page:
                await self._web.offer_login(raw)
            return to_problem(request, found)

    def _route(self, raw: RawRequest) -> Route:
        """The requested route. If there is none, a stand-in that says how to show the problem."""
        method = "GET" if raw.method == "HEAD" else raw.method
        wants_html = "text/html" in raw.headers.get("accept", "")
        return self._routes.get(method) or Route(method, "", "", page=wants_html)

    def _check_exists(self, raw: RawRequest, route: Route) -> None:
        if not self._routes:
            raise HTTPProblem(404, f"there is no {raw.scope['path']}", problem.SEE_OPENAPI)
        if route.method not in self._routes:
            allowed = ", ".join(sorted(self._routes))
            raise HTTPProblem(405, f"{route.method} is not possible here", f"use {allowed}", headers={"Allow": allowed})


def authorize(web: WebApp, route: Route, caller: Principal | None) -> None:
    """Raises if the caller may not use the route. No other place decides that."""
    if route.scope is None:
        return
    if caller is None:
        raise _not_signed_in(web.login)
    if not caller.may(route.scope):
        has = f"{caller.name} has {', '.join(sorted(caller.scopes)) or 'no scope'}"
        raise HTTPProblem(403, f"this needs the scope {route.scope!r}; {has}", "use a token or a login that has it")
    if caller.tenant is not None and not route.for_tenants:
        bound = f"{caller.name} is bound to the tenant {caller.tenant!r}, and this is about all tenants"
        raise HTTPProblem(403, bound, "use a token or a login without a tenant")


def _not_signed_in(login: Login | None) -> HTTPProblem:
    where = "use the link that the server printed to its log" if login else "sign in where this is mounted"
    way_out = f"send a token: Authorization: Bearer …  (treadle tokens create), or {where}"
    kind = "Basic" if login and login.has_password else "Bearer"
    headers = {"WWW-Authenticate": f'{kind} realm="treadle", charset="UTF-8"'}
    return HTTPProblem(401, "you are not signed in", way_out, headers=headers)


async def call(request: Request) -> RawResponse:
    endpoint: Any = request.route.endpoint
    if inspect.iscoroutinefunction(endpoint):
        answer = await endpoint(request)
    else:
        limiter = request.web.slow_limiter if request.route.slow else request.web.limiter
        answer = await to_thread.run_sync(endpoint, request, limiter=limiter)
    if isinstance(answer, RawResponse):
        return answer
    return to_raw(answer if isinstance(answer, Response) else Response(data=answer))


def to_raw(response: Response) -> RawResponse:
    content = msgspec.json.encode(response.data) if response.text is None else response.text
    return RawResponse(content, response.status, dict(response.headers), media_type=response.media)


def to_problem(request: Request, found: HTTPProblem) -> RawResponse:
    details = found.details
    if request.route.page:
        shown = render.render(request, "problem.html", status=details.status, problem=details)
    else:
        shown = Response(status=details.status, data=details, media=problem.MEDIA)
    return to_raw(msgspec.structs.replace(shown, headers=found.headers))
