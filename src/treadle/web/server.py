"""The stand-alone server: uvicorn around one mount."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterable
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from treadle.api_tokens import SESSION
from treadle.app import Treadle
from treadle.errors import BadOption
from treadle.web import security
from treadle.web.app import WebApp
from treadle.web.login import Login
from treadle.web.proxy_login import ProxyLogin

USER, PASSWORD = "TREADLE_WEB_USER", "TREADLE_WEB_PASSWORD"

WAYS = f"""A dashboard that others can reach needs a way to identify them:
  {USER}=me {PASSWORD}=… treadle dashboard …   a name and a password
  treadle dashboard --login-header X-Forwarded-User --proxy 10.0.0.7 …   the login of your proxy
  treadle tokens create me --scope manage   a token, for programs; the link that is printed is for you
  app.mount("/jobs", td.asgi(auth=…))   inside your own web app, behind its own login"""


class DashboardServer:
    """One mount, bound to its address and not yet serving, so that the printed address is the real one."""

    def __init__(
        self,
        td: Treadle,
        host: str,
        port: int,
        prefix: str,
        hosts: Iterable[str],
        proxies: Iterable[str],
        login_header: str | None,
        read_only: bool,
        price: float | None,
    ) -> None:
        self.auth = Login(user=os.environ.get(USER, ""), password=os.environ.get(PASSWORD, ""))
        self._login_header, self._proxies = login_header, list(proxies)
        self._host, self._prefix = host, f"/{prefix.strip('/')}".rstrip("/")
        names = set(hosts) if is_any(host) else {*hosts, host}
        allowed = {*security.LOOPBACK, *names} if names else None
        self.web = WebApp(td, auth=self.auth, read_only=read_only, hosts=allowed, price=price)
        self._app = self._behind_proxies()
        self._socket = bind(host, port)

    @property
    def address(self) -> str:
        host = "127.0.0.1" if is_any(self._host) else self._host
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self._socket.getsockname()[1]}{self._prefix}/"

    def _behind_proxies(self) -> ASGIApp:
        """What is served. The login looks at the peer first: the forwarded address would hide it."""
        app: Any = Prefixed(self.web, self._prefix)
        if self._proxies:
            app = ProxyHeadersMiddleware(app, self._proxies)
        return app if self._login_header is None else ProxyLogin(app, self._login_header, self._proxies)

    def new_link(self) -> str:
        return f"{self.address}?login={self.auth.new_code(self.web.app.store)}"

    def run(self, ready: Callable[[], None]) -> None:
        """Serves until SIGINT or SIGTERM. `ready` is called when it answers."""
        settings = uvicorn.Config(
            self._app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=2,
            http="h11",  # httptools, which it would prefer, has no limit for the head of a request
            # Uvicorn would believe every program on this machine that it forwards for somebody else.
            proxy_headers=False,
        )
        SignallingServer(settings, ready, self.web.close).run([self._socket])


class Prefixed:
    """Serves under a prefix or none, whether the proxy in front strips it or not, and without a proxy too."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            whole = path if f"{path}/".startswith(f"{self._prefix}/") else self._prefix + path
            scope = {**scope, "root_path": self._prefix, "path": whole}
        await self._app(scope, receive, send)


class SignallingServer(uvicorn.Server):
    """Calls back when it is ready, and when it stops: open streams must end, or it would wait for them."""

    def __init__(self, settings: uvicorn.Config, ready: Callable[[], None], stopping: Callable[[], None]) -> None:
        super().__init__(settings)
        self._ready, self._stopping = ready, stopping

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """A signal is the normal way to stop it. Uvicorn would raise it again after it has stopped."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()
        await super().shutdown(sockets)


def has_credentials(app: Treadle) -> bool:
    """Whether callers can be identified: by a password, or by a token."""
    if os.environ.get(USER) and os.environ.get(PASSWORD):
        return True
    if app.store.schema() != app.store.newest_schema():  # no tokens, or not usable yet
        return False
    return any(not token.name.startswith(SESSION) for token in app.store.tokens())


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_any(host: str) -> bool:
    return host in ("0.0.0.0", "::", "")


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, or asyncio does not turn off Nagle's algorithm: each response would wait 40 ms for an ACK.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if sys.platform != "win32":  # there, another program could take the port from us
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        way_out = f"{error.strerror}; choose another; --port 0 takes any free one"
        raise BadOption("host, port", (host, port), way_out) from None
    return listening
