"""Podcasts are imported by a worker inside the web server: every requirement of the example."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from examples.demos.podcast_import import make_feeds
from examples.podcast_import import jobs
from examples.podcast_import.jobs import podcast_import, td
from examples.podcast_import.web import app
from tests import stores
from tests.eventually import eventually
from tests.examples.harness import KILLS, Example, counts, kill_again_and_again, signed_in
from tests.servers.postgres import free_port
from treadle import Treadle
from treadle.stores import open_store
from treadle.testing import ManualClock, drain, temporary


@pytest.fixture
def feeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(jobs, "FEEDS", tmp_path)
    monkeypatch.setattr(jobs, "PACE", 0)
    return tmp_path


@pytest.fixture
def clock(feeds: Path) -> Iterator[ManualClock]:
    with temporary(td, url=f"sqlite:///{feeds}/podcasts.db") as clock:
        yield clock


@pytest.fixture
def client(clock: ManualClock) -> TestClient:
    """Requests without the server's lifespan: no worker runs."""
    return TestClient(app)


def rows(query: str) -> list[Any]:
    return stores.rows(td.store.url, query)


def imported() -> dict[str, tuple[int, int]]:
    """Each podcast: how often it was imported, and with how many episodes."""
    found = rows("SELECT id, imports, (SELECT count(*) FROM episodes WHERE podcast_id = id) FROM podcasts")
    return {id: (imports, episodes) for id, imports, episodes in found}


class Gate:
    """Handlers wait in it until it opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()
        self._read = jobs.read_feed
        monkeypatch.setattr(jobs, "read_feed", self._wait)

    def _wait(self, path: Path) -> Any:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            assert self.open.wait(60)
            return self._read(path)
        finally:
            with self._lock:
                self.running -= 1


# Problem


@pytest.mark.parametrize(("kind", "kills"), [("sqlite", KILLS), ("libsql", KILLS // 5)])
def test_no_job_is_lost_if_the_server_restarts_or_crashes(
    kind: str, kills: int, tmp_path: Path, port: int, request: pytest.FixtureRequest
) -> None:
    """kill -9 of the server at 20 random moments. What was answered is imported, and once.

    Fewer on libSQL, whose server lets the dead hold the write lock for five seconds.
    """
    url = f"sqlite:///{tmp_path}/podcasts.db" if kind == "sqlite" else request.getfixturevalue("libsql_url")
    feeds = make_feeds(tmp_path / "feeds", 9 * kills, 3)
    answered: list[str] = []
    watching = Treadle(url)
    environment = {"TREADLE_URL": url, "FEEDS": str(tmp_path / "feeds"), "PACE": "0.004"}
    with Example("examples.podcast_import.web", port=port, **environment) as server:

        def more(kill: int) -> None:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                for podcast in feeds[9 * kill : 9 * kill + 9]:
                    client.post("/podcasts/import", json={"podcast_id": podcast}).raise_for_status()
                    answered.append(podcast)

        kill_again_and_again(server, watching, more, kills)
    assert counts(watching) == {"completed": len(answered)}
    watching.close()
    assert sorted(stores.rows(url, "SELECT id, imports FROM podcasts")) == sorted((id, 1) for id in answered)
    assert set(stores.rows(url, "SELECT count(*) FROM episodes GROUP BY podcast_id")) == {(3,)}


def test_a_restart_in_the_middle_loses_nothing(tmp_path: Path, port: int) -> None:
    """SIGTERM, as at a deploy: what runs may end, the rest waits for the next server, and no attempt is burnt."""
    url = f"sqlite:///{tmp_path}/podcasts.db"
    feeds = make_feeds(tmp_path / "feeds", 12, 5)
    watching = Treadle(url)
    environment = {"TREADLE_URL": url, "FEEDS": str(tmp_path / "feeds"), "PACE": "0.1"}
    with Example("examples.podcast_import.web", port=port, **environment) as server:
        server.start()
        watching.enqueue_many([watching.request("podcast_import", {"podcast_id": feed}) for feed in feeds])
        eventually(lambda: counts(watching).get("processing", 0) == 3)
        server.kill(signal.SIGTERM)
        assert counts(watching).keys() <= {"pending", "completed"}
        server.start()
        eventually(lambda: counts(watching) == {"completed": 12})
    assert {job.attempts for job in watching.jobs()} == {1}
    watching.close()


def test_a_failed_import_is_tried_again(client: TestClient, clock: ManualClock, feeds: Path) -> None:
    job = podcast_import.enqueue(podcast_id="podcast-00")
    assert drain(td, raising=False).retried == 1  # there is no such file yet
    make_feeds(feeds, 1, 2)
    clock.advance(1)
    assert drain(td).completed == 1
    assert client.get(f"/podcasts/import/{job.id}").json()["attempts"] == 2
    assert imported() == {"podcast-00": (1, 2)}


def test_a_file_that_is_not_a_feed_is_not_tried_again(clock: ManualClock, feeds: Path) -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><rss><channel><title>&b;</title></channel></rss>'
    texts = {
        "no-xml": "not at all",
        "html": "<html/>",
        "bomb": bomb,
        "utf-16-bomb": bomb,
        "deep": "<a>" * 30 + "</a>" * 30,
        "long": f"<rss><channel><title>{'x' * 5_000_000}</title></channel></rss>",
        "nameless": "<rss><channel><item><title>no guid, no file</title></item></channel></rss>",
    }
    for name, text in texts.items():
        (feeds / f"{name}.xml").write_text(text, "utf-16" if name == "utf-16-bomb" else "utf-8")
        podcast_import.enqueue(podcast_id=name)
    assert drain(td, raising=False).failed == len(texts)
    errors = {job.payload["podcast_id"]: job.error or "" for job in td.jobs(status="failed")}
    assert "DOCTYPE" in errors["bomb"]
    assert "DOCTYPE" in errors["utf-16-bomb"]
    assert "not XML" in errors["no-xml"]
    assert "deeper" in errors["deep"]
    assert "longer" in errors["long"]


def test_a_real_rss_file_becomes_rows(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "FEEDS", Path(jobs.__file__).parent / "feeds")
    podcast_import.enqueue(podcast_id="harbour-radio")
    drain(td)
    assert rows("SELECT title, imports FROM podcasts") == [("Harbour Radio", 1)]
    assert rows("SELECT guid, title, published FROM episodes ORDER BY audio") == [
        ("https://example.org/harbour-radio/1.mp3", "Bells, horns, lights", ""),
        ("harbour-radio-2", "Why ropes have three strands", "2023-01-18T12:00:00+00:00"),
        ("harbour-radio-3", "The treadle & its pawl", "2023-01-25T12:00:00+01:00"),
    ]


def test_the_status_of_an_import_is_visible(client: TestClient, clock: ManualClock, feeds: Path) -> None:
    make_feeds(feeds, 1, 2)
    id = client.post("/podcasts/import", json={"podcast_id": "podcast-00"}).json()["job"]
    assert client.get(f"/podcasts/import/{id}").json()["status"] == "pending"
    assert client.get("/podcasts/import").json() == {"pending": 1}
    drain(td)
    answer = client.get(f"/podcasts/import/{id}").json()
    assert answer["status"] == "completed"
    assert answer["result"] == {"title": "podcast-00", "episodes": 2}
    assert client.get("/podcasts/import").json() == {"completed": 1}
    assert client.get("/podcasts/import/no-such-job").status_code == 404


def test_the_dashboard_shows_the_imports(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    podcast_import.enqueue(podcast_id="podcast-00")
    here = signed_in(app, caplog)
    assert here.get("/dashboard/").status_code == 200
    assert [job["type"] for job in here.get("/dashboard/api/jobs").json()["items"]] == ["podcast_import"]
    assert TestClient(app).get("/dashboard/").status_code == 401


# Solution


def test_imports_run_on_a_real_libsql_server(libsql_url: str, feeds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The existing Turso database: nothing changes but the URL."""
    make_feeds(feeds, 5, 2)
    store, before = open_store(libsql_url), td.store
    td._use(store)
    try:
        with TestClient(app) as client:
            for number in range(5):
                client.post("/podcasts/import", json={"podcast_id": f"podcast-{number:02}"})
            eventually(lambda: client.get("/podcasts/import").json() == {"completed": 5})
        assert imported() == {f"podcast-{number:02}": (1, 2) for number in range(5)}
    finally:
        td._use(before)
        store.close()


def test_a_new_type_of_job_is_registered_by_a_decorator(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(td.registry, "_functions", dict(td.registry._functions))  # undone afterwards

    @td.job(concurrency=1)
    def transcription(podcast_id: str) -> str:
        return podcast_id

    job = transcription.enqueue(podcast_id="p1")
    drain(td)
    assert td.result(job.id) == "p1"


def test_a_job_has_every_column_of_the_table(clock: ManualClock, feeds: Path) -> None:
    """`retries` are `attempts` here, of which the first is no retry."""
    job = podcast_import.enqueue(podcast_id="podcast-00")
    clock.advance(1)
    drain(td, raising=False)
    make_feeds(feeds, 1, 1)
    clock.advance(1)
    drain(td)
    columns = "id, type, payload, status, created_at, started_at, completed_at, error, attempts"
    [row] = rows(f"SELECT {columns} FROM treadle_job")
    assert row[:4] == (job.id, "podcast_import", '{"podcast_id":"podcast-00"}', "completed")
    assert row[4] < row[5] <= row[6]  # created, started, completed
    assert row[7:] == (None, 2)
    assert (
        sorted([job.id, podcast_import.enqueue(podcast_id="later").id])[0] == job.id
    )  # like ULIDs, ids grow with time


def test_the_registry_maps_a_type_to_its_handler_and_concurrency() -> None:
    registered = td.registry["podcast_import"]
    assert registered.handler is podcast_import.__wrapped__  # type: ignore[attr-defined]
    assert registered.policy.concurrency == 3


def test_the_route_enqueues_and_does_not_import(client: TestClient, feeds: Path) -> None:
    make_feeds(feeds, 1, 1)
    answer = client.post("/podcasts/import", json={"podcast_id": "podcast-00"})
    assert answer.status_code == 202
    assert answer.json()["status"] == "pending"
    assert td.jobs(type="podcast_import")[0].payload == {"podcast_id": "podcast-00"}
    assert client.post("/podcasts/import", json={"podcast_id": "podcast-00"}).json()["job"] == answer.json()["job"]
    assert client.post("/podcasts/import", json={"podcast_id": "../../etc/passwd"}).status_code == 422


def test_the_worker_lives_in_the_web_server(clock: ManualClock, feeds: Path) -> None:
    make_feeds(feeds, 1, 2)
    assert td.workers() == []
    with TestClient(app) as client:
        [worker] = td.workers()
        assert worker.types == ("podcast_import",)
        client.post("/podcasts/import", json={"podcast_id": "podcast-00"})
        eventually(lambda: client.get("/podcasts/import").json() == {"completed": 1})
    assert td.workers() == []


# The algorithm, and concurrency control


def test_at_most_three_imports_run_at_once_over_all_servers(tmp_path: Path, port: int) -> None:
    """Two servers with ten slots each. The database is asked all the time how many are processing."""
    url = f"sqlite:///{tmp_path}/podcasts.db"
    feeds = make_feeds(tmp_path / "feeds", 30, 4)
    watching = Treadle(url)
    environment = {"TREADLE_URL": url, "FEEDS": str(tmp_path / "feeds"), "PACE": "0.05"}
    with (
        Example("examples.podcast_import.web", port=port, **environment) as one,
        Example("examples.podcast_import.web", port=free_port(), **environment) as two,
    ):
        one.start()
        two.start()
        watching.enqueue_many([watching.request("podcast_import", {"podcast_id": feed}) for feed in feeds])
        most = 0
        while (seen := counts(watching)) != {"completed": 30}:
            most = max(most, seen.get("processing", 0))
            assert seen.keys() <= {"pending", "processing", "completed"}
    watching.close()
    assert most == 3


def test_a_stuck_import_is_not_counted_and_is_reclaimed_after_five_minutes(clock: ManualClock, feeds: Path) -> None:
    """Three that hang fill the limit. Past five minutes a fourth may start, and so may they again."""
    for number in range(4):
        podcast_import.enqueue(podcast_id=f"podcast-{number:02}")
    publish()
    stuck = td.claim(3, types=["podcast_import"], lease=300)
    assert len(stuck) == 3
    clock.advance(299)
    assert td.claim(1, types=["podcast_import"]) == []
    clock.advance(7)
    [fourth] = td.claim(1, types=["podcast_import"])
    assert fourth.job.payload == {"podcast_id": "podcast-03"}
    assert td.rescue() == 3
    assert counts(td) == {"pending": 3, "processing": 1}


def publish() -> None:
    """Publish the limits, as a worker does when it starts."""
    td.store.publish([job_type.policy for job_type in td.registry.types.values()])


def test_a_running_import_is_stuck_after_five_minutes(
    clock: ManualClock, feeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's own claims have that deadline."""
    make_feeds(feeds, 1, 1)
    gate = Gate(monkeypatch)
    with TestClient(app) as client:
        client.post("/podcasts/import", json={"podcast_id": "podcast-00"})
        eventually(lambda: gate.running == 1)
        assert rows("SELECT (deadline - started_at) / 1000000 FROM treadle_leases") == [(300,)]
        gate.open.set()
        eventually(lambda: counts(td) == {"completed": 1})


def test_a_type_at_its_limit_does_not_keep_others_from_running(clock: ManualClock) -> None:
    for number in range(5):
        podcast_import.enqueue(podcast_id=f"podcast-{number:02}")
    td.enqueue("analytics", {})
    publish()
    claimed = td.claim(10)
    assert sorted(lease.job.type for lease in claimed) == ["analytics", *["podcast_import"] * 3]


def test_two_concurrent_claims_never_get_the_same_job(clock: ManualClock) -> None:
    ids = {td.enqueue("analytics", {"n": n}).id for n in range(60)}
    claimed: list[str] = []

    def claim() -> None:
        while leases := td.claim(1):
            claimed.extend(lease.job.id for lease in leases)

    threads = [threading.Thread(target=claim) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == sorted(ids)


def test_running_imports_do_not_block_the_loop_and_other_slots_are_filled(
    clock: ManualClock, feeds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_feeds(feeds, 5, 1)
    gate = Gate(monkeypatch)
    with TestClient(app) as client:
        for number in range(5):
            client.post("/podcasts/import", json={"podcast_id": f"podcast-{number:02}"})
        eventually(lambda: gate.running == 3)
        assert client.get("/podcasts/import").json() == {"pending": 2, "processing": 3}  # it still answers
        gate.open.set()
        eventually(lambda: client.get("/podcasts/import").json() == {"completed": 5})
    assert gate.most == 3


def test_when_the_handler_ends_its_status_is_in_the_database(clock: ManualClock, feeds: Path) -> None:
    make_feeds(feeds, 1, 1)
    (feeds / "broken.xml").write_text("<html/>")
    podcast_import.enqueue(podcast_id="podcast-00")
    podcast_import.enqueue(podcast_id="broken")
    drain(td, raising=False)
    assert rows("SELECT status, error FROM treadle_job ORDER BY id") == [
        ("completed", None),
        ("failed", "broken: the file is not RSS: <html>"),
    ]


# Integration


def test_the_queue_can_be_worked_by_hand_enqueue_claim_complete_fail_counts(clock: ManualClock) -> None:
    for n in range(2):
        td.enqueue("analytics", {"n": n})
    first, second = td.claim(2, types=["analytics"])
    first.complete({"ok": True})
    second.fail("no luck", retry_in=None)
    assert td.result(first.job.id) == {"ok": True}
    assert {(row["type"], row["status"]): row["count"] for row in td.counts(("type", "status")) if row["count"]} == {
        ("analytics", "completed"): 1,
        ("analytics", "pending"): 1,
    }
