"""Requests of a libSQL server: connections that are kept, proxies, TLS, and which server gets a token."""

from __future__ import annotations

import base64
import http.client
import ssl
from collections import defaultdict
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from treadle.errors import BadOption
from treadle.stores.libsql.url import Endpoint, is_loopback

PATH = "/v2/pipeline"
NEITHER_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"}
"""Errors of several versions of OpenSSL for a response that is not TLS."""
OUR_CA = "if a CA of your own has signed it, put the CA's file in $SSL_CERT_FILE"
WAYS_OUT = {
    9: "set the clocks right, here and there",
    10: "renew it",
    62: "write a name in the URL that the certificate has",
    64: "write a name in the URL that the certificate has",
}
"""By OpenSSL's number for what is wrong with a certificate."""


class NoResult(Exception):
    """There was no response, or not a valid one."""


class Unreachable(NoResult):
    """No answer: whether the request has arrived is not known."""


class Refused(NoResult):
    """An answer that is not a result. `status` is HTTP's."""

    def __init__(self, status: int, answer: bytes) -> None:
        super().__init__(" ".join(answer.decode("utf-8", "replace").split())[:300])  # a page of HTML has many lines
        self.status = status


class Untrusted(NoResult):
    """Nothing was sent, because the server could not be verified."""

    def __init__(self, problem: str, way_out: str) -> None:
        super().__init__(problem)
        self.way_out = way_out


class Peer(NamedTuple):
    host: str
    port: int
    tls: bool


class Address(NamedTuple):
    peer: Peer
    path: str


class Proxy(NamedTuple):
    host: str
    port: int
    headers: dict[str, str]
    """What it wants to know of us."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Server:
    """A libSQL server, and idle connections to it."""

    def __init__(self, endpoint: Endpoint, *, seconds: float) -> None:
        self._idle: defaultdict[Peer, list[http.client.HTTPConnection]] = defaultdict(list)
        self._endpoint = endpoint
        self._home = Address(Peer(endpoint.host, endpoint.port, endpoint.tls), PATH)
        self._context = ssl.create_default_context() if endpoint.tls else None
        self._headers = {"Content-Type": "application/json"}
        if endpoint.token:
            self._headers["Authorization"] = f"Bearer {endpoint.token}"
        self._seconds = seconds
        self._proxies: dict[Peer, Proxy | None] = {}
        self._proxy(self._home.peer)  # raises if the environment names one that cannot be used

    def post(self, body: bytes, address: Address | None = None) -> bytes:
        """The response of the server at that address. A connection that breaks is not used again."""
        peer, path = address or self._home
        proxy = self._proxy(peer)
        connection = self._connection(peer, proxy)
        target, headers = _through(proxy, peer, path, self._headers)
        try:
            connection.request("POST", target, body, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            by = f", through the proxy {proxy}" if proxy else ""
            raise _untrusted(error) or Unreachable(f"{type(error).__name__}: {error}".rstrip(": ") + by) from error
        self._idle[peer].append(connection)
        if response.status != http.client.OK:
            raise Refused(response.status, answer)
        return answer

    def elsewhere(self, base: str) -> Address:
        """The address at which a stream continues, if the server names one. It is as protected as the first one."""
        address = _address(base)
        is_secret = self._endpoint.tls or (self._endpoint.token is not None and not self._endpoint.in_clear)
        if is_secret and not (address.peer.tls or is_loopback(address.peer.host)):
            raise Untrusted(f"it sends us on to {base}, without TLS", "nothing was sent there; set the server right")
        return address

    def _proxy(self, peer: Peer) -> Proxy | None:
        if peer not in self._proxies:
            self._proxies[peer] = proxy_for(peer.host, peer.port, tls=peer.tls)
        return self._proxies[peer]

    def _connection(self, peer: Peer, proxy: Proxy | None) -> http.client.HTTPConnection:
        """An idle one, or a new one: to the proxy, if there is one. TLS goes through it in a tunnel to the server."""
        with suppress(IndexError):
            return self._idle[peer].pop()
        host, port = (proxy.host, proxy.port) if proxy else (peer.host, peer.port)
        if not peer.tls:
            return http.client.HTTPConnection(host, port, timeout=self._seconds)
        self._context = self._context or ssl.create_default_context()
        made = http.client.HTTPSConnection(host, port, timeout=self._seconds, context=self._context)
        if proxy:
            made.set_tunnel(peer.host, peer.port, proxy.headers)
        return made

    def close(self) -> None:
        """Close what is idle. Without a lock, as a forked child closes its copies: a thread that is not in it may have
        had the lock."""
        for connections in list(self._idle.values()):
            with suppress(IndexError):
                while True:
                    connections.pop().close()

    __del__ = close  # otherwise Python warns of the open sockets of an app that was not closed


def _through(proxy: Proxy | None, peer: Peer, path: str, headers: dict[str, str]) -> tuple[str, dict[str, str]]:
    """What to ask for, and how: without TLS, a proxy gets the whole URL."""
    if proxy is None or peer.tls:
        return path, headers
    host = f"[{peer.host}]" if ":" in peer.host else peer.host
    return f"http://{host}:{peer.port}{path}", {**headers, **proxy.headers}


def _address(base: str) -> Address:
    try:
        parts = urlsplit(base)
        port = parts.port
    except ValueError:
        raise Untrusted(f"it sends us on to {base!r}, which leads nowhere", "is it a libSQL server?") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Untrusted(f"it sends us on to {base!r}, which leads nowhere", "is it a libSQL server?")
    tls = parts.scheme == "https"
    return Address(Peer(parts.hostname, port or (443 if tls else 80), tls), parts.path.rstrip("/") + PATH)


def _untrusted(error: Exception) -> Untrusted | None:
    """What TLS has found out about the server, if it has."""
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = f"its certificate is not to be trusted ({error.verify_message})"
        return Untrusted(problem, WAYS_OUT.get(error.verify_code, OUR_CA))
    if isinstance(error, ssl.SSLError) and error.reason in NEITHER_TLS:
        return Untrusted("it does not speak TLS", "write libsql+http:// for a server without")
    return None


# The proxy: $HTTPS_PROXY, $HTTP_PROXY and $NO_PROXY, as curl reads them


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
