"""A small HTTP server in threads of its own: it needs neither an event loop nor the `web` extra."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple

from treadle.errors import BadOption

log = logging.getLogger("treadle")

MAX_REQUESTS = 64
"""Requests at once. Further ones are refused: each is a thread."""
HELP = "write HOST:PORT, such as 127.0.0.1:8081, 0.0.0.0:8081 or [::1]:8081"
PATHS = "there are /livez, /readyz and /metrics\n"


class Answer(NamedTuple):
    status: int
    text: str
    media: str = "text/plain; charset=utf-8"


class Address(NamedTuple):
    host: str
    port: int


def parse(address: Any) -> Address:
    """`127.0.0.1:8081`. Raises BadOption."""
    host, _, port = str(address).rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or not port.isascii() or not port.isdigit() or (":" in host and not bracketed):
        raise BadOption("health", address, HELP)
    if int(port) > 65_535:
        raise BadOption("health", address, f"a port is at most 65535; {HELP}")
    return Address(host[1:-1] if bracketed else host, int(port))


class HealthServer(ThreadingHTTPServer):
    """Has its port from when it is made, and serves from its start until it is stopped. `answer` gets a path, and is
    called in any thread."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # with Python's 5, a burst of clients waits for the kernel to try again

    def __init__(self, address: Address, answer: Callable[[str], Answer | None]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.answer = answer
        self._room = threading.BoundedSemaphore(MAX_REQUESTS)
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            way_out = f"{error.strerror or error}; name an address of this machine and a free port"
            raise BadOption("health", f"{address.host}:{address.port}", way_out) from None
        self._thread = threading.Thread(target=self.serve_forever, args=[0.1], name="treadle-health", daemon=True)

    def start(self) -> None:
        with _signals_blocked():
            self._thread.start()

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # http.server would also ask the DNS for the name of the host

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a health probe failed", exc_info=True)  # who asked has hung up


class _Handler(BaseHTTPRequestHandler):
    timeout = 5

    def do_GET(self) -> None:
        assert isinstance(self.server, HealthServer)
        found = self.server.answer(self.path.partition("?")[0]) or Answer(404, PATHS)
        body = found.text.encode()
        self.send_response(found.status)
        self.send_header("Content-Type", found.media)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def version_string(self) -> str:
        return "treadle"

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds, and are no news."""


@contextmanager
def _signals_blocked() -> Generator[None]:
    """A thread that starts in this block gets no signals: they have to interrupt the main thread, which waits."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
