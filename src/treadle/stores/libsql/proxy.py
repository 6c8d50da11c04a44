"""The proxy to a libSQL server: $HTTPS_PROXY, $HTTP_PROXY and $NO_PROXY, as curl reads them."""

from __future__ import annotations

import base64
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from treadle.errors import BadOption
from treadle.stores.libsql.url import is_loopback


class Proxy(NamedTuple):
    host: str
    port: int
    headers: dict[str, str]
    """What it wants to know of us."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def proxy_for(host: str, port: int, *, tls: bool) -> Proxy | None:
    """The proxy that the environment names for this server. None for this machine: no proxy could reach that."""
    scheme = "https" if tls else "http"
    url = getproxies_environment().get(scheme)
    if not url or is_loopback(host) or proxy_bypass(f"{host}:{port}"):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        proxy_port = parts.port or 80
    except ValueError:
        proxy_port = 0
    if parts.scheme != "http" or not parts.hostname or not proxy_port:
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        raise BadOption(f"{scheme.upper()}_PROXY", shown, "write http://host:port, or put the server into $NO_PROXY")
    return Proxy(parts.hostname, proxy_port, _credentials(parts.username, parts.password))


def _credentials(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    given = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(given).decode()}"}
