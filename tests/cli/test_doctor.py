"""`treadle doctor`: each problem is found, with the next step."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from tests.cli.helpers import enlist
from treadle import Treadle, clock
from treadle.cli import doctor
from treadle.cli.doctor import sqlite
from treadle.stores.base import ClaimRequest, TypePolicy
from treadle.stores.sqlite.checkpoint import wal_reset_race
from treadle.stores.sqlite.store import SQLiteStore


@pytest.fixture
def found(as_json):
    """The findings of one check, as (level, text)."""

    def run(check: str, code: int = 1):
        findings = as_json("doctor", "--quick", code=code)["findings"]
        return [(finding["level"], finding["text"]) for finding in findings if finding["check"] == check]

    return run


@pytest.fixture(autouse=True)
def a_sqlite_without_faults(monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.52.0")


def test_a_new_database_has_no_problems(treadle, td):
    result = treadle("doctor")
    assert result.exit_code == 0
    assert "✓ the file is intact" in result.stdout
    assert "✓ schema 1 (current)" in result.stdout
    assert result.stdout.endswith("all is well\n")


def test_quick_does_not_read_the_whole_file(treadle, td, monkeypatch):
    monkeypatch.setattr(SQLiteStore, "check", lambda self: pytest.fail("it did"))
    assert treadle("doctor", "--quick").exit_code == 0


def test_a_damaged_file_is_a_problem(treadle, td, monkeypatch):
    monkeypatch.setattr(SQLiteStore, "check", lambda self: "row 7 missing from index")
    result = treadle("doctor")
    assert result.exit_code == 1
    assert "✗ the file is damaged: row 7 missing from index" in result.stdout
    assert "→ " in result.stdout


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("3.6.23", False),
        ("3.7.0", True),
        ("3.40.1", True),
        ("3.44.5", True),
        ("3.44.6", False),
        ("3.45.0", True),
        ("3.50.6", True),
        ("3.50.7", False),
        ("3.51.0", True),
        ("3.51.2", True),
        ("3.51.3", False),
        ("3.52.0", False),
    ],
)
def test_versions_of_sqlite_with_the_wal_reset_race_are_recognized(version, affected):
    assert affected is wal_reset_race(tuple(map(int, version.split("."))))


def test_the_wal_reset_race_is_a_warning_and_not_a_problem(found, td, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.40.1")
    [(level, text)] = found("sqlite", code=0)
    assert level == "warning"
    assert "while no other connection can commit" in text


def test_jobs_without_any_worker_are_a_problem(found, td):
    td.enqueue("mail")
    assert found("no_worker") == [("problem", "1 job waits and no worker is running")]
    assert found("workers") == []


def test_live_workers_are_not_a_problem(found, td):
    enlist(td, "host-1", "mail")
    [(level, text)] = found("workers", code=0)
    assert level == "ok"
    assert text.startswith("1 worker, newest heartbeat")


def test_a_lost_worker_is_a_problem(found, td):
    enlist(td, "host-1", seconds_ago=60)
    [(level, text)] = found("lost")
    assert level == "problem"
    assert "worker host-1 is lost" in text


def test_a_type_that_no_live_worker_handles_is_a_problem(found, td):
    enlist(td, "host-1", "mail")
    td.enqueue("resize"), td.enqueue("mail")
    assert found("unhandled") == [("problem", '1 job of type "resize" waits and no live worker handles it')]


def test_a_type_that_keeps_failing_is_a_warning(found, td):
    for _ in range(5):
        td.enqueue("mail", max_attempts=1)
        [lease] = td.claim(types=["mail"])
        lease.fail("refused")
    text = '5 of 5 runs of type "mail" failed in the last 15 minutes'
    assert found("failing", code=0) == [("warning", text)]
    assert found("workers", code=0) == [("ok", "no worker is running, and no job is due")]


def test_jobs_that_wait_too_long_are_a_warning(found, td):
    enlist(td, "host-1", "mail")
    td.enqueue("mail", run_at=clock.to_datetime(clock.now() - clock.seconds(600)))
    [(level, text)] = found("slow", code=0)
    assert level == "warning"
    assert text.startswith('1 job of type "mail" waits, the oldest for 10m')


def test_workers_of_another_version_are_a_warning(found, td):
    enlist(td, "host-1", version="9.9.9")
    assert found("versions", code=0) == [("warning", "workers run treadle 9.9.9 (1); this is 0.1.0")]


def test_jobs_past_their_timeout_are_a_problem(found, td):
    worker = enlist(td, "host-1", "mail")
    td.store.publish([TypePolicy(type="mail", timeout=1_000_000)])
    earlier = Treadle(f"sqlite:///{td.store.where}", clock=lambda: clock.now() - clock.seconds(60))
    earlier.enqueue("mail")
    earlier.store.claim(worker.id, ClaimRequest(limit=1, types={"mail": 1_000_000}))
    earlier.close()
    assert found("leases") == [("problem", "1 job still held past the timeout")]


def test_jobs_of_workers_that_no_longer_exist_are_a_problem(found, td):
    worker = enlist(td, "host-1", "mail")
    td.enqueue("mail")
    td.store.claim(worker.id, ClaimRequest(limit=1))
    connection = sqlite3.connect(td.store.where, isolation_level=None)
    connection.execute("DELETE FROM treadle_workers")
    connection.close()
    assert found("leases") == [("problem", "1 job held by workers that no longer exist")]


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("DELETE FROM treadle_ready", "1 job in none of ready, leases and finished (broken by hand): {id}"),
        ("UPDATE treadle_ready SET attempts = 9223372036854775807", "1 job with an impossible number of attempts"),
        ("UPDATE treadle_jobs SET payload = '5'", "1 job whose payload is not a JSON object"),
        ("DELETE FROM treadle_jobs", "1 row in ready without a job"),
        ("UPDATE treadle_tallies SET count = -1", "1 count below zero"),
        (
            "INSERT INTO treadle_leases (id, lease, token, queue, type, tenant, attempt, snoozes, suspicion, worker,"
            " run_at, started_at) SELECT id, 1, 1, queue, type, tenant, 1, 0, 0, '', 0, 0 FROM treadle_ready",
            "1 job in several of ready, leases and finished (broken by hand): {id}",
        ),
    ],
)
def test_rows_broken_by_hand_are_named(as_json, td, statement, text):
    job = td.enqueue("mail")
    with contextlib.closing(sqlite3.connect(td.store.where, isolation_level=None)) as connection:
        connection.execute(statement)

    findings = as_json("doctor", code=1)["findings"]

    [finding] = [finding for finding in findings if finding["check"] == "rows"]
    assert ("problem", True) == (finding["level"], finding["text"].startswith(text.format(id=job.id)))
    assert finding["way_out"]


def test_a_worker_whose_row_is_broken_is_named(found, td):
    enlist(td, "host-1", "mail")
    with contextlib.closing(sqlite3.connect(td.store.where, isolation_level=None)) as connection:
        connection.execute("UPDATE treadle_workers SET host = '[5]'")

    text = "the row of worker host-1 was broken by hand: its host cannot be read"
    assert [("warning", text)] == found("broken_worker", code=0)


@pytest.mark.parametrize(("free", "level", "code"), [(10**11, "ok", 0), (10**9, "warning", 0), (10**7, "problem", 1)])
def test_little_room_on_the_disk_is_reported(found, td, monkeypatch, free, level, code):
    monkeypatch.setattr(sqlite.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    assert level == found("space", code=code)[0][0]


def test_too_many_ended_jobs_are_a_warning(found, td, monkeypatch):
    monkeypatch.setattr(doctor, "MANY_ENDED", 0)
    td.cancel(td.enqueue("mail").id)
    assert found("retention", code=0) == [("warning", "1 completed and cancelled jobs are kept")]


def test_too_many_failed_jobs_are_a_warning(found, td, monkeypatch):
    from tests.cli.helpers import failed

    monkeypatch.setattr(doctor, "MANY_FAILED", 0)
    failed(td)
    assert found("retention", code=0)[0][0] == "warning"


def test_a_log_that_cannot_be_reset_is_a_warning(found, td, monkeypatch):
    monkeypatch.setattr(sqlite, "LONG_LOG", 0)
    assert found("log", code=0)[0][0] == "warning"
