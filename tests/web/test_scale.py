"""50,000 types, a million jobs, 200 streams: probes answer within 100 ms, and pages within a second.

It takes minutes, so only script/torture runs it. test_limits.py tests that the cost is bounded.
"""

from __future__ import annotations

import asyncio
import http.client
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from tests import stores
from tests.web.served import Dashboard
from treadle import Treadle, api_tokens
from treadle.stores.rows import Token
from treadle.web.broadcaster import MAX_STREAMS, MAX_STREAMS_OF_ONE

JOBS, TYPES, SECONDS = 1_000_000, 50_000, 30.0
PATHS = (
    *("/", "/?by=queue", "/?by=tenant", "/?window=7d", "/jobs", "/jobs?q=status:completed", "/jobs?q=type:type-00042"),
    *("/failures", "/workers", "/workers?page=5", "/insights", "/insights?by=queue", "/metrics"),
    *("/api/queues", "/api/stats", "/api/stats?group_by=type", "/api/jobs", "/api/workers", "/api/failures"),
)
DIALECTS = {
    "sqlite": {
        "rows": "(WITH RECURSIVE k (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < {jobs}) SELECT i FROM k)",
        "id": "'{prefix}' || printf('%012x', i)",
        "type": "printf('type-%05d', i % {types})",
        "payload": "'{{\"n\":1}}'",
    },
    "postgresql": {
        "rows": "generate_series(1, {jobs}) AS k (i)",
        "id": "('{prefix}' || lpad(to_hex(i), 12, '0'))::uuid",
        "type": "'type-' || lpad((i % {types})::text, 5, '0')",
        "payload": "'{{\"n\":1}}'::json",
    },
}
FILL = (
    "INSERT INTO treadle_jobs (id, type, queue, tenant, subject, payload, priority, max_attempts, created_at)"
    " SELECT {id}, {type}, 'default', '', '', {payload}, 0, 5, {now} FROM {rows}",
    "INSERT INTO treadle_ready (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at)"
    " SELECT {id}, 'default', {type}, '', 0, {now}, 0, 0, 0, {now} FROM {rows} WHERE i < {jobs} / 2",
    "INSERT INTO treadle_finished (id, lease, token, status, queue, type, tenant, attempts, worker, run_at, started_at,"
    " completed_at) SELECT {id}, i, i, 'completed', 'default', {type}, '', 1, 'w', {now}, {now}, {now}"
    " FROM {rows} WHERE i >= {jobs} / 2",
    "INSERT INTO treadle_tallies (status, type, queue, count)"
    " SELECT 'all', type, queue, count(*) FROM treadle_jobs GROUP BY type, queue",
    "INSERT INTO treadle_tallies (status, type, queue, count)"
    " SELECT 'completed', type, queue, count(*) FROM treadle_finished GROUP BY type, queue",
    "INSERT INTO treadle_usage (minute, type, queue, tenant, runs, completed, failures, busy, waiting)"
    " SELECT {now} / 60000000 * 60, type, queue, '', count(*), count(*), 0, 0, 0 FROM treadle_finished GROUP BY 2, 3",
)
"""Half of the jobs wait, half have run in this minute."""

pytestmark = pytest.mark.torture


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "url", ("sqlite", "postgresql"))


@pytest.fixture
def td(url: str) -> Iterator[Treadle]:
    """An app on the full database."""
    stores.make_tables(url)
    now = time.time_ns() // 1000
    stamp = f"{now // 1000:012x}"
    values = {"jobs": JOBS, "types": TYPES, "now": now, "prefix": f"{stamp[:8]}-{stamp[8:]}-7000-8000-"}
    dialect = DIALECTS["postgresql" if stores.is_postgres(url) else "sqlite"]
    parts = {name: text.format(**values) for name, text in dialect.items()}
    with closing(stores.connect(url)) as connection:
        for statement in FILL:
            connection.execute(stores.in_dialect(url, statement.format(**values, **parts)))
        connection.execute("VACUUM ANALYZE" if stores.is_postgres(url) else "PRAGMA wal_checkpoint(TRUNCATE)")
    app = Treadle(url)
    yield app
    app.close()


def new_token(td: Treadle, name: str) -> str:
    secret = api_tokens.new_secret()
    td.store.add_token(Token(hash=api_tokens.hash_of(secret), name=name, scopes=("read",)))
    return f"Bearer {secret}"


@contextmanager
def streams(td: Treadle, port: int) -> Iterator[list[int]]:
    """As many as a server has. Yields how many hints each has got."""
    hints = [0] * MAX_STREAMS
    tokens = [new_token(td, f"viewer {n}") for n in range(MAX_STREAMS // MAX_STREAMS_OF_ONE)]

    async def listen(n: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        token = tokens[n % len(tokens)]
        writer.write(f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n".encode())
        assert b" 200 " in await reader.readline()
        while line := await reader.readline():
            hints[n] += line.startswith(b"data:")

    async def listen_all() -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(MAX_STREAMS):
                group.create_task(listen(n))

    listening = threading.Thread(target=asyncio.run, args=(listen_all(),), daemon=True)
    listening.start()
    yield hints
    assert listening.is_alive()


class Asking(threading.Thread):
    """Asks for these paths, one after the other, until it is over. Records how long each took."""

    def __init__(self, port: int, paths: tuple[str, ...], token: str, pause: float) -> None:
        super().__init__(daemon=True)
        self.over, self.times = threading.Event(), {path: list[float]() for path in paths}
        self._port, self._token, self._pause = port, token, pause
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        headers = {"Authorization": self._token, "Accept": "text/html"}
        for path in cycle(self.times):
            if self.over.wait(self._pause):
                return
            began = time.perf_counter()
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, path
            self.times[path].append(time.perf_counter() - began)


@pytest.mark.timeout(900)
def test_probes_and_pages_are_fast_with_very_many_types_jobs_and_streams(td: Treadle, tmp_path: Path, url: str) -> None:
    with Dashboard(tmp_path, TREADLE_URL=url) as served:
        token = new_token(td, "reader")
        with streams(td, served.port) as hints:
            health = Asking(served.port, ("/healthz",), token, 0.02)
            pages = Asking(served.port, PATHS, token, 0.05)
            until = time.monotonic() + SECONDS
            while time.monotonic() < until or not all(pages.times.values()):
                td.enqueue("type-00001")  # so that all streams get hints
                time.sleep(0.1)
            for asking in (health, pages):
                asking.over.set()
                asking.join(120)
        assert min(hints) > SECONDS / 4
    probes = sorted(health.times["/healthz"])
    p99 = probes[len(probes) * 99 // 100]
    print(f"\n/healthz: {len(probes)}, p50 {1e3 * statistics.median(probes):.1f} ms, p99 {1e3 * p99:.1f} ms")
    for path, times in pages.times.items():
        print(f"{path}: {len(times)}, p50 {1e3 * statistics.median(times):.0f} ms, most {1e3 * max(times):.0f} ms")
    assert p99 < 0.1
    assert {path: max(times) for path, times in pages.times.items() if max(times) > 1} == {}
