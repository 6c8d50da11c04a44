"""A real HTTP server before a real one: by TLS if it has a certificate, and it may change, note or swallow answers."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

Change = Callable[[bytes, bytes], bytes | None]
"""What the client gets, by what it has asked and what the server has answered. None: the connection ends."""


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
            # Each handshake in the thread of its connection: a client that is silent holds up no other.
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
        """A client that does not trust us hangs up. That is what this is for."""


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
        """Tests tell what went wrong by themselves."""
