"""The state of one mount: its app, its settings, its caches. There is no global state: two mounts never mix."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as RawRequest

from treadle.app import Treadle
from treadle.errors import TreadleError
from treadle.stores.rows import AuditRow
from treadle.web import auth as authentication
from treadle.web.auth import Auth, Login, Principal, bearer_token, token_owner
from treadle.web.broadcaster import Broadcaster
from treadle.web.bulk_runner import BulkRunner
from treadle.web.http import Request, Response
from treadle.web.route import Route

if TYPE_CHECKING:
    from treadle.web.api.monitoring import Counters

MAX_SLOW = 16
"""Slow requests at once, such as ticks. Further ones wait."""
MAX_CACHED = 1_000

Hosts = Collection[str] | None
Price = float | None
"""Of a second in a handler, for the insights."""

log = logging.getLogger("treadle.web")


class Site:
    """One mount: an app, and the options of `td.asgi`."""

    def __init__(
        self,
        app: Treadle,
        auth: Auth | Login,
        read_only: bool,
        hosts: Hosts,
        frame_ancestors: str,
        title: str,
        price: Price,
    ) -> None:
        self.app = app
        self.login = auth if isinstance(auth, Login) else None
        self.auth: Auth = authentication.nobody if isinstance(auth, Login) else auth
        self.read_only = read_only
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self.frame_ancestors = frame_ancestors
        self.title = title
        self.price = price
        self.routes: tuple[Route, ...] = ()
        self.counters: Counters
        """Set by the app that serves the routes, without those that a read-only site lacks. So are the counters."""
        self.slow_limiter = CapacityLimiter(MAX_SLOW)
        self.bulk_runner = BulkRunner(app)
        self.broadcaster = Broadcaster(app)
        self._cached: dict[Any, tuple[float, float, Any]] = {}
        self._lock = threading.Lock()
        self._locks: dict[Any, threading.Lock] = {}

    @property
    def sign_in_hint(self) -> str:
        """What a caller who is not let in can do."""
        where = "use the link that treadle dashboard printed" if self.login else "sign in where this is mounted"
        return f"send a token: Authorization: Bearer …  (treadle tokens create), or {where}"

    @property
    def challenge(self) -> str:
        kind = "Basic" if self.login and self.login.has_password else "Bearer"
        return f'{kind} realm="treadle", charset="UTF-8"'

    async def log_in(self, request: RawRequest) -> Response | None:
        """The response to a login link. None for any other request."""
        return await run_in_threadpool(self.login.log_in, self, request) if self.login else None

    async def identify(self, request: RawRequest) -> Principal | None:
        """The caller, if let in: by one of our tokens, else as the mount's `auth` says."""
        if (secret := bearer_token(request)) is not None:
            return await run_in_threadpool(token_owner, self, secret)
        if self.login is not None:
            return await run_in_threadpool(self.login.identify, self, request)
        return await authentication.authenticate(self.auth, request)

    def audit(self, request: Request, action: str, what: str, count: int = 1) -> None:
        caller = request.caller
        row = AuditRow(who=caller.name, action=action, what=what, count=count, tenant=caller.tenant or "")
        try:
            self.app.store.audit(row)
        except TreadleError as error:  # the change is made: an error would have the caller repeat it
            log.error("not recorded in the audit: %r: %s", row, error)

    def close(self) -> None:
        self.bulk_runner.close()
        self.broadcaster.close()

    def cached(self, key: Any, seconds: float, make: Callable[[], Any], *, share: float = 1.0) -> Any:
        """What `make` returned at most `seconds` ago. Of several callers at once, one makes it and all get it.

        `share`: the longer it takes, the longer it is kept, so that at most this part of the time goes into making it.
        """
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            made, until, value = self._cached.get(key, (-math.inf, -math.inf, None))
            began = time.monotonic()
            if began <= until:
                self.broadcaster.served(made, until)
                return value
            value = make()
            ended = time.monotonic()
            self._keep(key, value, began, ended + max(seconds, (ended - began) / share if share < 1 else 0))
            return value

    def _keep(self, key: Any, value: Any, made: float, until: float) -> None:
        with self._lock:
            if len(self._cached) > MAX_CACHED:  # keys come from requests and must not pile up
                self._cached.clear()
                self._locks.clear()
            self._cached[key] = (made, until, value)
