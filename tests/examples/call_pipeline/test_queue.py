"""Calls in four stages: what the example requires of the queue and its table, in the order of examples/README.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import psycopg
import pytest

from examples.call_pipeline import database, sound, storage
from examples.call_pipeline.calls import calls_of, upload
from examples.call_pipeline.database import td
from examples.call_pipeline.jobs import extract_audio
from examples.demos.call_pipeline import as_role
from tests.eventually import eventually
from tests.examples.call_pipeline.calls import (
    SAID,
    STAGES,
    Service,
    artifacts,
    fail_with,
    job_of,
    queue_rows,
    seconds_until_due,
    upload_call,
)
from tests.examples.harness import KILLS, ROOT, Example, kill_again_and_again
from treadle import Fail, Treadle
from treadle.stores import open_store
from treadle.testing import ManualClock, drain

# Goals


def test_no_call_is_lost_when_workers_die(postgres: str, tmp_path: Path, port: int) -> None:
    """Durable. kill -9 of the worker at 20 random moments: every call is analyzed, once, and the poison one failed."""
    environment = {
        "TREADLE_URL": as_role(postgres, "worker"),
        "STORAGE": str(tmp_path / "storage"),
        "SPEECH_URL": f"http://127.0.0.1:{port}",
        "SPEECH_SECONDS": "0.1",
        "SPEECH_POLL_INTERVAL_MS": "50",
        "PACE": "0.001",
    }
    recording, said = sound.record(SAID[:2]), Counter(SAID[:2])
    watching, before = Treadle(postgres), td.store
    producer = Treadle(as_role(postgres, "producer"))
    script = [sys.executable, "-m", "examples.call_pipeline.service", str(port)]
    speaking = subprocess.Popen(script, cwd=ROOT, env={**os.environ, **environment})
    uploaded: list[tuple[str, str]] = []

    def none_is_nearly_spent() -> bool:
        """A job has five runs. One that has lost two of them is let through before the next kill."""
        return all(job.attempts < 3 for job in watching.jobs(status=("pending", "processing"), limit=200))

    def more(kill: int) -> None:
        eventually(none_is_nearly_spent)
        for n in range(2):
            org, call = ("acme", "globex")[n % 2], f"c{kill}-{n}"
            upload(org, call, call, recording if (kill, n) != (5, 0) else b"poison")
            uploaded.append((org, call))

    try:
        with pytest.MonkeyPatch.context() as patched, Example("examples.call_pipeline.jobs", **environment) as worker:
            patched.setattr(storage, "ROOT", tmp_path / "storage")
            patched.setattr(database, "URL", as_role(postgres, "producer"))
            td._use(producer.store)
            kill_again_and_again(worker, watching, more)
        operations = httpx2.get(f"http://127.0.0.1:{port}/operations").json()["operations"]
    finally:
        speaking.kill()
        speaking.wait()
        td._use(before)
    assert len(uploaded) == 2 * KILLS
    failed = {job.subject: job.error for job in watching.jobs(status="failed")}
    assert failed.keys() == {"c5-0"}, failed
    assert operations == len(uploaded) - 1  # none was paid for twice
    for org, call in uploaded:
        found = watching.jobs(tenant=org, subject=call)
        if call == "c5-0":
            assert [(j.type, j.status, j.attempts) for j in found] == [("extract_audio", "failed", 5)]
            continue
        assert [(j.type, j.status) for j in found] == [(stage, "completed") for stage in reversed(STAGES)]
        assert found[0].result == {"words": said, "mood": -1}
        assert artifacts(postgres, call).keys() == {"audio", "transcript", "analysis"}
    names = {path.name for path in (tmp_path / "storage").rglob("*") if path.is_file()}
    assert names == {"audio.wav", "transcript.json", "analysis.json", "upload.wav"}
    watching.close()
    producer.close()


def test_safe_concurrency(url: str, clock: ManualClock) -> None:
    """Claims at once, from several workers: each job is given out once (on PostgreSQL by FOR UPDATE SKIP LOCKED)."""
    for n in range(24):
        upload_call(f"c{n}", words=SAID[:1])
    apps = [Treadle(as_role(url, "worker"), clock=clock) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        claimed = list(pool.map(lambda app: [lease.job.id for _ in range(8) for lease in app.claim(1)], apps))
    assert sorted(id for ids in claimed for id in ids) == sorted(job.id for job in td.jobs(tenant="acme", limit=200))
    for app in apps:
        app.close()


def test_payloads_are_plain_json_that_another_queue_can_take(
    url: str, clock: ManualClock, speech_service: Service
) -> None:
    upload_call()
    drain(td)
    payloads = {job.type: job.payload for job in td.jobs(tenant="acme")}
    assert payloads["extract_audio"] == payloads["transcribe_start"] == {"call_id": "c1"}
    assert all(isinstance(value, str) for value in payloads["transcribe_poll"].values())
    assert json.loads(json.dumps(payloads)) == payloads


# Table schema


def test_processing_jobs_has_the_columns_of_the_application(url: str, clock: ManualClock) -> None:
    job = upload_call()
    [row] = queue_rows(url)
    assert " ".join(row) == (
        "id org_id call_id stage status payload attempts max_attempts available_at locked_at locked_by last_error "
        "created_at updated_at"
    )
    assert str(row["id"]) == job.id
    assert (row["org_id"], row["call_id"], row["stage"], row["status"]) == ("acme", "c1", "extract_audio", "queued")
    assert (row["attempts"], row["max_attempts"], row["last_error"]) == (0, 5, None)
    assert (row["locked_at"], row["locked_by"]) == (None, None)


def test_a_job_is_queued_then_processing_then_done_or_failed(url: str, clock: ManualClock) -> None:
    upload_call()
    upload_call("c2")
    first, second = td.claim(2)
    assert [row["status"] for call in ("c1", "c2") for row in queue_rows(url, call)] == ["processing"] * 2
    first.complete()
    second.fail(Fail("no use"))
    assert [row["status"] for call in ("c1", "c2") for row in queue_rows(url, call)] == ["done", "failed"]


def test_jobs_are_found_by_call_and_by_org(url: str, clock: ManualClock) -> None:
    ids = {(org, call): upload_call(call, org).id for org in ("acme", "globex") for call in ("c1", "c2")}
    assert [job.id for job in td.jobs(tenant="acme", subject="c2")] == [ids["acme", "c2"]]
    assert {job.id for job in td.jobs(tenant="globex")} == {ids["globex", "c1"], ids["globex", "c2"]}
    assert {job.id for job in td.jobs(subject="c1")} == {ids["acme", "c1"], ids["globex", "c1"]}


def test_rls_scopes_jobs_by_org_id(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the web server's role: without an org nothing is there, with one only its own."""
    monkeypatch.setattr(storage, "ROOT", tmp_path)
    monkeypatch.setattr(database, "URL", as_role(postgres, "producer"))
    before = td.store
    td._use(open_store(as_role(postgres, "producer")))
    try:
        upload_call("c1", "acme")
        theirs = upload_call("c1", "globex")
        assert [job.tenant for job in td.jobs(tenant="acme")] == ["acme"]
        assert list(td.jobs()) == []
        assert td.get(theirs.id) is None
    finally:
        td.close()
        td._use(before)
    with psycopg.connect(as_role(postgres, "producer")) as connection:
        assert connection.execute("SELECT * FROM processing_jobs").fetchall() == []
        connection.execute("SELECT set_config('treadle.tenant', 'acme', true)")
        assert connection.execute("SELECT org_id FROM processing_jobs").fetchall() == [("acme",)]
        assert connection.execute("DELETE FROM treadle.jobs WHERE tenant = 'globex'").rowcount == 0


@pytest.mark.parametrize("role", ["producer", "worker"])
def test_rls_scopes_calls_and_artifacts_by_org_id(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """A forgotten WHERE shows nothing of another org, and nothing can be written in its name."""
    monkeypatch.setattr(storage, "ROOT", tmp_path)
    monkeypatch.setattr(database, "URL", as_role(postgres, role))
    before = td.store
    td._use(open_store(as_role(postgres, role)))
    try:
        for org in ("acme", "globex"):
            upload_call("c1", org)
        assert calls_of("acme") == [("c1", "call c1", 0)]
    finally:
        td.close()
        td._use(before)
    with psycopg.connect(as_role(postgres, role)) as connection:
        assert connection.execute("SELECT * FROM calls").fetchall() == []
        connection.execute("SELECT set_config('treadle.tenant', 'acme', true)")
        assert connection.execute("SELECT org_id FROM calls").fetchall() == [("acme",)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("INSERT INTO artifacts VALUES ('globex', 'c1', 'audio', '/')")


# Core SQL operations


def test_enqueue_is_one_commit_with_the_calls_row(
    url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(type(extract_audio), "using", lambda *_, **__: fail_with(RuntimeError("no")))
        with pytest.raises(RuntimeError):
            upload_call()
    assert queue_rows(url) == []
    assert calls_of("acme") == []
    upload_call()
    assert calls_of("acme") == [("c1", "call c1", 0)]
    assert [row["stage"] for row in queue_rows(url)] == ["extract_audio"]


def test_claim_takes_the_oldest_available_job_and_locks_it(url: str, clock: ManualClock) -> None:
    later = extract_audio.using(tenant="acme", subject="c0", delay=60).enqueue(call_id="c0")
    upload_call("c1")
    clock.advance(1)
    upload_call("c2")
    [lease] = td.claim(1)
    assert lease.job.subject == "c1"
    [row] = queue_rows(url, "c1")
    assert row["status"] == "processing"
    assert row["locked_at"] is not None
    assert [lease.job.subject for lease in td.claim(5)] == ["c2"]
    clock.advance(60)
    assert [lease.job.id for lease in td.claim(5)] == [later.id]


def test_complete_makes_it_done(url: str, clock: ManualClock) -> None:
    upload_call()
    td.claim(1)[0].complete()
    assert [row["status"] for row in queue_rows(url)] == ["done"]
    assert td.claim(1) == []


def test_fail_queues_it_again_with_the_error_and_a_later_available_at(url: str, clock: ManualClock) -> None:
    upload_call()
    td.claim(1)[0].fail("the disk is full")
    [row] = queue_rows(url)
    assert (row["status"], row["attempts"], row["last_error"]) == ("queued", 1, "the disk is full")
    assert seconds_until_due(job_of("extract_audio"), clock) == 30
