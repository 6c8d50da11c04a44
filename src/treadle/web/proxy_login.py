"""The login of a proxy: a header with the user's name, which only named peers may send."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.errors import BadOption

USER = "treadle.user"
"""The key of the name in the scope of a request. Nothing that a client sends gets there."""
LONGEST = 200


class ProxyLogin:
    """Takes the name from the header if the request comes from one of the proxies. From anybody else the header means
    nothing. Outside all that replaces the peer's address by the one in X-Forwarded-For."""

    def __init__(self, app: ASGIApp, header: str, proxies: Iterable[str]) -> None:
        if not re.fullmatch(r"[A-Za-z0-9-]+", header):  # with another character, proxies drop or rename it
            raise BadOption("login-header", header, "the name of a header that your proxy sets: X-Forwarded-User")
        self._app, self._header = app, header.lower().encode()
        self._proxies = [ipaddress.ip_network(proxy) for proxy in proxies]
        if not self._proxies:
            way_out = "name the proxies that may send it: --proxy 127.0.0.1; anybody else can send it, too"
            raise BadOption("login-header", header, way_out)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_proxy(scope.get("client")):
            given = [value for name, value in scope["headers"] if name == self._header]
            if len(given) == 1 and (user := _name(given[0])):  # of two, one may be the client's own
                scope = {**scope, USER: user}
        await self._app(scope, receive, send)

    def _is_proxy(self, client: tuple[str, int] | None) -> bool:
        try:
            address = ipaddress.ip_address(client[0] if client else "")
        except ValueError:  # a Unix socket
            return False
        peer = getattr(address, "ipv4_mapped", None) or address
        return any(peer in network for network in self._proxies)


def _name(value: bytes) -> str:
    """The user's name; '' if it is none that the audit could show."""
    try:
        name = value.decode().strip()
    except UnicodeDecodeError:
        return ""
    return name if name.isprintable() and len(name) <= LONGEST else ""
