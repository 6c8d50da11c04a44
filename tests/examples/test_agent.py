"""The agent: worker processes, kill -9, an approval, and exact counts of the requests to the model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from examples.agent import service
from tests import stores
from tests.eventually import eventually
from tests.examples.harness import Example
from tests.servers.databases import Databases
from treadle import Job, Treadle

SAID = "Order o-2 is broken. I want my money back."
PLAN = ["plan", "search", "think", "look_up_order", "think#2", "check_stock", "think#3"]
"""The steps of every call."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "url", stores.KINDS[:2])


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        databases: Databases = request.getfixturevalue("postgres_databases")
        return databases.reused(stores.make_tables)
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def td(url: str) -> Iterator[Treadle]:
    with closing(Treadle(url)) as td:
        yield td


class Held(service.Service):
    """Until the worker that asked is dead, it does not look into the stock."""

    reached, killed = threading.Event(), threading.Event()

    def respond(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.path == "/shop/stock":
            self.reached.set()
            assert self.killed.wait(60)
        return super().respond(body)


@pytest.fixture
def worker(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Example]:
    """Its service is in this process, with a new journal."""
    monkeypatch.setattr(service, "journal", service.Journal())
    monkeypatch.setattr(Held, "reached", threading.Event())
    monkeypatch.setattr(Held, "killed", threading.Event())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Held)
    threading.Thread(target=server.serve_forever).start()
    environment = {"TREADLE_URL": url, "SERVICE_URL": f"http://127.0.0.1:{server.server_port}"}
    with Example("examples.agent.jobs", **environment, BACKOFF_SECONDS="0.05", APPROVAL_SECONDS="3600") as worker:
        yield worker
    Held.killed.set()
    server.shutdown()
    server.server_close()


def call(td: Treadle, said: str = SAID, tenant: str = "acme") -> Job:
    return td.enqueue("answer_call", {"said": said}, tenant=tenant, subject="c-7")


def until(td: Treadle, job: Job, status: str) -> Job:
    def reached() -> Job | None:
        found = td.get(job.id)
        assert found is not None
        assert found.status != "failed", found.error
        return found if found.status == status else None

    found: Job = eventually(reached)  # type: ignore[assignment]
    return found


def steps(td: Treadle, job: Job) -> list[str]:
    return [step.name for step in td.steps(job.id)]


def asked() -> dict[str, list[int]]:
    """How often each request was made, by its path. Searches run at the same time, so their order may differ."""
    found: dict[str, list[int]] = {}
    for request, count in service.journal.asked.items():
        found.setdefault(request.partition(" ")[0], []).append(count)
    return {path: sorted(counts) for path, counts in found.items()}


def changed(path: str) -> list[dict[str, Any]]:
    return [json.loads(text) for done, text in service.journal.done.items() if done.startswith(path)]


def test_no_step_that_is_stored_runs_again(td: Treadle, worker: Example) -> None:
    job = call(td)
    worker.start()
    assert Held.reached.wait(60)
    before = steps(td, job)
    worker.kill()
    Held.killed.set()
    worker.start()

    assert until(td, job, "blocked").attempts == 2, "the kill and a 503"
    assert td.signal("approve:c-7", True, tenant="acme", by="ann").by == "ann"
    assert until(td, job, "completed").result == "refunded 12900"
    eventually(lambda: changed("/shop/reply"))

    assert before == PLAN[:5]
    assert steps(td, job) == [*PLAN, "approve:c-7", "refund"]
    assert asked() == {
        "/model/plan": [1],
        "/model/answer": [1, 1, 2],  # one was refused: 429
        "/shop/order": [1],
        "/model/move": [1, 1, 2],  # one was refused: 503
        "/shop/stock": [2],  # the worker died before it had the answer
        "/shop/refund": [1],
        "/shop/reply": [1],
    }
    assert changed("/shop/refund") == [{"order": "o-2", "cents": 12900}]


def test_a_call_that_waits_for_a_person_holds_no_worker(td: Treadle, worker: Example) -> None:
    Held.killed.set()
    job = call(td)
    worker.start()
    eventually(lambda: [wait.what for wait in td.waits(job.id) if not wait.met] == ["approve:c-7"])
    assert until(td, job, "blocked").worker_id is None
    assert td.jobs(status="processing").jobs == []
    worker.kill()
    td.signal("approve:c-7", True, tenant="globex")  # of another tenant
    td.signal("approve:c-7", False, tenant="acme", by="bob")
    td.signal("approve:c-7", True, tenant="acme", by="eve")  # too late
    worker.start()
    assert until(td, job, "completed").result == "handed over"
    eventually(lambda: changed("/shop/reply") == [{"call": "c-7", "text": "A colleague will call you back."}])
    assert changed("/shop/refund") == []
    assert steps(td, job) == [*PLAN, "approve:c-7"]


def test_searches_are_subjobs_of_the_call(td: Treadle, worker: Example) -> None:
    Held.killed.set()
    job = call(td, "When does order o-6 arrive?")
    worker.start()
    assert until(td, job, "completed").result == "answered"
    found = td.jobs(type="search").jobs
    assert [(one.origin, one.tenant, one.subject) for one in found] == [(job.id, "acme", "c-7")] * 3
    assert sum(one.snoozes for one in found) == 1, "a 429 costs no attempt"
