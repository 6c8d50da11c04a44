"""Calls in four stages: every requirement of the example, on PostgreSQL, and on SQLite by another URL.

One file, because the table in examples/README.md lists its tests in this order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from examples.call_pipeline import database, jobs, service, sound, speech, storage
from examples.call_pipeline.calls import calls_of, upload
from examples.call_pipeline.database import td
from examples.call_pipeline.jobs import BACKOFF, analyze, extract_audio, transcribe_poll, transcribe_start
from examples.call_pipeline.tables import make_tables
from examples.demos.call_pipeline import as_role
from tests import stores
from tests.eventually import eventually
from tests.examples.harness import KILLS, ROOT, Example, kill_again_and_again
from tests.servers.databases import Databases
from treadle import Fail, Job, Rate, Treadle
from treadle.stores import open_store
from treadle.stores.postgres.roles import Roles
from treadle.testing import ManualClock, drain

SAID = ["hello", "problem", "refund", "great", "thanks", "thanks", "goodbye"]
STAGES = ("extract_audio", "transcribe_start", "transcribe_poll", "analyze")
EXPECTED_BACKOFF = [min(600, 30 * 2**attempts) for attempts in range(7)]
"""`Math.min(600, 30 * Math.pow(2, job.attempts))`, of 0, 1, 2 … attempts before."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "url", stores.KINDS[:2])


def prepare(url: str) -> None:
    store: Any = open_store(url)
    store.open()
    store.give_rights(Roles())
    store.close()
    make_tables(url)


@pytest.fixture
def postgres(postgres_databases: Databases) -> str:
    return postgres_databases.reused(prepare)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The owner's."""
    if request.param == "postgresql":
        found: str = request.getfixturevalue("postgres")
        return found
    make_tables(f"sqlite:///{tmp_path}/calls.db")
    return f"sqlite:///{tmp_path}/calls.db"


@pytest.fixture
def clock(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManualClock]:
    """The app as workers run it: on PostgreSQL in their role, and so under row level security."""
    monkeypatch.setattr(storage, "ROOT", tmp_path / "storage")
    monkeypatch.setattr(database, "URL", as_role(url, "worker"))
    clock, before = ManualClock(), td.store
    td._use(open_store(as_role(url, "worker"), clock=clock, **stores.quick(url)))
    yield clock
    td.close()
    td._use(before)


class Service:
    """The real stand-in, over real HTTP. Operations take as long as a test wants."""

    def __init__(self) -> None:
        service.operations.clear()

    def finish(self) -> None:
        for id, (_, words) in service.operations.items():
            service.operations[id] = (0, words)


@pytest.fixture
def speech_service(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(service, "SECONDS", 3600)
    server = ThreadingHTTPServer(("127.0.0.1", 0), service.Speech)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    monkeypatch.setattr(speech, "SERVICE", f"http://127.0.0.1:{server.server_port}")
    yield Service()
    server.shutdown()
    server.server_close()


def queue_rows(url: str, call: str = "c1") -> list[dict[str, Any]]:
    """What `processing_jobs` says of a call, by the application's own names, oldest first."""
    with closing(stores.connect(url)) as connection:
        found = connection.execute(f"SELECT * FROM processing_jobs WHERE call_id = '{call}' ORDER BY id")
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def artifacts(url: str, call: str = "c1") -> dict[str, str]:
    rows = stores.rows(url, f"SELECT kind, path FROM artifacts WHERE call_id = '{call}'")
    assert len(rows) == len(dict(rows))
    return dict(rows)


def in_storage(call: str = "c1", org: str = "acme") -> set[str]:
    folder = storage.path(org, call, "")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def upload_call(call: str = "c1", org: str = "acme", words: list[str] = SAID) -> Job:
    return upload(org, call, f"call {call}", sound.record(words))


def job_of(stage: str, call: str = "c1") -> Job:
    [job] = td.jobs(type=stage, subject=call, tenant="acme")
    return job


def seconds_until_due(job: Job, clock: ManualClock) -> float:
    return round((job.run_at - clock.now()).total_seconds(), 3)


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
        broken.setattr(type(extract_audio), "using", lambda *_, **__: _raise(RuntimeError("no")))
        with pytest.raises(RuntimeError):
            upload_call()
    assert queue_rows(url) == []
    assert calls_of("acme") == []
    upload_call()
    assert calls_of("acme") == [("c1", "call c1", 0)]
    assert [row["stage"] for row in queue_rows(url)] == ["extract_audio"]


def _raise(error: Exception) -> None:
    raise error


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


# Worker loop


def test_the_backoff_is_30_60_120_240_at_most_600() -> None:
    """There, of the attempts before the one that failed; here, of the failures so far. It is the same number."""
    assert [BACKOFF(failures) for failures in range(1, 8)] == EXPECTED_BACKOFF == [30, 60, 120, 240, 480, 600, 600]


def test_a_worker_runs_all_four_stages(url: str, clock: ManualClock, speech_service: Service) -> None:
    upload_call()
    assert drain(td).snoozed == 1
    speech_service.finish()
    clock.advance(20)
    drain(td)
    assert [(row["stage"], row["status"]) for row in queue_rows(url)] == [(stage, "done") for stage in STAGES]
    assert job_of("analyze").result == {"words": Counter(SAID), "mood": 1}
    assert calls_of("acme") == [("c1", "call c1", 3)]


def test_a_stage_that_raises_is_failed_and_the_loop_goes_on(
    url: str, clock: ManualClock, speech_service: Service
) -> None:
    upload("acme", "bad", "bad", b"no WAV")
    upload_call()
    report = drain(td, raising=False)
    assert (report.retried, report.completed, report.snoozed) == (1, 2, 1)
    [row] = queue_rows(url, "bad")
    assert "not a recording" in row["last_error"]


# Transcription flow


def test_transcribe_start_converts_uploads_starts_and_enqueues_the_poll(
    url: str, clock: ManualClock, speech_service: Service
) -> None:
    upload_call()
    drain(td)
    sent = storage.path("acme", "c1", sound.SPEECH)
    assert sent.stat().st_size < storage.path("acme", "c1", "audio.wav").stat().st_size
    assert sound.understand(sent.read_bytes()) == SAID
    [operation] = service.operations
    assert job_of("transcribe_poll").payload == {
        "call_id": "c1",
        "operation_id": operation,
        "speech": sound.SPEECH,
        "transcript": "transcript.json",
    }


def test_transcribe_poll_holds_no_worker_while_it_waits(url: str, clock: ManualClock, speech_service: Service) -> None:
    upload_call()
    drain(td)
    poll = job_of("transcribe_poll")
    assert (poll.status, poll.attempts, poll.worker_id) == ("pending", 0, None)
    assert seconds_until_due(poll, clock) == jobs.POLL_SECONDS


def test_transcribe_start_that_dies_after_its_request_starts_no_second_operation(
    url: str, clock: ManualClock, speech_service: Service
) -> None:
    upload_call()
    drain(td)
    storage.remove(storage.path("acme", "c1", sound.SPEECH))
    transcribe_start.using(tenant="acme", subject="c1").enqueue(call_id="c1")
    drain(td)
    assert len(service.operations) == 1
    assert len(td.jobs(type="transcribe_poll", tenant="acme")) == 1


def test_an_organization_sends_no_more_requests_than_its_contract_allows(
    url: str, clock: ManualClock, speech_service: Service
) -> None:
    """Both stages count, another organization does not wait, and nobody polls for the next start."""
    assert jobs.SPEECH.rate == Rate(300, per=60, burst=30)
    td.limits.set("speech", rate=Rate(1, per=30, burst=2))
    for org, call in (("acme", "c1"), ("acme", "c2"), ("globex", "c1")):
        upload_call(call, org)
    drain(td)
    assert set(service.operations) == {"acme.c1", "acme.c2", "globex.c1"}
    assert Counter(job.tenant for job in td.jobs(type="transcribe_poll") if job.snoozes) == {"globex": 1}
    [poll, _] = td.jobs(type="transcribe_poll", tenant="acme")
    assert "rate_limited" in [reason.code for reason in td.why(poll.id).reasons]
    clock.advance(30)
    drain(td)
    assert Counter(job.tenant for job in td.jobs(type="transcribe_poll") if job.snoozes) == {"globex": 1, "acme": 1}


def test_an_organization_that_is_refused_is_held_back_and_no_other(
    url: str, clock: ManualClock, speech_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(service.refused, "acme", 60)
    upload_call("c1")
    drain(td)
    upload_call("c2")
    upload_call("c1", "globex")
    drain(td)
    starts = td.jobs(type="transcribe_start", tenant="acme")
    assert [("pending", 0), ("pending", 0)] == [(job.status, job.attempts) for job in starts]
    assert 1 == sum(job.snoozes for job in starts), "the second one did not ask"
    assert set(service.operations) == {"globex.c1"}
    service.refused.clear()
    clock.advance(60)
    drain(td)
    assert set(service.operations) == {"acme.c1", "acme.c2", "globex.c1"}


# Retry behavior


def test_failed_jobs_are_queued_again_with_exponential_backoff(url: str, clock: ManualClock) -> None:
    upload("acme", "c1", "poison", b"no WAV")
    waited = []
    for _ in range(4):
        assert drain(td, raising=False).retried == 1
        waited.append(seconds_until_due(job_of("extract_audio"), clock))
        clock.advance(waited[-1] - 1)
        assert drain(td).ran == 0
        clock.advance(1)
    assert waited == EXPECTED_BACKOFF[:4]


def test_polling_is_at_a_fixed_interval_with_its_own_long_limit(
    url: str, clock: ManualClock, speech_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert jobs.MOST_POLLS * jobs.POLL_SECONDS == 3600
    monkeypatch.setattr(jobs, "MOST_POLLS", 12)
    upload_call()
    for _ in range(12):  # more often than max_attempts
        assert drain(td).snoozed == 1
        assert seconds_until_due(job_of("transcribe_poll"), clock) == jobs.POLL_SECONDS
        clock.advance(jobs.POLL_SECONDS)
    drain(td, raising=False)
    poll = job_of("transcribe_poll")
    assert (poll.status, poll.error) == ("failed", "still not ready after 12 snoozes")


def test_a_poll_that_cannot_ask_fails_like_any_other(
    url: str, clock: ManualClock, speech_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service is down: that is no 'not ready yet', and burns an attempt."""
    upload_call()
    drain(td)
    service.operations.clear()
    clock.advance(20)
    assert drain(td, raising=False).retried == 1
    poll = job_of("transcribe_poll")
    assert (poll.attempts, seconds_until_due(poll, clock)) == (1, 30)
    assert "404" in (poll.error or "")


def test_a_poison_job_is_failed_after_five_attempts_and_never_scheduled_again(url: str, clock: ManualClock) -> None:
    upload("acme", "c1", "poison", b"no WAV")
    for _ in range(5):
        drain(td, raising=False)
        clock.advance(600)
    [row] = queue_rows(url)
    assert (row["stage"], row["status"], row["attempts"]) == ("extract_audio", "failed", 5)
    clock.advance(1_000_000)
    assert drain(td).ran == 0
    assert in_storage() == {"upload.wav"}  # kept for inspection


# Idempotency


def test_storage_paths_are_deterministic(url: str, clock: ManualClock, speech_service: Service) -> None:
    run_through(clock, speech_service)
    assert artifacts(url) == {
        "audio": str(storage.path("acme", "c1", "audio.wav")),
        "transcript": str(storage.path("acme", "c1", "transcript.json")),
        "analysis": str(storage.path("acme", "c1", "analysis.json")),
    }


def run_through(clock: ManualClock, speech_service: Service) -> None:
    upload_call()
    drain(td)
    speech_service.finish()
    clock.advance(20)
    drain(td)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_whose_artifact_exists_returns_early_and_removes_obsolete_inputs(
    url: str, clock: ManualClock, speech_service: Service, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Run each stage again after all is done: no file is made again, and no row is duplicated."""
    run_through(clock, speech_service)
    made, rows = dates_in_storage().items(), artifacts(url)
    for obsolete in ("upload.wav", sound.SPEECH):
        storage.write(storage.path("acme", "c1", obsolete), b"obsolete")
    for work in ("to_mono", "to_speech"):
        monkeypatch.setattr(sound, work, lambda *_: _raise(AssertionError("made again")))
    of_call = {"tenant": "acme", "subject": "c1"}
    again = {
        "extract_audio": lambda: extract_audio.using(**of_call).enqueue(call_id="c1"),
        "transcribe_start": lambda: transcribe_start.using(**of_call).enqueue(call_id="c1"),
        "transcribe_poll": lambda: transcribe_poll.using(**of_call).enqueue(
            call_id="c1", operation_id="gone", speech=sound.SPEECH, transcript="transcript.json"
        ),
        "analyze": lambda: analyze.using(**of_call).enqueue(call_id="c1"),
    }
    again[stage]()
    drain(td)
    assert artifacts(url) == rows
    assert made <= dates_in_storage().items()
    left = {"extract_audio": set(), "transcribe_start": {"upload.wav"}, "transcribe_poll": {"upload.wav"}}
    assert in_storage() - dict(made).keys() == left.get(stage, {"upload.wav", sound.SPEECH})
    assert td.jobs(type="analyze", tenant="acme")[0].result == {"words": Counter(SAID), "mood": 1}


def dates_in_storage() -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in storage.path("acme", "c1", "").iterdir()}


def test_partial_files_of_dead_workers_are_removed(url: str, clock: ManualClock, speech_service: Service) -> None:
    storage.write(storage.path("acme", "c1", "tmp1.part"), b"half")
    run_through(clock, speech_service)
    assert in_storage() == {"audio.wav", "transcript.json", "analysis.json"}


def test_the_same_call_uploaded_twice_is_one_job(url: str, clock: ManualClock) -> None:
    assert upload_call().id == upload_call().id
    assert len(queue_rows(url)) == 1


# Migration to another queue


def test_handlers_do_not_know_which_store_it_is() -> None:
    """Every test above runs on both databases with these very handlers; only $TREADLE_URL differs."""
    text = Path(jobs.__file__).read_text("utf-8")
    assert not [word for word in ("sqlite", "psycopg", "postgres", "%s") if word in text.lower()]


def test_the_stage_names_are_the_types() -> None:
    assert tuple(td.registry.types) == STAGES


# The demo


def test_the_demo_ends_by_itself_on_postgresql(postgres: str) -> None:
    """On SQLite: test_demos.py."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "TREADLE_URL")}
    demo = subprocess.run(
        [sys.executable, "-m", "examples.demos.call_pipeline", "--db", postgres],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "13 of 13 calls ended as they should" in demo.stdout
    assert "harbour sees 7 calls" in demo.stdout
    assert "hills sees 6 calls" in demo.stdout
