"""`treadle enqueue`."""

from __future__ import annotations

import signal
import threading
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.helpers import enlist, now
from tests.eventually import eventually
from treadle import Treadle


def settle_next(td: Treadle, settle) -> threading.Thread:
    """Settle the next job in a thread."""

    def work() -> None:
        app = Treadle(f"sqlite:///{td.store.where}")
        settle(eventually(app.claim)[0])
        app.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_the_id_is_on_stdout_and_the_database_on_stderr(treadle, td, folder):
    result = treadle("enqueue", "mail")
    assert result.exit_code == 0
    [job] = td.jobs()
    assert f"{job.id}\n" == result.stdout
    assert str(folder / "treadle.db") in result.stderr


def test_the_first_enqueue_creates_the_database(treadle, folder):
    assert treadle("enqueue", "mail").exit_code == 0
    assert (folder / "treadle.db").exists()


def test_a_pair_with_equals_is_text_and_with_colon_equals_is_json(as_json):
    job = as_json("enqueue", "mail", "to=a=b", "n:=3", 'tags:=["x",null]', "url=http://a:=1", "empty=")
    assert job["payload"] == {"to": "a=b", "n": 3, "tags": ["x", None], "url": "http://a:=1", "empty": ""}


def test_a_json_object_is_the_payload_or_a_part_of_it(as_json):
    assert as_json("enqueue", "mail", '{"to": "a", "n": 3}')["payload"] == {"to": "a", "n": 3}
    assert as_json("enqueue", "mail", ' {"to": "a"}', "n:=3", "{}")["payload"] == {"to": "a", "n": 3}


@pytest.mark.parametrize(
    "pair", ["nothing", "=x", ":=1", "n:=", "n:=nope", "n:={", "n:=NaN", "{", '{"to"=1}', "{1: 2}"]
)
def test_an_invalid_pair_is_exit_code_2(treadle, folder, pair):
    result = treadle("enqueue", "mail", pair)
    assert result.exit_code == 2
    assert "✗" in result.stderr


def test_a_key_given_twice_is_exit_code_2(treadle):
    assert "given twice" in treadle("enqueue", "mail", "a=1", "a=2").stderr
    assert "'a' is given twice" in treadle("enqueue", "mail", '{"a": 1, "b": 1}', "a=2").stderr


def test_a_job_may_expire(treadle, as_json):
    job = as_json("enqueue", "mail", "--at", "2030-01-01T00:00Z", "--start-within", "5m")
    assert job["start_by"] == "2030-01-01T00:05:00Z"
    assert "start by" in treadle("jobs", "show", job["id"]).stdout
    assert "it is cancelled" in treadle("jobs", "why", job["id"]).stdout
    assert 2 == treadle("enqueue", "mail", "--start-within", "0").exit_code


def test_options_are_set_on_the_job(as_json):
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
def test_a_delay_has_units(as_json, text, seconds):
    job = as_json("enqueue", "mail", "--in", text)
    due, created = (datetime.fromisoformat(job[name]) for name in ("run_at", "created_at"))
    assert timedelta(seconds=seconds) == due - created


def test_run_at_is_an_iso_time(as_json):
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
        ["--dedupe-mode", "replace"],
        ["--dedupe", "k", "--dedupe-mode", "keep"],
        ["--dedupe", "k", "--dedupe-mode", "throttle"],
        ["--dedupe", "k", "--dedupe-mode", "debounce", "--dedupe-wait", "5"],
        ["--dedupe", "k", "--dedupe-mode", "debounce", "--dedupe-wait", "5", "--dedupe-at-most", "9", "--in", "3"],
        ["--dedupe", "k", "--dedupe-period", "1h"],
        ["--queue", ""],
        ["--after", "nonsense"],
        ["--after", "01890000-0000-7000-8000-000000000000"],
        ["--if-failed", "never"],
        ["--wait", "--timeout", "0"],
    ],
    ids=" ".join,
)
def test_an_invalid_option_is_exit_code_2(treadle, words):
    result = treadle("enqueue", "mail", *words)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


def test_a_second_job_with_the_same_key_is_the_first(treadle):
    first = treadle("enqueue", "mail", "--dedupe", "k")
    second = treadle("enqueue", "mail", "--dedupe", "k")
    assert first.stdout == second.stdout
    assert "is already pending" in second.stderr


def test_a_job_waits_for_its_parents(treadle, td):
    parents = [treadle("enqueue", "mail").stdout.strip() for _ in range(2)]
    child = treadle("enqueue", "mail", "--after", parents[0], "--after", parents[1], "--if-failed", "run")
    assert "blocked until its parents have ended" in child.stderr
    assert {(wait.what, wait.if_failed) for wait in td.waits(child.stdout.strip())} == {(id, "run") for id in parents}


def test_a_second_job_replaces_the_first(treadle, td):
    first = treadle("enqueue", "mail", "--dedupe", "k", "--dedupe-mode", "replace").stdout.strip()
    second = treadle("enqueue", "mail", "--dedupe", "k", "--dedupe-mode", "replace").stdout.strip()
    shown = treadle("jobs", "show", first).stdout
    assert f"replaced by {second}" in shown
    assert "dedupe replace" in shown
    assert f"replaced by {second}" in treadle("jobs", "why", first).stdout
    assert [job.id for job in td.jobs("status:pending")] == [second]


def test_a_variable_has_the_name_of_its_option(treadle):
    treadle("enqueue", "mail", "--dedupe", "k")

    second = treadle("enqueue", "mail", "--dedupe", "k", env={"TREADLE_ENQUEUE_DEDUPE_MODE": "reject"})

    assert (second.exit_code, "its dedupe key is held" in second.stderr) == (5, True)


def test_a_rejected_job_is_exit_code_5(treadle, td):
    first = treadle("enqueue", "mail", "--dedupe", "k", "--dedupe-mode", "reject").stdout.strip()
    second = treadle("enqueue", "mail", "--dedupe", "k", "--dedupe-mode", "reject")
    assert second.exit_code == 5
    assert f"the job was not stored: its dedupe key is held by job {first}" in second.stderr
    assert len(td.jobs()) == 1


def test_a_successor_waits_for_the_job_that_holds_its_key(treadle, td):
    first = treadle("enqueue", "mail", "--dedupe", "k").stdout.strip()
    td.claim(1)
    second = treadle("enqueue", "mail", "--dedupe", "k", "--dedupe-mode", "replace")
    id = second.stdout.strip()
    assert "due when its key is free" in second.stderr
    assert "when its key is free" in treadle("jobs", "ls").stdout
    assert "due when its key is free" in treadle("jobs", "show", id).stdout
    assert f"it waits until job {first} has ended" in treadle("jobs", "why", id).stdout


def test_a_throttled_job_is_stored_once_in_its_period(treadle):
    words = ("enqueue", "mail", "--dedupe", "k", "--dedupe-mode", "throttle", "--dedupe-period", "1h")
    assert treadle(*words).stdout == treadle(*words).stdout


def test_a_debounced_job_is_due_after_its_wait(treadle):
    words = ("--dedupe", "k", "--dedupe-mode", "debounce", "--dedupe-wait", "1h", "--dedupe-at-most", "2h")
    said = treadle("enqueue", "mail", *words)
    assert "due in 1h" in said.stderr or "due in 59m" in said.stderr
    assert "debounced until" in treadle("jobs", "why", said.stdout.strip()).stdout


def test_without_a_worker_it_says_that_the_job_waits(treadle):
    assert "no worker is running on this database" in treadle("enqueue", "mail").stderr


def test_a_type_that_no_live_worker_knows_is_noted_with_the_nearest(treadle, td):
    enlist(td, "host-1", "send_mail", "resize")
    said = treadle("enqueue", "send_mial").stderr
    assert "no live worker knows type 'send_mial'" in said
    assert "did you mean send_mail?" in said


def test_a_queue_that_no_live_worker_takes_from_is_noted(treadle, td):
    enlist(td, "host-1", "mail", queues=("fast",))
    assert "no live worker takes jobs from queue 'slow'" in treadle("enqueue", "mail", "--queue", "slow").stderr


def test_a_lost_worker_does_not_count(treadle, td):
    enlist(td, "host-1", "mail", seconds_ago=60)
    assert "no worker is running" in treadle("enqueue", "mail").stderr


def test_there_is_no_note_for_a_type_that_a_live_worker_handles(treadle, td):
    enlist(td, "host-1", "mail")
    assert "⚠" not in treadle("enqueue", "mail").stderr


def test_quiet_prints_only_the_id(treadle):
    assert treadle("enqueue", "mail", "--quiet").stderr == ""


def test_an_app_checks_the_payload_before_anything_is_stored(treadle, write_app, td):
    app = write_app("@td.job\ndef mail(to: str): ...")
    result = treadle("enqueue", "mail", "too=ada", "-a", app)
    assert result.exit_code == 2
    assert "mail" in result.stderr
    assert list(td.jobs()) == []


def test_waiting_prints_the_result(treadle, td):
    thread = settle_next(td, lambda lease: lease.complete({"sent": 3}))
    result = treadle("enqueue", "mail", "--wait")
    thread.join()
    assert result.exit_code == 0
    assert result.stdout == '{\n  "sent": 3\n}\n'


def test_waiting_with_json_prints_the_whole_job(as_json, td):
    thread = settle_next(td, lambda lease: lease.complete([1]))
    job = as_json("enqueue", "mail", "--wait")
    thread.join()
    assert (job["status"], job["result"]) == ("completed", [1])


def test_waiting_for_a_job_that_fails_is_exit_code_1(treadle, td):
    thread = settle_next(td, lambda lease: lease.fail("boom"))
    result = treadle("enqueue", "mail", "--wait", "--max-attempts", "1")
    thread.join()
    assert result.exit_code == 1
    assert "failed: boom" in result.stderr


def test_waiting_too_long_is_exit_code_124_and_the_job_stays(treadle, td):
    result = treadle("enqueue", "mail", "--wait", "--timeout", "50ms")
    assert result.exit_code == 124
    assert "is still pending" in result.stderr
    assert len(td.jobs()) == 1


def test_waiting_too_long_with_json_prints_the_job_as_it_is(as_json):
    assert as_json("enqueue", "mail", "--wait", "--timeout", "50ms", code=124)["status"] == "pending"


def test_an_interrupt_while_waiting_is_exit_code_130(start, td):
    process = start("enqueue", "mail", "--wait")
    assert process.stderr is not None
    while "no worker is running" not in process.stderr.readline():
        pass
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "interrupted" in process.stderr.read()
    [job] = td.jobs()
    assert not now(td, job).status.is_final


TYPED = """
@td.job
def scale(n: int, tags: list[str] = []): ...
"""


@pytest.mark.parametrize(
    ("pair", "way_out"), [("n=0", "write n:=0"), ("n=zero", "write n:=JSON"), ("tags=[]", "write 'tags:=[]'")]
)
def test_a_text_in_place_of_another_value_is_told_how_to_write_that(treadle, write_app, td, pair, way_out):
    result = treadle("enqueue", "scale", *({"n": "n:=1"} | {pair[:1]: pair}).values(), "--app", write_app(TYPED))
    assert result.exit_code == 2
    assert "does not fit: Expected `" in result.stderr
    assert f"→ {way_out}\n" in result.stderr
    assert [] == td.jobs().jobs


def test_a_type_that_the_app_does_not_have_is_stored_with_a_warning(treadle, write_app, td):
    app = write_app("@td.job\ndef send_mail(): ...\n@td.job\ndef send_mails(): ...\n")
    result = treadle("enqueue", "send_mial", "--app", app)
    assert result.exit_code == 0
    assert "the app has no type send_mial\n  → did you mean send_mail or send_mails?" in result.stderr
    assert "its types are: send_mail, send_mails" in treadle("enqueue", "xyz", "--app", app).stderr
    assert "has no type" not in treadle("enqueue", "send_mail", "--app", app).stderr
    assert 3 == td.count().value


def test_without_an_app_no_type_is_unknown(treadle):
    assert "has no type" not in treadle("enqueue", "send_mial").stderr
