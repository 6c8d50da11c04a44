"""Jobs of organizations that run when a client ticks: every requirement of the example.

One file, because the table in examples/README.md lists its tests in this order.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient

from examples.demos.org_jobs import token
from examples.org_jobs import cron, jobs, metering
from examples.org_jobs.jobs import call_partner, make_tables, td
from examples.org_jobs.repository import JobsRepository
from examples.org_jobs.rules import RUNS, can_retry, get_backoff_delay_ms, make_job_dedupe_key
from examples.org_jobs.web import app
from tests import stores
from tests.eventually import eventually
from tests.examples.harness import KILLS, Example, counts, signed_in
from treadle import Job, LeaseLost, Treadle
from treadle.api_tokens import hash_of, new_secret
from treadle.stores import open_store
from treadle.stores.rows import Token
from treadle.testing import ManualClock, drain

STATUSES = ("queued", "running", "success", "failed")
OURS = {"pending": "queued", "processing": "running", "completed": "success", "failed": "failed"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "url", stores.KINDS[:2])


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue("postgres_databases").reused(stores.make_tables)
    return found


@pytest.fixture
def clock(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManualClock]:
    monkeypatch.setattr(jobs, "WORK", 0)
    monkeypatch.setattr(jobs, "URL", url)
    clock, before = ManualClock(), td.store
    td._use(open_store(url, clock=clock, **stores.quick(url)))
    make_tables()
    yield clock
    td.close()
    td._use(before)


@pytest.fixture
def repository(clock: ManualClock) -> JobsRepository:
    return JobsRepository(td)


def client(*scopes: str) -> TestClient:
    """Who has a token with these scopes."""
    secret = new_secret()
    td.store.add_token(Token(name=secret, hash=hash_of(secret), scopes=scopes))
    return TestClient(app, headers={"Authorization": f"Bearer {secret}"})


def get(id: str) -> Job:
    job = td.get(id)
    assert job is not None
    return job


def status(id: str) -> str:
    """By the application's names."""
    return OURS[get(id).status]


def waits(id: str, clock: ManualClock) -> float:
    return round((get(id).run_at - clock.now()).total_seconds(), 3)


# 1. Table shape


def test_a_job_has_every_column_of_the_table(url: str, repository: JobsRepository) -> None:
    """`org_id` is `tenant`, `next_run_at` is `run_at`, `last_error` is `error`; without an org, `tenant` is ''."""
    job = get(repository.enqueue("index_document", org_id="acme", payload={"document": "d", "text": "a b"}))
    columns = ("type", "tenant", "payload", "status", "attempts", "error")
    values = tuple(getattr(job, name) for name in columns)
    assert values == ("index_document", "acme", {"document": "d", "text": "a b"}, "pending", 0, None)
    assert job.created_at == job.updated_at == job.run_at
    assert get(repository.enqueue("call_partner", payload={"partner": "p"})).tenant == ""
    [(shown,)] = stores.rows(url, f"SELECT count(*) FROM treadle_job WHERE id = '{job.id}'")
    assert shown == 1


def test_the_payload_is_an_empty_object_by_default(repository: JobsRepository) -> None:
    assert get(repository.enqueue("of_another_process")).payload == {}


def test_the_four_statuses(repository: JobsRepository, clock: ManualClock) -> None:
    """`queued` also waits for a `next_run_at` in the future; `running` is claimed; the other two are for good."""
    later = repository.enqueue("call_partner", payload={"partner": "l"}, run_at=clock.now() + timedelta(hours=1))
    good, bad = (repository.enqueue("call_partner", payload={"partner": name}) for name in ("g", "b"))
    repository.claim(10)
    assert [status(id) for id in (later, good, bad)] == ["queued", "running", "running"]
    repository.mark_success(good)
    for _ in range(RUNS):
        repository.mark_failure(bad, "no")
        clock.advance(60)
        repository.claim(10, types=["call_partner"])
    assert [status(id) for id in (good, bad)] == ["success", "failed"]
    assert repository.claim(10) == []


def test_jobs_are_found_by_status_and_time_and_by_type_and_status(repository: JobsRepository) -> None:
    """The two indexes; that they are used is tests/conformance/postgres_plans and test_sqlite_plans.py."""
    for n in range(3):
        repository.enqueue("call_partner", payload={"partner": str(n)})
    repository.claim(1)
    found = {(row["type"], row["status"]): row["count"] for row in td.counts(("type", "status")) if row["count"]}
    assert found == {("call_partner", "pending"): 2, ("call_partner", "processing"): 1}
    assert len(td.jobs(type="call_partner", status="pending")) == 2


# 2. Backoff and retry rules


def test_get_backoff_delay_ms_is_1_1_2_4_8_at_most_60() -> None:
    delays = {attempts: get_backoff_delay_ms(attempts) for attempts in range(12)}
    assert [delays[attempts] for attempts in (0, 1, 2, 3, 4)] == [1000, 1000, 2000, 4000, 8000]
    assert [delays[attempts] for attempts in (5, 6, 7, 8, 11)] == [16_000, 32_000, 60_000, 60_000, 60_000]


def test_can_retry() -> None:
    """False for success and running; else only while attempts are left, of 5 by default."""
    for name in STATUSES:
        allowed = [can_retry(name, attempts) for attempts in range(7)]  # type: ignore[arg-type]
        assert allowed == [name in ("queued", "failed") and attempts < 5 for attempts in range(7)]
    assert can_retry("failed", 5, 6)
    assert not can_retry("failed", 1, 1)


def test_a_failed_job_is_queued_again_after_its_backoff_and_keeps_its_last_error(
    repository: JobsRepository, clock: ManualClock
) -> None:
    """The typical pattern, to the letter: `canRetry` sees the attempts before this one, so a job runs six times."""
    id = call_partner.enqueue(partner="gone", down_for=99).id
    waited = []
    while drain(td, raising=False).retried:
        assert status(id) == "queued"
        waited.append(waits(id, clock))
        clock.advance(waited[-1] - 0.001)
        assert drain(td).ran == 0
        clock.advance(0.001)
    assert waited == [get_backoff_delay_ms(attempts) / 1000 for attempts in (1, 2, 3, 4, 5)] == [1, 2, 4, 8, 16]
    job = get(id)
    assert (status(id), job.attempts, job.error) == ("failed", 6, "gone answers 503")


# 3. Dedupe keys


def test_make_job_dedupe_key() -> None:
    key = make_job_dedupe_key("send", "acme", {"b": [1, {"z": 1, "a": 2}], "a": "é"})
    assert key == 'send::acme::{"a":"é","b":[1,{"a":2,"z":1}]}'
    assert make_job_dedupe_key("send", None, {}) == "send::global::{}"
    assert make_job_dedupe_key("t", "o", {"a": 1, "b": 2}) == make_job_dedupe_key("t", "o", {"b": 2, "a": 1})


def test_a_queued_or_running_job_with_the_same_key_is_not_enqueued_again(
    repository: JobsRepository, clock: ManualClock
) -> None:
    def again() -> str:
        return repository.enqueue("call_partner", org_id="acme", payload={"partner": "p", "down_for": 0})

    first = again()
    assert again() == first
    repository.claim(1)
    assert again() == first
    repository.mark_failure(first, "no")
    assert again() == first
    clock.advance(1)
    repository.claim(1)
    repository.mark_success(first)
    assert again() != first
    assert repository.enqueue("call_partner", org_id="globex", payload={"partner": "p", "down_for": 0}) != first


def test_the_dedupe_key_has_a_column_with_an_index_that_makes_it_unique(url: str, repository: JobsRepository) -> None:
    """The database refuses the second one, not a look before the insert."""
    payload = {"document": "d", "text": "a"}
    keys = [repository.enqueue("index_document", org_id="acme", payload=payload) for _ in range(2)]
    rows = stores.rows(url, "SELECT tenant, key, id FROM treadle_dedupe")
    assert [(tenant, key, str(id)) for tenant, key, id in rows] == [
        ("acme", make_job_dedupe_key("index_document", "acme", payload), keys[0])
    ]


def test_a_flood_of_identical_jobs_is_one_job(url: str, repository: JobsRepository) -> None:
    found: list[str] = []

    def enqueue() -> None:
        found.append(repository.enqueue("call_partner", org_id="acme", payload={"partner": "p"}))

    threads = [threading.Thread(target=enqueue) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    assert len(set(found)) == 1


# 4. JobsRepository


def test_enqueue_takes_a_type_an_org_a_payload_and_a_time(repository: JobsRepository, clock: ManualClock) -> None:
    at = clock.now() + timedelta(minutes=5)
    id = repository.enqueue("call_partner", org_id="acme", payload={"partner": "p"}, run_at=at)
    assert (get(id).tenant, get(id).run_at) == ("acme", at)
    assert repository.claim(1) == []
    clock.advance(300)
    assert [job.id for job in repository.claim(1)] == [id]


def test_mark_success(repository: JobsRepository) -> None:
    id = repository.enqueue("call_partner", payload={"partner": "p"})
    repository.claim(1)
    repository.mark_success(id, {"answer": 200})
    assert (status(id), get(id).result) == ("success", {"answer": 200})
    with pytest.raises(LeaseLost):
        repository.mark_success(id)


def test_mark_failure_uses_backoff_and_can_retry(repository: JobsRepository, clock: ManualClock) -> None:
    id = repository.enqueue("call_partner", payload={"partner": "p"})
    waited = []
    for _ in range(6):
        assert [job.id for job in repository.claim(1)] == [id]
        repository.mark_failure(id, "no")
        waited.append(waits(id, clock))
        clock.advance(max(0, waited[-1]))
    assert waited[:5] == [1, 2, 4, 8, 16]
    assert (status(id), get(id).error) == ("failed", "no")


def test_a_caller_that_marks_too_late_has_lost_the_job_unless_it_sent_heartbeats(
    repository: JobsRepository, clock: ManualClock
) -> None:
    id = repository.enqueue("call_partner", payload={"partner": "p"})
    repository.claim(1, lease=60)
    clock.advance(50)
    repository.heartbeat(id, 60)
    clock.advance(50)
    assert td.rescue() == 0
    clock.advance(16)
    assert td.rescue() == 1
    with pytest.raises(LeaseLost):
        repository.mark_success(id)
    assert status(id) == "queued"


# 5. The tick endpoint


def test_post_api_jobs_tick_answers_ok(repository: JobsRepository) -> None:
    answer = client("tick").post("/api/jobs/tick")
    assert (answer.status_code, answer.json()["ok"], answer.json()["ran"]) == (200, True, 0)


def test_a_tick_needs_a_token_that_allows_it(repository: JobsRepository) -> None:
    bearer = {"Authorization": "Bearer td_guessed"}
    assert TestClient(app).post("/api/jobs/tick", headers=bearer).status_code == 401
    assert client("read").post("/api/jobs/tick").status_code == 403
    assert client("tick").get("/api/metrics").status_code == 403


def test_a_tick_claims_at_most_n_runnable_jobs_and_runs_them_in_process(
    url: str, repository: JobsRepository, clock: ManualClock
) -> None:
    for n in range(5):
        repository.enqueue("index_document", org_id="acme", payload={"document": f"d{n}", "text": "a b c"})
    later = repository.enqueue("call_partner", payload={"partner": "p"}, run_at=clock.now() + timedelta(hours=1))
    caller = client("tick")
    assert [caller.post("/api/jobs/tick", json={"max_jobs": 3}).json()["completed"] for _ in range(3)] == [3, 2, 0]
    assert stores.rows(url, "SELECT DISTINCT org_id, words, times FROM documents") == [("acme", 3, 1)]
    assert status(later) == "queued"


def test_a_tick_marks_failures_with_backoff(repository: JobsRepository, clock: ManualClock) -> None:
    id = repository.enqueue("call_partner", payload={"partner": "p", "down_for": 1})
    report = client("tick").post("/api/jobs/tick").json()
    assert (report["ran"], report["retried"], waits(id, clock)) == (1, 1, 1)
    clock.advance(1)
    assert client("tick").post("/api/jobs/tick").json()["completed"] == 1


def test_the_route_enqueues_and_runs_nothing(repository: JobsRepository) -> None:
    web = TestClient(app)
    answer = web.post("/orgs/acme/jobs", json={"type": "call_partner", "payload": {"partner": "p"}})
    assert answer.status_code == 202
    assert status(answer.json()["id"]) == "queued"
    assert web.post("/orgs/acme/jobs", json={"type": "call_partner", "payload": {"oops": 1}}).status_code == 422


# 6. Next steps


def test_every_run_emits_a_usage_event(
    repository: JobsRepository, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "org_jobs.metering")
    repository.enqueue("call_partner", org_id="acme", payload={"partner": "p", "down_for": 1})
    drain(td, raising=False)
    clock.advance(1)
    drain(td)
    logged = [json.loads(record.message) for record in caplog.records if record.name == "org_jobs.metering"]
    assert [(event["event"], event["org_id"], event["attempt"], event["error"]) for event in logged] == [
        ("job_retried", "acme", 1, "p answers 503"),
        ("job_completed", "acme", 2, None),
    ]


def test_cost_and_reliability_are_metered_per_org(
    repository: JobsRepository, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Exact: written with each outcome. The insights of the dashboard and GET /api/metrics show the same."""
    for org, down_for in (("acme", 0), ("globex", 2)):
        repository.enqueue("call_partner", org_id=org, payload={"partner": "p", "down_for": down_for})
    for _ in range(3):
        drain(td, raising=False)
        clock.advance(2)
    bills = {bill.org: (bill.runs, bill.failures) for bill in metering.bills(td)}
    assert bills == {"acme": (1, 0), "globex": (3, 2)}
    asked = {"group_by": "tenant", "window": "1d", "step": 3600}
    found: Counter[tuple[str, str]] = Counter()
    for row in client("read").get("/api/metrics", params=asked).json()["items"]:
        for kind in ("runs", "failures"):
            found[row["group"]["tenant"], kind] += row[kind]
    assert {org: (found[org, "runs"], found[org, "failures"]) for org in bills} == bills
    assert TestClient(app).get("/orgs/globex/usage").json()["failures"] == 2
    insights = signed_in(app, caplog).get("/dashboard/insights", params={"by": "tenant"})
    assert insights.status_code == 200
    assert all(org in insights.text for org in bills)


def test_the_dashboard_shows_it_and_changes_nothing(
    repository: JobsRepository, caplog: pytest.LogCaptureFixture
) -> None:
    web = signed_in(app, caplog)
    id = repository.enqueue("call_partner", org_id="acme", payload={"partner": "p"})
    assert web.get("/dashboard/").status_code == 200
    assert web.get(f"/dashboard/api/jobs/{id}").json()["tenant"] == "acme"
    here = {"Sec-Fetch-Site": "same-origin"}
    assert web.post("/dashboard/api/jobs/tick", headers=here).status_code == 405
    assert web.post(f"/dashboard/api/jobs/{id}/cancel", headers=here).status_code == 404


# Every job once, whatever happens


def test_no_job_is_lost_or_doubled_when_the_server_dies_in_its_ticks(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of the server that ticks, at 20 random moments, while cron goes on calling."""
    monkeypatch.setattr(cron, "MAX_JOBS", 2)  # jobs that die together run alone afterwards, which takes time
    url, where = f"sqlite:///{tmp_path}/jobs.db", f"http://127.0.0.1:{port}"
    watching = Treadle(url)
    secret = token(url, "cron", "tick")
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            with suppress(httpx2.HTTPError):
                cron.tick(where, secret)
            time.sleep(0.01)

    caller = threading.Thread(target=call)
    ids: set[str] = set()
    environment = {"TREADLE_URL": url, "WORK": "0.01", "PACE": "0.01"}
    posting = httpx2.Client(base_url=where, timeout=60)
    with posting, Example("examples.org_jobs.web", port=port, **environment) as server:
        for kill in range(KILLS):
            server.start()
            eventually(lambda: all(job.attempts < 4 for job in watching.jobs("status:pending,processing")))
            before = counts(watching).get("completed", 0)
            wanted = [("index_document", {"document": f"d{kill}-{n}", "text": "a b"}) for n in range(4)]
            wanted += [("call_partner", {"partner": f"p{kill}", "down_for": kill % 3})]
            for type, payload in wanted * 2:  # all of them twice, as noisy callers do
                job = {"type": type, "payload": payload}
                ids.add(posting.post(f"/orgs/o{kill % 3}/jobs", json=job).json()["id"])
            if kill == 0:
                caller.start()
            after = random.randrange(1, 5)
            eventually(lambda wanted=before + after: counts(watching).get("completed", 0) >= wanted)  # type: ignore[misc]
            time.sleep(random.uniform(0, 0.02))
            server.kill()
        server.start()
        eventually(lambda: counts(watching).keys() <= {"completed", "failed"})
        over.set()
        caller.join()
    assert counts(watching) == {"completed": len(ids)}
    indexed = dict(stores.rows(url, "SELECT id, times FROM documents"))
    assert indexed.keys() == {f"d{kill}-{n}" for kill in range(KILLS) for n in range(4)}
    assert indexed == Counter(job.payload["document"] for job in every(watching) if job.type == "index_document")
    watching.close()


def every(td: Treadle) -> Iterator[Job]:
    page = td.jobs(limit=200)
    while True:
        yield from page
        if page.next is None:
            return
        page = td.jobs(limit=200, cursor=page.next)
