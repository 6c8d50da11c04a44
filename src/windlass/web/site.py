"""All that one mount has: its app, its settings, its caches. There is nothing beside it: two mounts never mix."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from windlass.web import auth as authentication
from windlass.web.ask import Answer, Ask
from windlass.web.auth import Auth
from windlass.web.principal import Principal

if TYPE_CHECKING:
    from windlass.app import Windlass

log = logging.getLogger("windlass.web")


class Site:
    """One mount of the dashboard and the API."""

    def __init__(
        self,
        app: Windlass,
        auth: Auth,
        *,
        read_only: bool = False,
        hosts: Collection[str] | None = None,
        frame_ancestors: str = "'none'",
        title: str = "windlass",
    ) -> None:
        self.app = app
        self.auth = auth
        self.read_only = read_only
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self.frame_ancestors = frame_ancestors
        self.title = title
        self._cached: dict[Any, tuple[float, Any]] = {}
        self._lock = threading.Lock()
        self._locks: dict[Any, threading.Lock] = {}

    @property
    def way_in(self) -> str:
        """What somebody can do who is not let in."""
        return "send a token: Authorization: Bearer …  (windlass tokens create), or sign in where this is mounted"

    @property
    def challenge(self) -> str:
        return 'Bearer realm="windlass"'

    async def enter(self, request: Request) -> Answer | None:
        """An answer to somebody who comes by a login link."""
        return None

    async def who(self, request: Request) -> Principal | None:
        """Who asks, if they are let in."""
        return await authentication.ask(self.auth, request)

    def note(self, ask: Ask, action: str, what: str, count: int = 1) -> None:
        """Write down who changed what."""
        log.info("%s: %s %s (%d)", ask.who.name, action, what, count)

    def close(self) -> None:
        """End what runs in the background."""

    def cached(self, key: Any, seconds: float, make: Callable[[], Any]) -> Any:
        """What `make` gave at most `seconds` ago. Of several who ask at once, one makes it and all get it."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            made_at, value = self._cached.get(key, (float("-inf"), None))
            if time.monotonic() - made_at > seconds:
                value = make()
                self._keep(key, value)
            return value

    def _keep(self, key: Any, value: Any) -> None:
        with self._lock:
            if len(self._cached) > 1_000:  # keys come from requests: they must not pile up
                self._cached.clear()
                self._locks.clear()
            self._cached[key] = (time.monotonic(), value)
