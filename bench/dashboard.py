"""Dashboard: how long its pages take over a full database, and what a viewer costs a worker that drains it."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import click

from bench.database import BenchDatabase, Jobs
from bench.drain import drain_in
from bench.measure import Sample, alternately, percentile
from bench.report import ReportRow, Target
from bench.setting import Setting
from bench.workers import Child

SERVE = "bench.serve"
EVERY = 0.2
"""Seconds between two requests."""
HOUR = 3_600.0
PATHS = ("/", "/jobs", "/jobs?q=status:completed", "/jobs?q=payload.n:42", "/jobs/{id}", "/api/jobs?limit=50")
_DURATION = re.compile(r"dur=([\d.]+)")


def measure(setting: Setting) -> list[ReportRow]:
    """Half of the jobs wait, half have ended. The drains alternate: with a viewer, and without."""
    n = setting.sizes.many
    setting.say(f"dashboard: preparing {n:,} jobs")
    database = setting.backend.new("dashboard")
    taken: dict[str, list[float]] = {path: [] for path in PATHS}
    try:
        database.waiting(n // 2, "other")
        some = database.finished(n - n // 2)
        with _served(database) as port:
            measured = alternately(
                setting,
                {
                    "drain": lambda: _drain(setting, database),
                    f"drain with {1 / EVERY:g} requests/s": lambda: _watched(setting, database, port, some, taken),
                },
                setting.sizes.pairs,
            )
    finally:
        database.close()
    alone, watched = measured.values()
    what = f"drain with {1 / EVERY:g} requests/s, {n:,} jobs"
    rows = [ReportRow.of("dashboard", "watched", what, "jobs/s", watched, ("without", alone), Target(ratio=0.95))]
    for path, times in taken.items():
        sample = Sample((percentile(times, 95),))
        target = Target(below=300)
        rows.append(ReportRow.of("dashboard", f"page {path}", f"p95 {path}", "ms on the server", sample, target=target))
    return rows


@contextlib.contextmanager
def _served(database: BenchDatabase) -> Generator[int]:
    server = Child(database, SERVE)
    try:
        server.ready()
        server.go()
        port = int(server.line())
        yield port
        if not server.lives():
            raise click.ClickException(f"the dashboard died:\n{server.errors()}")
    finally:
        server.stop()


def _drain(setting: Setting, database: BenchDatabase) -> float:
    return drain_in(setting, database, database.waiting(4 * setting.sizes.backlog, later=-HOUR))


def _watched(setting: Setting, database: BenchDatabase, port: int, some: Jobs, taken: dict[str, list[float]]) -> float:
    over = threading.Event()
    with ThreadPoolExecutor(1) as viewer:
        looking = viewer.submit(_view, port, f"{some.prefix}{1:012x}", taken, over)
        try:
            return _drain(setting, database)
        finally:
            over.set()
            looking.result()


def _view(port: int, id: str, taken: dict[str, list[float]], over: threading.Event) -> None:
    """One request after the other, at a fixed rate, until it is over; each page at least once."""
    began = time.monotonic()
    for asked, path in enumerate(cycle(PATHS), 1):
        if over.is_set() and all(taken.values()):
            return
        taken[path].append(_get(port, path.format(id=id)))
        time.sleep(max(0.0, began + asked * EVERY - time.monotonic()))


def _get(port: int, path: str) -> float:
    """Milliseconds, as the server reports them."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={"Accept": "text/html"})
        answer = connection.getresponse()
        answer.read()
        timing = _DURATION.search(answer.headers.get("Server-Timing", ""))
        if answer.status != 200 or timing is None:
            raise click.ClickException(f"GET {path} answered {answer.status}")
        return float(timing[1])
    finally:
        connection.close()
