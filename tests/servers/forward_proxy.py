"""A forward proxy, as companies have one: CONNECT for https, whole URLs for http. It resolves names for its clients."""

from __future__ import annotations

import http.client
import select
import socket
import threading
from collections.abc import Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit


class Asked(NamedTuple):
    method: str
    target: str
    credentials: str | None


class ForwardProxy:
    """`with ForwardProxy({"jobs.example": port}) as proxy:` then set HTTPS_PROXY to `proxy.url`."""

    def __init__(self, hosts: Mapping[str, int], *, credentials: str | None = None) -> None:
        self.hosts, self.credentials = hosts, credentials
        self.asked: list[Asked] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads, self._http.block_on_close = True, False
        self._http.proxy = self  # type: ignore[attr-defined]
        self.port: int = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ForwardProxy:
        self._thread = threading.Thread(target=self._http.serve_forever, args=[0.05], daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_CONNECT(self) -> None:
        if (port := self._upstream(urlsplit(f"//{self.path}").hostname)) is None:
            return
        with closing(socket.create_connection(("127.0.0.1", port))) as server:
            self.send_response(200, "Connection established")
            self.end_headers()
            self.close_connection = True
            _copy(self.connection, server)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        parts = urlsplit(self.path)
        if (port := self._upstream(parts.hostname)) is None:
            return
        headers = {name: value for name, value in self.headers.items() if not name.lower().startswith("proxy-")}
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as server:
            server.request("POST", parts.path, body, headers)
            response = server.getresponse()
            answer = response.read()
        self._send(response.status, answer)

    def _upstream(self, host: str | None) -> int | None:
        """The port that the name leads to; None if the request was answered with an error."""
        proxy: ForwardProxy = self.server.proxy  # type: ignore[attr-defined]
        given = self.headers.get("Proxy-Authorization")
        proxy.asked.append(Asked(self.command, self.path, given))
        if given != proxy.credentials:
            self._send(407, b"who are you?")
            return None
        if host not in proxy.hosts:
            self._send(403, b"not allowed")
            return None
        return proxy.hosts[host]

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: failed tests show enough."""


def _copy(client: socket.socket, server: socket.socket) -> None:
    """Both ways, until one of them ends."""
    other = {client: server, server: client}
    while True:
        for end in select.select(list(other), [], [])[0]:
            if not (data := end.recv(65_536)):
                return
            other[end].sendall(data)
