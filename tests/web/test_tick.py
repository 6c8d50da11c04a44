"""A tick over HTTP: bounded, and safe to call concurrently."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.web.conftest import client_of
from tests.web.test_jobs import problem
from treadle import Status, Treadle

CALLERS = 8
SLACK = 3.0
"""Seconds that a tick may take beyond its bound, to stop handlers that do not stop by themselves."""


def test_a_tick_says_what_it_did_and_what_is_due_next(client: TestClient, td: Treadle) -> None:
    @td.job
    def good() -> None: ...

    @td.job(max_attempts=1)
    def bad() -> None:
        raise RuntimeError("no")

    good.enqueue()
    bad.enqueue()
    later = good.using(delay=3600).enqueue()
    report = client.post("/api/jobs/tick").json()
    counts = {name: report[name] for name in ("ok", "ran", "completed", "failed", "retried", "released", "rescued")}
    assert counts == {"ok": True, "ran": 2, "completed": 1, "failed": 1, "retried": 0, "released": 0, "rescued": 0}
    assert report["next_due_at"][:19] == later.run_at.isoformat()[:19]
    assert client.post("/api/jobs/tick", json={"max_jobs": 1}).json()["ran"] == 0


def test_a_tick_claims_at_most_its_limit(client: TestClient, td: Treadle) -> None:
    @td.job
    def good(n: int) -> None: ...

    td.enqueue_many([good.request(n=n) for n in range(5)])
    assert client.post("/api/jobs/tick", json={"max_jobs": 3}).json()["ran"] == 3
    left = client.post("/api/jobs/tick", json={"max_jobs": 3}).json()
    assert (left["ran"], left["next_due_at"]) == (2, None)


@pytest.mark.parametrize(
    "body", [{"max_jobs": 0}, {"max_jobs": 10_001}, {"max_seconds": 0}, {"max_seconds": 901}, {"max": 1}], ids=str
)
def test_a_tick_without_bounds_is_refused(client: TestClient, td: Treadle, body: dict[str, int]) -> None:
    td.job(type="a")(lambda: None)
    assert client.post("/api/jobs/tick", json=body).status_code == 400


def test_a_process_without_handlers_cannot_tick(client: TestClient, td: Treadle) -> None:
    td.enqueue("a")
    problem(client.post("/api/jobs/tick"), 501, "not-here")


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_tick_returns_within_its_bound_whatever_its_handlers_do(client: TestClient, td: Treadle, kind: str) -> None:
    """Jobs get the rest of the time. A job that has not ended then is released and costs no attempt."""
    stop = threading.Event()

    async def slow() -> None:
        await asyncio.sleep(60)

    def slow_thread() -> None:
        stop.wait(60)

    job = td.job(type="slow")(slow if kind == "async" else slow_thread).enqueue()
    began = time.monotonic()
    report = client.post("/api/jobs/tick", json={"max_seconds": 0.5}).json()
    took = time.monotonic() - began
    stop.set()
    assert took < 0.5 + SLACK
    assert (report["ran"], report["released"]) == (1, 1)
    left = td.get(job.id)
    assert left is not None
    assert (left.status, left.attempts) == (Status.PENDING, 0)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_many_callers_run_each_job_once_and_respect_every_limit(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each caller is an app of its own, as each would be in a process of its own."""
    url = f"sqlite:///{tmp_path}/jobs.db" if store == "sqlite" else request.getfixturevalue("postgres_url")
    ran: Counter[tuple[str, int]] = Counter()
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    lock = threading.Lock()

    def note(type: str, n: int) -> None:
        with lock:
            ran[(type, n)] += 1
            running[type] += 1
            most[type] = max(most[type], running[type])
        time.sleep(0.002)
        with lock:
            running[type] -= 1

    def app() -> Treadle:
        td = Treadle(url)
        td.job(type="free")(lambda n: note("free", n))
        td.job(type="limited", concurrency=2)(lambda n: note("limited", n))
        td.job(type="alone", concurrency=1)(lambda n: note("alone", n))
        return td

    types = ("free", "limited", "alone")
    apps = [app() for _ in range(CALLERS)]
    wanted = [apps[0].request(type, {"n": n}) for n in range(60) for type in types]
    apps[0].enqueue_many(wanted)
    clients = [client_of(td, "tick") for td in apps]

    def call(client: TestClient) -> int:
        total = 0
        while (report := client.post("/api/jobs/tick", json={"max_jobs": 25, "max_seconds": 10}).json())["ok"]:
            total += report["completed"]
            if not report["next_due_at"]:
                return total
        raise AssertionError(report)

    with ThreadPoolExecutor(CALLERS) as pool:
        totals = list(pool.map(call, clients))
    assert set(ran.values()) == {1}
    assert len(ran) == sum(totals) == len(wanted)
    assert most["alone"] == 1
    assert most["limited"] <= 2
    assert apps[0].workers() == []
    for td in apps:
        td.close()
