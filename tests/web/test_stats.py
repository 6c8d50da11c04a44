"""Counts, metrics over time, and Prometheus."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.web.conftest import Connect
from treadle import Treadle
from treadle.testing import ManualClock
from treadle.web.api.monitoring import Counters


@pytest.fixture
def ran(td: Treadle) -> Treadle:
    """Three jobs that completed, two of them of acme, one that failed, and one that waits."""

    @td.job
    def good() -> None: ...

    @td.job(max_attempts=1)
    def bad() -> None:
        raise RuntimeError("no")

    for tenant in ("acme", "acme", "umbrella"):
        good.using(tenant=tenant).enqueue()
    bad.using(tenant="acme").enqueue()
    td.tick()
    td.enqueue("later", delay=3600)
    return td


def test_counts_are_grouped_by_the_requested_fields(client: TestClient, ran: Treadle) -> None:
    def rows(**params: str) -> set[tuple[object, ...]]:
        return {tuple(row.values()) for row in client.get("/api/stats", params=params).json()["items"]}

    assert rows() == {("completed", 3), ("failed", 1), ("pending", 1)}
    assert rows(group_by="type,status") == {("good", "completed", 3), ("bad", "failed", 1), ("later", "pending", 1)}
    assert rows(group_by="tenant", q="status:completed") == {("acme", 2), ("umbrella", 1)}
    assert client.get("/api/stats", params={"group_by": "colour"}).status_code == 400


def test_if_there_are_many_groups_the_largest_are_listed(client: TestClient, td: Treadle) -> None:
    jobs = [td.request("a", tenant=f"t{n}") for n in range(205)]
    td.enqueue_many([*jobs, td.request("a", tenant="t7"), td.request("a", tenant="t7")])
    answer = client.get("/api/stats", params={"group_by": "tenant"}).json()
    assert answer["items"][0] == {"tenant": "t7", "count": 3}
    assert (len(answer["items"]), answer["other"]) == (200, {"groups": 5, "count": 5})


def test_metrics_equal_the_runs(client: TestClient, connect: Connect, ran: Treadle) -> None:
    answer = client.get("/api/metrics", params={"window": "1h", "step": "60", "group_by": "type,tenant"}).json()
    runs: Counter[tuple[str, str, str]] = Counter()
    for item in answer["items"]:  # the clock may have passed a minute since then
        for kind in ("runs", "failures"):
            runs[(item["group"]["type"], item["group"]["tenant"], kind)] += item[kind]
    assert +runs == {
        ("good", "acme", "runs"): 2,
        ("good", "umbrella", "runs"): 1,
        ("bad", "acme", "runs"): 1,
        ("bad", "acme", "failures"): 1,
    }
    mine = connect("read @umbrella").get("/api/metrics", params={"group_by": ""}).json()["items"]
    assert [(item["group"], item["runs"]) for item in mine] == [({}, 1)]


@pytest.mark.parametrize(
    "params",
    [{"window": "x"}, {"window": "1s"}, {"step": "61"}, {"step": "0"}, {"window": "100d", "step": "60"}],
    ids=str,
)
def test_a_request_for_too_many_metrics_is_refused(client: TestClient, params: dict[str, str]) -> None:
    assert client.get("/api/metrics", params=params).status_code == 400


def test_queues_show_what_waits(client: TestClient, ran: Treadle) -> None:
    queues = {row["type"]: row for row in client.get("/api/queues").json()["items"]}
    assert (queues["later"]["scheduled"], queues["good"]["completed"], queues["bad"]["failed"]) == (1, 3, 1)
    assert queues["later"]["next_due"] is not None


def test_prometheus_reads_gauges_and_counters(client: TestClient, ran: Treadle) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'treadle_jobs{queue="default",type="good",status="completed"} 3' in lines
    assert 'treadle_jobs{queue="default",type="later",status="scheduled"} 1' in lines
    assert "treadle_workers 0" in lines
    assert 'treadle_runs_total{type="good"} 3' in lines
    assert 'treadle_completed_total{type="good"} 3' in lines
    assert 'treadle_failures_total{type="bad"} 1' in lines
    sample = re.compile(r'[a-z_]+(\{[a-z]+="(?:[^"\\]|\\.)*"(,[a-z]+="(?:[^"\\]|\\.)*")*\})? -?[0-9.e+-]+')
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in lines)


def test_the_queries_of_the_docs_fit_the_types_of_the_metrics(client: TestClient, ran: Treadle) -> None:
    """For a gauge, rate() and increase() treat every fall as a restart. For a counter, delta() treats none as one."""
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", client.get("/metrics").text, flags=re.MULTILINE))
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")
    queries = "\n".join(re.findall(r"expr: (.+)", page))
    used = re.findall(r"\b(\w+)\((treadle_\w+)(?:{[^}]*})?\[", queries)
    assert len(used) >= 4
    needed = {"rate": "counter", "irate": "counter", "increase": "counter", "delta": "gauge", "deriv": "gauge"}
    assert [(function, name) for function, name in used if types[name] != needed[function]] == []
    assert set(re.findall(r"treadle_\w+", page)) <= types.keys()


def test_names_are_escaped_for_prometheus(client: TestClient, td: Treadle) -> None:
    td.enqueue('a"} 1\ntreadle_workers 99\n\\')
    lines = client.get("/metrics").text.splitlines()
    assert "treadle_workers 99" not in lines
    assert 'treadle_jobs{queue="default",type="a\\"} 1\\ntreadle_workers 99\\n\\\\",status="queued"} 1' in lines


def test_counters_never_go_down(tmp_path: Path) -> None:
    time = ManualClock()
    td = Treadle(f"sqlite:///{tmp_path}/jobs.db", clock=time)

    @td.job
    def good() -> None: ...

    counters = Counters(td)
    for minutes in range(6):
        time.advance(60)
        good.enqueue()
        td.tick()
        assert counters.totals()[("good", "runs")] == minutes + 1
        assert counters.totals()[("good", "runs")] == minutes + 1
    td.close()


def test_health_is_public_and_has_no_details(connect: Connect, td: Treadle) -> None:
    anybody = connect(None)
    assert anybody.get("/healthz").json() == {"ok": True}
    td.store.open()
    assert anybody.get("/readyz").json() == {"ok": True, "schema": td.store.newest_schema()}


def test_readiness_fails_without_a_database(tmp_path: Path) -> None:
    td = Treadle(f"sqlite:///{tmp_path}/none/jobs.db")
    client = TestClient(td.asgi(auth=lambda request: None), raise_server_exceptions=False)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert str(tmp_path) not in answer.text
    assert client.get("/healthz").status_code == 200
