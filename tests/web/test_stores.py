"""The API, pages and commands that must agree, on every database."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from tests import stores
from tests.eventually import eventually
from tests.web.conftest import HERE, OURS, client_of
from tests.web.test_bulk import ended
from treadle import Snooze, Treadle, api_tokens, clock
from treadle.cli import cli
from treadle.diagnosis import is_alive
from treadle.stores.base import WorkerRow
from treadle.stores.rows import Token
from treadle.web.auth import nobody
from treadle.web.broadcaster import Broadcaster


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "url")


def test_a_day_of_a_program_and_its_operator(td: Treadle) -> None:
    @td.job(max_attempts=1)
    def work(n: int) -> int:
        if n % 2:
            raise RuntimeError("odd")
        return n

    client = client_of(td, "manage")
    body = [{"type": "work", "payload": {"n": n}, "tenant": "acme"} for n in range(6)]
    first, again = (client.post("/api/jobs", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert client.post("/api/jobs/tick").json()["ran"] == 6
    failed = client.get("/api/jobs", params={"q": "status:failed payload.n:1,3,5 tenant:acme"}).json()
    assert failed["total"] == {"value": 3, "relation": "eq"}
    started = client.post("/api/jobs/bulk", json={"action": "retry", "filter": "status:failed", "expected_count": 3})
    assert ended(client, started.json()["operation_id"])["done"] == 3
    assert client.get("/api/stats").json()["exact"] is True
    counts = {row["status"]: row["count"] for row in client.get("/api/stats").json()["items"]}
    assert counts == {"completed": 3, "pending": 3}
    runs = client.get("/api/metrics", params={"group_by": "tenant", "step": "3600", "window": "2h"}).json()["items"]
    assert sum(item["runs"] for item in runs) == 6
    assert 'treadle_runs_total{type="work"} 6' in client.get("/metrics").text
    assert client.get("/readyz").status_code == 200
    assert [row["action"] for row in client.get("/api/audit").json()["items"]] == ["retry", "tick", "enqueue"]
    assert client.get("/api/queues").json()["items"][0]["queued"] == 3
    assert client.get("/api/failures").json()["items"] == []


def test_a_snoozed_run_is_shown_and_is_neither_a_success_nor_a_failure(td: Treadle) -> None:
    """The provider is ready at the third poll: one job completed, in three runs."""
    runs: list[int] = []

    @td.job
    def poll() -> str:
        runs.append(1)
        if len(runs) < 3:
            raise Snooze(0.001)
        return "ready"

    job, client = poll.enqueue(), client_of(td, "manage")
    for ran in (1, 2, 3):
        eventually(lambda ran=ran: td.tick(max_jobs=1).ran == 1 and len(runs) == ran)  # type: ignore[misc]
        if ran == 2:
            assert "snoozed twice" in client.get("/jobs").text
    assert td.counts() == [{"status": "completed", "count": 1}]
    page = client.get(f"/jobs/{job.id}").text
    assert "<dt>Snoozed</dt><dd>twice</dd>" in page
    assert "Snoozed twice while it waited" in page
    assert "<small>1 in 1h</small>" in client.get("/").text
    insights = client.get("/insights?window=1h").text
    assert 'data-testid="total-runs">3<' in insights
    assert "<dt>Reliability</dt><dd><strong>100 %</strong>" in insights
    assert '<b class="num">1</b>' in insights.partition('id="chart-runs"')[2].partition("</figcaption>")[0]
    [row] = csv.DictReader(io.StringIO(client.get("/insights.csv?window=90d").text))
    assert (row["runs"], row["completed"], row["failures"]) == ("3", "1", "0")


def test_errors_of_retrying_jobs_are_among_the_failures(td: Treadle) -> None:
    client, job = client_of(td, "manage"), td.enqueue("mail")
    td.claim(1)[0].fail("ConnectionError: refused", retry_in=3600)
    for path in ("/", "/failures"):
        group = client.get(path).text.partition('data-testid="group"')[2].partition("</tr>")[0]
        assert f'href="/jobs/{job.id}"' in group
        assert 'data-label="Retrying">1<' in group
        assert "retry-group" not in group, "it is retried by itself"
    assert "mail" in client.get("/jobs?q=status:failed,retrying type:mail error:ConnectionError").text


def test_tokens(td: Treadle) -> None:
    client, secret = TestClient(td.asgi(auth=nobody), base_url=HERE, headers=OURS), api_tokens.new_secret()
    td.store.add_token(Token(hash=api_tokens.hash_of(secret), name="me", scopes=("read",), tenant="acme"))
    td.enqueue("a", tenant="umbrella")
    client.headers["Authorization"] = f"Bearer {secret}"
    assert client.get("/api/jobs").json()["items"] == []
    assert client.get("/api/workers").status_code == 403


def test_pages_get_hints_of_changes_by_others(td: Treadle) -> None:
    other = Treadle(td.store.url)
    td.store.open()

    async def listen() -> list[float]:
        broadcaster, times = Broadcaster(td), []
        subscriber = broadcaster.subscribe()
        for pending in (1, 2, 3):  # the best of them, because the machine is shared
            await asyncio.to_thread(other.enqueue, "a")
            began = time.monotonic()
            while f'{{"pending":{pending}}}' not in str(hint := await subscriber.next(10)):
                assert hint is not None
            times.append(time.monotonic() - began)
        broadcaster.unsubscribe(subscriber)
        broadcaster.close()
        return times

    assert min(asyncio.run(listen())) < 3
    other.close()


# Live workers


@pytest.mark.parametrize(("silent", "live"), [(10, True), (30, False)])
def test_the_api_and_the_command_line_agree_on_which_workers_are_alive(url: str, silent: int, live: bool) -> None:
    """A worker beats every 5 seconds."""
    moments = [clock.now()]
    td = Treadle(url, clock=lambda: moments[0])
    td.store.register(WorkerRow(id="w", name="host-1", concurrency=1))
    moments[0] += silent * clock.SECOND

    web = TestClient(td.asgi(auth=lambda request: "read"), base_url="http://localhost")
    [worker] = web.get("/api/workers").json()["items"]

    assert (worker["live"], worker["silent_for"]) == (live, silent)
    assert is_alive(td.workers()[0], td.store.now()) is live


@pytest.mark.parametrize(("silent", "live"), [(10, True), (40, False)])
def test_all_agree_on_whether_a_worker_is_alive(url: str, silent: int, live: bool) -> None:
    """`why`, `problems`, the command line and the API, at the same moment."""
    before = Treadle(url, clock=lambda: clock.now() - silent * clock.SECOND)
    job = before.enqueue("mail")
    before.store.register(WorkerRow(id="w", name="host-1", concurrency=1, types=("mail",)))
    td = Treadle(url)
    web = TestClient(td.asgi(auth=lambda request: "read"), base_url="http://localhost")

    def command(*words: str) -> Any:
        return json.loads(CliRunner().invoke(cli, [*words, "--db", url, "--json"]).stdout)

    assert ("no_worker" in [problem.code for problem in td.problems()]) is not live
    assert (td.why(job.id).reasons[0].code == "no_worker") is not live
    assert (command("jobs", "why", job.id)["reasons"][0]["code"] == "no_worker") is not live
    assert command("workers")["items"][0]["live"] is live
    assert command("top")["workers"][0]["live"] is live
    assert command("stats")["workers"] == {"live": int(live), "lost": int(not live)}
    assert web.get("/api/workers").json()["items"][0]["live"] is live
    assert ("1 alive" in web.get("/workers").text) is live
    assert f"treadle_workers {int(live)}" in web.get("/metrics").text.splitlines()
