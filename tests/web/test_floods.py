"""A real server under requests that are made to exhaust it: its memory is bounded, and others are answered.

script/torture runs it with more of them.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import select
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx2
import pytest

from tests import stores
from tests.servers.fixtures import cannot
from tests.web.served import Dashboard
from treadle import Treadle, api_tokens
from treadle.stores.rows import Token
from treadle.web import body

TORTURE = os.environ.get("TREADLE_TEST_TORTURE") == "1"
TIMES = 50 if TORTURE else 1
SLOW = 300 if TORTURE else 60
"""Slow bodies. Without a bound, these would be 120 MiB."""
MOST = 100
"""MiB by which the server may grow."""
SECONDS = 30


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "url", ("sqlite", "postgresql"))


class Server(Dashboard):
    """A dashboard, and a caller with a token that may read and enqueue."""

    def __init__(self, folder: Path, url: str) -> None:
        stores.make_tables(url)
        super().__init__(folder, TREADLE_URL=url)
        self._td, secret = Treadle(url), api_tokens.new_secret()
        token = Token(hash=api_tokens.hash_of(secret), name="program", scopes=("read", "enqueue"))
        self._td.store.add_token(token)
        self.headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        self.client = httpx2.Client(base_url=self.url, headers=self.headers, timeout=SECONDS)
        for _ in range(20):  # all threads are there, and pages are compiled
            assert self.client.get("/jobs").status_code == 200

    def close(self) -> None:
        self.client.close()
        self._td.close()

    def memory(self, which: str) -> int:
        """VmRSS: MiB now. VmHWM: the most since `forget_most`."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"{which}:\s+(\d+)", text)[0]) >> 10

    def forget_most(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def connect(self, head: bytes) -> socket.socket:
        """A connection with a request that has begun."""
        connection = socket.create_connection(("127.0.0.1", self.port), SECONDS)
        token = self.headers["Authorization"].encode()
        connection.sendall(b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: " + token + b"\r\n" + head)
        return connection


@pytest.fixture
def server(tmp_path: Path, url: str) -> Iterator[Server]:
    if sys.platform != "linux":
        cannot("the memory of another process is measured by /proc")
    with Server(tmp_path, url) as started:
        yield started
        started.close()


def compressed_bodies(server: Server) -> Counter[int]:
    bomb = gzip.compress(b" " * (50 << 20), 1)
    posts = [server.client.post("/api/jobs", content=bomb, headers={"Content-Encoding": "gzip"}) for _ in range(20)]
    return Counter(post.status_code for post in posts)


def huge_heads(server: Server) -> Counter[int]:
    """20 MiB of headers each."""
    found: Counter[int] = Counter()
    for _ in range(4 * TIMES):
        with server.connect(b"") as connection, contextlib.suppress(OSError):
            for n in range(20):
                connection.sendall(b"X-%d: " % n + b"x" * (1 << 20) + b"\r\n")
            found[int(connection.recv(100).split()[1])] += 1
    return found


def slow_bodies(server: Server) -> Counter[int]:
    """All but the last byte of each. They stay open until the others have been answered."""
    found: Counter[int] = Counter()
    head = f"Content-Type: application/json\r\nContent-Length: {body.MAX_BODY}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(server.connect(head)) for _ in range(SLOW)]
        send_until_nobody_reads(opened, b'"' + b"x" * (body.MAX_BODY - 2))
        for connection in opened:
            with contextlib.suppress(OSError):  # those that wait for the last byte
                found[int(connection.recv(100).split()[1])] += 1
        others_are_answered(server)
    return found


def send_until_nobody_reads(opened: list[socket.socket], content: bytes) -> None:
    """To all of them at once, as much as the server takes."""
    sent = dict.fromkeys(opened, 0)
    for connection in opened:
        connection.setblocking(False)
    while ready := select.select([], list(sent), [], 0.5)[1]:
        for connection in ready:
            try:
                sent[connection] += connection.send(content[sent[connection] : sent[connection] + (1 << 18)])
            except OSError:  # it has closed the connection
                del sent[connection]
                continue
            if sent[connection] == len(content):
                del sent[connection]


def invented_tokens(server: Server) -> Counter[int]:
    def ask(n: int) -> int:
        headers = {"Authorization": f"Bearer {api_tokens.new_secret()}"}
        return server.client.get("/api/stats", headers=headers).status_code

    with ThreadPoolExecutor(8) as pool:
        return Counter(pool.map(ask, range(200 * TIMES)))


def idempotency_keys(server: Server) -> Counter[int]:
    def ask(n: int) -> int:
        headers = {"Idempotency-Key": f"{n:0199}"}
        return server.client.post("/api/jobs", json={"type": "mail"}, headers=headers).status_code

    with ThreadPoolExecutor(8) as pool:
        return Counter(pool.map(ask, range(200 * TIMES)))


def others_are_answered(server: Server) -> None:
    assert server.client.get("/healthz").status_code == 200
    assert server.client.get("/jobs").status_code == 200
    assert server.client.post("/api/jobs", json={"type": "mail"}).status_code == 201


FLOODS: dict[Callable[[Server], Counter[int]], set[int]] = {
    compressed_bodies: {415},
    huge_heads: {400, 431},
    slow_bodies: {503},
    invented_tokens: {401},
    idempotency_keys: {201},
}
"""Each with the statuses that it gets."""


def test_memory_is_bounded_and_others_are_answered(server: Server) -> None:
    before, over = server.memory("VmRSS"), Event()

    def ask_all_the_time() -> int:
        answered = 0
        while not over.is_set():
            others_are_answered(server)
            answered += 1
            over.wait(0.05)
        return answered

    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(ask_all_the_time)
        try:
            for flood, expected in FLOODS.items():
                server.forget_most()
                assert set(flood(server)) <= expected, flood.__name__
                grown = server.memory("VmHWM") - before
                print(f"{flood.__name__}: {grown:+} MiB")
                assert grown <= MOST, flood.__name__
        finally:
            over.set()
        assert others.result(SECONDS) > 0
