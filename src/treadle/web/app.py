"""The ASGI app of one mount: its settings, its routes, its caches. There is no global state: two mounts never mix."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass
from typing import Self, TypedDict, cast
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request as RawRequest
from starlette.responses import RedirectResponse
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from treadle.app import Treadle
from treadle.errors import BadOption
from treadle.web import api, openapi, pages, render
from treadle.web.api.bulk import BulkRunner
from treadle.web.api.monitoring import Counters
from treadle.web.auth import Auth, Principal, authenticate, bearer_token, token_owner
from treadle.web.body import Bodies
from treadle.web.broadcaster import Broadcaster
from treadle.web.cache import Cache
from treadle.web.handler import Path, PathHandler
from treadle.web.login import Login
from treadle.web.route import Response, Route, routes_of

API = routes_of((*api.MODULES, openapi))
ROUTES = (*API, *routes_of((*pages.MODULES, render)))
"""All routes. A path with a parameter is matched after the paths without."""
MAX_THREADS = 16
"""Requests at once, of pages and the API, and as many slow ones, such as ticks. Further ones wait. The threads are the
mount's own: its pages cannot take those of the app around it. More would only wait for the interpreter's lock."""
MAX_CACHED = 1_000


class WebOptions(TypedDict, total=False):
    """The options of `td.asgi`, as `WebApp` describes them."""

    read_only: bool
    hosts: Collection[str] | None
    frame_ancestors: str
    title: str
    price: float | None


@dataclass(eq=False)
class WebApp:
    """The dashboard and the API of one app, for any ASGI server or framework: what `td.asgi` returns.

    Without `auth` it prints a link to sign in with: when it starts, if it is a server's app or is used as a context
    manager (frameworks do not start their mounts), and otherwise when somebody opens a page.
    It needs no lifespan: it starts its threads when a request needs them.
    """

    app: Treadle
    _: KW_ONLY
    auth: Auth | Login | None = None
    read_only: bool = False
    hosts: Collection[str] | None = None
    frame_ancestors: str = "'none'"
    title: str = "treadle"
    price: float | None = None
    """The price of a second in a handler, for the insights."""

    def __post_init__(self) -> None:
        self.auth = Login() if self.auth is None else self.auth
        if not callable(self.auth) and not isinstance(self.auth, Login):
            way_out = "give a function of the request, or leave it out: then a link to sign in with is printed"
            raise BadOption("auth", self.auth, way_out)
        self.hosts = None if self.hosts is None else frozenset(host.lower() for host in self.hosts)
        self.login = self.auth if isinstance(self.auth, Login) else None
        self.routes = tuple(route for route in ROUTES if not (self.read_only and route.writes))
        self.counters = Counters(self.app)
        self.limiter, self.slow_limiter = CapacityLimiter(MAX_THREADS), CapacityLimiter(MAX_THREADS)
        self.probe_limiter = CapacityLimiter(1)
        self.bulk_runner = BulkRunner(self.app)
        self.broadcaster = Broadcaster(self.app)
        self.cache = Cache(MAX_CACHED, self.broadcaster.served)
        self.cached = self.cache.get
        self.tokens = Cache(MAX_CACHED)
        """Apart from the rest, which strangers with invented tokens could otherwise push out."""
        self.making_types = threading.Lock()
        self.bodies = Bodies()
        self._router = self._make_router()

    def _make_router(self) -> Router:
        paths: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            paths.setdefault(route.path, {})[route.method] = route
        first = sorted(paths, key=lambda path: ("{" in path, path))  # /jobs/tick before /jobs/{id}
        found = [Path(path, PathHandler(self, paths[path]), methods=list(paths[path])) for path in first]
        return Router(found, redirect_slashes=False, default=PathHandler(self, {}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif (root := scope.get("root_path")) and scope["path"] in ("", root) and scope["method"] in ("GET", "HEAD"):
            query = scope.get("query_string", b"").decode("latin-1")  # the mount without its slash
            await RedirectResponse(f"{quote(root)}/{query and '?'}{query}")(scope, receive, send)
        else:
            await self._router({**scope, "path": scope["path"] or "/"}, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def __aenter__(self) -> Self:
        await self.offer_login()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def offer_login(self, request: RawRequest | None = None) -> None:
        if self.login:
            await to_thread.run_sync(self.login.offer, self, request, limiter=self.limiter)

    async def log_in(self, request: RawRequest) -> Response | None:
        """The response to a login link. None for any other request."""
        return await to_thread.run_sync(self.login.log_in, self, request, limiter=self.limiter) if self.login else None

    async def identify(self, request: RawRequest) -> Principal | None:
        """The caller, if accepted: by a token of treadle, or otherwise by the mount's `auth`."""
        if (secret := bearer_token(request)) is not None:
            return await to_thread.run_sync(token_owner, self, secret, limiter=self.limiter)
        if self.login:
            return await to_thread.run_sync(self.login.identify, self, request, limiter=self.limiter)
        return await authenticate(cast(Auth, self.auth), request, self.limiter)

    def close(self) -> None:
        self.bulk_runner.close()
        self.broadcaster.close()
