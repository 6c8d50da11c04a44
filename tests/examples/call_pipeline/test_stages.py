"""Calls in four stages: what the example requires of its stages, in the order of examples/README.md."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from examples.call_pipeline import jobs, service, sound, storage
from examples.call_pipeline.calls import calls_of, upload
from examples.call_pipeline.database import td
from examples.call_pipeline.jobs import BACKOFF, analyze, extract_audio, transcribe_poll, transcribe_start
from tests.examples.call_pipeline.calls import (
    EXPECTED_BACKOFF,
    SAID,
    STAGES,
    Service,
    artifacts,
    fail_with,
    in_storage,
    job_of,
    queue_rows,
    seconds_until_due,
    upload_call,
)
from tests.examples.harness import ROOT
from treadle import Rate
from treadle.testing import ManualClock, drain

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
    td.pause(type="transcribe_poll")  # or the first poll may be faster than the second start
    drain(td)
    assert set(service.operations) == {"acme.c1", "acme.c2", "globex.c1"}
    td.resume(type="transcribe_poll")
    drain(td)
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
        monkeypatch.setattr(sound, work, lambda *_: fail_with(AssertionError("made again")))
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
    """The tests of the stages run on both databases with these very handlers; only $TREADLE_URL differs."""
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
