"""`windlass enqueue`."""

from __future__ import annotations

import signal
import threading
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.helpers import enlist, now
from windlass import Windlass


def settle_next(wl: Windlass, settle) -> threading.Thread:
    """Settle the next job that is there, in a thread of its own."""

    def work() -> None:
        app = Windlass(f"sqlite:///{wl.store.where}")
        while not (leases := app.claim()):
            pass
        settle(leases[0])
        app.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_the_id_goes_to_stdout_and_the_place_to_stderr(windlass, wl, folder):
    result = windlass("enqueue", "mail")
    assert result.exit_code == 0
    [job] = wl.jobs()
    assert f"{job.id}\n" == result.stdout
    assert str(folder / "windlass.db") in result.stderr


def test_the_first_enqueue_creates_the_database(windlass, folder):
    assert windlass("enqueue", "mail").exit_code == 0
    assert (folder / "windlass.db").exists()


def test_a_pair_is_text_and_with_a_colon_json(as_json):
    job = as_json("enqueue", "mail", "to=a=b", "n:=3", 'tags:=["x",null]', "url=http://a:=1", "empty=")
    assert job["payload"] == {"to": "a=b", "n": 3, "tags": ["x", None], "url": "http://a:=1", "empty": ""}


@pytest.mark.parametrize("pair", ["nothing", "=x", ":=1", "n:=", "n:=nope", "n:={", "n:=NaN"])
def test_a_pair_that_cannot_be_is_exit_code_2(windlass, folder, pair):
    result = windlass("enqueue", "mail", pair)
    assert result.exit_code == 2
    assert "✗" in result.stderr


def test_a_key_given_twice_is_exit_code_2(windlass):
    assert "given twice" in windlass("enqueue", "mail", "a=1", "a=2").stderr


def test_options_reach_the_job(as_json):
    words = ["--priority", "5", "--queue", "slow", "--tenant", "acme", "--subject", "call-7", "--max-attempts", "2"]
    job = as_json("enqueue", "mail", *words)
    assert tuple(job[name] for name in ("priority", "queue", "tenant", "subject", "max_attempts")) == (
        5,
        "slow",
        "acme",
        "call-7",
        2,
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172_800), ("1.5h", 5400)]
)
def test_a_delay_is_written_as_people_write_it(as_json, text, seconds):
    job = as_json("enqueue", "mail", "--in", text)
    due, created = (datetime.fromisoformat(job[name]) for name in ("run_at", "created_at"))
    assert timedelta(seconds=seconds) == due - created


def test_a_moment_is_an_iso_time(as_json):
    job = as_json("enqueue", "mail", "--at", "2099-11-01T08:30+01:00")
    assert datetime(2099, 11, 1, 7, 30, tzinfo=UTC) == datetime.fromisoformat(job["run_at"])


@pytest.mark.parametrize(
    "words",
    [
        ["--in", "soon"],
        ["--in", "-5"],
        ["--in", "5 parsecs"],
        ["--at", "tomorrow"],
        ["--in", "1m", "--at", "2099-01-01"],
        ["--priority", "high"],
        ["--priority", "99999"],
        ["--max-attempts", "0"],
        ["--dedupe", ""],
        ["--queue", ""],
        ["--wait", "--timeout", "0"],
    ],
    ids=" ".join,
)
def test_an_option_that_cannot_be_is_exit_code_2(windlass, words):
    result = windlass("enqueue", "mail", *words)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


def test_a_second_job_with_the_same_key_is_the_first(windlass):
    first = windlass("enqueue", "mail", "--dedupe", "k")
    second = windlass("enqueue", "mail", "--dedupe", "k")
    assert first.stdout == second.stdout
    assert "pending already" in second.stderr


def test_without_a_worker_it_says_that_the_job_waits(windlass):
    assert "no worker is running on this database" in windlass("enqueue", "mail").stderr


def test_a_type_that_no_live_worker_knows_is_noted_with_the_nearest(windlass, wl):
    enlist(wl, "host-1", "send_mail", "resize")
    said = windlass("enqueue", "send_mial").stderr
    assert "no live worker knows type send_mial" in said
    assert "did you mean send_mail?" in said


def test_a_queue_that_no_live_worker_takes_from_is_noted(windlass, wl):
    enlist(wl, "host-1", "mail", queues=("fast",))
    assert "no live worker takes jobs from queue slow" in windlass("enqueue", "mail", "--queue", "slow").stderr


def test_a_lost_worker_does_not_count(windlass, wl):
    enlist(wl, "host-1", "mail", seconds_ago=60)
    assert "no worker is running" in windlass("enqueue", "mail").stderr


def test_a_type_that_a_live_worker_knows_is_not_remarked_on(windlass, wl):
    enlist(wl, "host-1", "mail")
    assert "⚠" not in windlass("enqueue", "mail").stderr


def test_quiet_leaves_nothing_but_the_id(windlass):
    assert windlass("enqueue", "mail", "--quiet").stderr == ""


def test_an_app_checks_the_payload_before_anything_is_stored(windlass, write_app, wl):
    app = write_app("@wl.job\ndef mail(to: str): ...")
    result = windlass("enqueue", "mail", "too=ada", "-a", app)
    assert result.exit_code == 2
    assert "mail" in result.stderr
    assert list(wl.jobs()) == []


def test_waiting_prints_the_result(windlass, wl):
    thread = settle_next(wl, lambda lease: lease.complete({"sent": 3}))
    result = windlass("enqueue", "mail", "--wait")
    thread.join()
    assert result.exit_code == 0
    assert result.stdout == '{\n  "sent": 3\n}\n'


def test_waiting_with_json_prints_the_whole_job(as_json, wl):
    thread = settle_next(wl, lambda lease: lease.complete([1]))
    job = as_json("enqueue", "mail", "--wait")
    thread.join()
    assert (job["status"], job["result"]) == ("completed", [1])


def test_waiting_for_a_job_that_fails_is_exit_code_1(windlass, wl):
    thread = settle_next(wl, lambda lease: lease.fail("boom"))
    result = windlass("enqueue", "mail", "--wait", "--max-attempts", "1")
    thread.join()
    assert result.exit_code == 1
    assert "failed: boom" in result.stderr


def test_waiting_too_long_is_exit_code_124_and_the_job_stays(windlass, wl):
    result = windlass("enqueue", "mail", "--wait", "--timeout", "50ms")
    assert result.exit_code == 124
    assert "is still pending" in result.stderr
    assert len(wl.jobs()) == 1


def test_waiting_too_long_with_json_prints_the_job_as_it_is(as_json):
    assert as_json("enqueue", "mail", "--wait", "--timeout", "50ms", code=124)["status"] == "pending"


def test_an_interrupt_while_waiting_is_exit_code_130(start, wl):
    process = start("enqueue", "mail", "--wait")
    assert process.stderr is not None
    while "no worker is running" not in process.stderr.readline():
        pass
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "interrupted" in process.stderr.read()
    [job] = wl.jobs()
    assert not now(wl, job).status.is_final
