"""An HTTP proxy in front of a real server: with TLS if it has a certificate. It can change or drop responses."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

Change = Callable[[bytes, bytes], bytes | None]
"""The response that the client gets, from its request and the server's response. None: the connection ends."""


class Asked(NamedTuple):
    path: str
    headers: Mapping[str, str]
    body: bytes


class Front:
    """`with Front(server.port) as front:` then ask at `front.port`."""

    def __init__(self, target: int, *, context: ssl.SSLContext | None = None, change: Change | None = None) -> None:
        self.target = target
        self.change = change
        self.asked: list[Asked] = []
        self._http = _HTTP(self)
        if context is not None:
            # Each handshake runs in the thread of its connection, so a silent client holds up no other.
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self.port: int = self._http.server_address[1]

    def __enter__(self) -> Front:
        self._thread = threading.Thread(target=self._http.serve_forever, args=[0.05], daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _HTTP(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, front: Front) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.front = front

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: a client that does not trust the certificate hangs up, and tests want that."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HTTP

    def do_POST(self) -> None:
        front = self.server.front
        body = self.rfile.read(int(self.headers["Content-Length"]))
        front.asked.append(Asked(self.path, dict(self.headers), body))
        status, answer = self._ask(body)
        changed = front.change(body, answer) if front.change else answer
        if changed is None:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(changed)))
        self.end_headers()
        self.wfile.write(changed)

    def _ask(self, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.front.target, timeout=30)
        connection.request("POST", "/v2/pipeline", body, dict(self.headers))
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        return response.status, answer

    def log_message(self, *_: object) -> None:
        """Log nothing: failed tests show enough."""
