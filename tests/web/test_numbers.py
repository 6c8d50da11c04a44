"""How many, over time, and for Prometheus."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.web.conftest import Connect
from windlass import Windlass
from windlass.testing import ManualClock
from windlass.web.meter import Meter


@pytest.fixture
def ran(wl: Windlass) -> Windlass:
    """Three that completed, two of them acme's, one that failed, and one that waits."""

    @wl.job
    def good() -> None: ...

    @wl.job(max_attempts=1)
    def bad() -> None:
        raise RuntimeError("no")

    for tenant in ("acme", "acme", "umbrella"):
        good.using(tenant=tenant).enqueue()
    bad.using(tenant="acme").enqueue()
    wl.tick()
    wl.enqueue("later", delay=3600)
    return wl


def test_counts_are_grouped_as_asked(client: TestClient, ran: Windlass) -> None:
    def rows(**params: str) -> set[tuple[object, ...]]:
        return {tuple(row.values()) for row in client.get("/api/stats", params=params).json()["items"]}

    assert rows() == {("completed", 3), ("failed", 1), ("pending", 1)}
    assert rows(group_by="type,status") == {("good", "completed", 3), ("bad", "failed", 1), ("later", "pending", 1)}
    assert rows(group_by="tenant", q="status:completed") == {("acme", 2), ("umbrella", 1)}
    assert client.get("/api/stats", params={"group_by": "colour"}).status_code == 400


def test_of_many_groups_the_largest_are_listed(client: TestClient, wl: Windlass) -> None:
    jobs = [wl.request("a", tenant=f"t{n}") for n in range(205)]
    wl.enqueue_many([*jobs, wl.request("a", tenant="t7"), wl.request("a", tenant="t7")])
    answer = client.get("/api/stats", params={"group_by": "tenant"}).json()
    assert answer["items"][0] == {"tenant": "t7", "count": 3}
    assert (len(answer["items"]), answer["other"]) == (200, {"groups": 5, "count": 5})


def test_metrics_are_what_was_run(client: TestClient, connect: Connect, ran: Windlass) -> None:
    answer = client.get("/api/metrics", params={"window": "1h", "step": "60", "group_by": "type,tenant"}).json()
    runs: Counter[tuple[str, str, str]] = Counter()
    for item in answer["items"]:  # the clock may have passed a minute meanwhile
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
def test_metrics_that_would_be_too_much_are_refused(client: TestClient, params: dict[str, str]) -> None:
    assert client.get("/api/metrics", params=params).status_code == 400


def test_queues_tell_what_waits(client: TestClient, ran: Windlass) -> None:
    lanes = {lane["type"]: lane for lane in client.get("/api/queues").json()["items"]}
    assert (lanes["later"]["scheduled"], lanes["good"]["completed"], lanes["bad"]["failed"]) == (1, 3, 1)
    assert lanes["later"]["next_due"] is not None


def test_prometheus_reads_gauges_and_counters(client: TestClient, ran: Windlass) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'windlass_jobs{queue="default",type="good",status="completed"} 3' in lines
    assert 'windlass_jobs{queue="default",type="later",status="scheduled"} 1' in lines
    assert "windlass_workers 0" in lines
    assert 'windlass_runs_total{type="good"} 3' in lines
    assert 'windlass_failures_total{type="bad"} 1' in lines
    sample = re.compile(r'[a-z_]+(\{[a-z]+="(?:[^"\\]|\\.)*"(,[a-z]+="(?:[^"\\]|\\.)*")*\})? -?[0-9.e+-]+')
    assert all(line.startswith("# ") or sample.fullmatch(line) for line in lines)


def test_prometheus_is_not_led_astray_by_names(client: TestClient, wl: Windlass) -> None:
    wl.enqueue('a"} 1\nwindlass_workers 99\n\\')
    lines = client.get("/metrics").text.splitlines()
    assert "windlass_workers 99" not in lines
    assert 'windlass_jobs{queue="default",type="a\\"} 1\\nwindlass_workers 99\\n\\\\",status="queued"} 1' in lines


def test_counters_only_go_up_however_long_they_run(tmp_path: Path) -> None:
    time = ManualClock()
    wl = Windlass(f"sqlite:///{tmp_path}/jobs.db", clock=time)

    @wl.job
    def good() -> None: ...

    meter = Meter(wl)
    for minutes in range(6):
        time.advance(60)
        good.enqueue()
        wl.tick()
        assert meter.totals()[("good", "runs")] == minutes + 1
        assert meter.totals()[("good", "runs")] == minutes + 1
    wl.close()


def test_health_is_open_and_says_nothing(connect: Connect, wl: Windlass) -> None:
    anybody = connect(None)
    assert anybody.get("/healthz").json() == {"ok": True}
    wl.store.open()
    assert anybody.get("/readyz").json() == {"ok": True, "schema": wl.store.newest_schema()}


def test_not_ready_without_a_database(tmp_path: Path) -> None:
    wl = Windlass(f"sqlite:///{tmp_path}/none/jobs.db")
    client = TestClient(wl.asgi(auth=lambda request: None), raise_server_exceptions=False)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert str(tmp_path) not in answer.text
    assert client.get("/healthz").status_code == 200
