"""`treadle jobs`."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys

import pytest

from tests.cli.helpers import completed, enlist, failed, now, processing
from treadle import Context, Status


def ids(page):
    return [job["id"] for job in page["items"]]


def test_jobs_are_listed_newest_first(treadle, td):
    first, second = td.enqueue("mail"), td.enqueue("resize")
    lines = treadle("jobs", "ls").stdout.splitlines()
    assert lines[0].split()[0] == "ID"
    assert [second.id, first.id] == [line.split()[0] for line in lines[1:]]


def test_an_empty_list_says_so_on_stderr(treadle, td):
    result = treadle("jobs", "ls")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "no jobs" in result.stderr


def test_every_filter_narrows_the_list(as_json, td):
    td.enqueue("other")
    job = td.enqueue("mail", queue="slow", tenant="acme", subject="call-7")
    for filter in (["--type", "mail"], ["--queue", "slow"], ["--tenant", "acme"], ["--subject", "call-7"]):
        assert [job.id] == ids(as_json("jobs", "ls", *filter))


def test_several_statuses_are_combined(as_json, td):
    done, broken, _ = completed(td), failed(td), td.enqueue("mail")
    assert {done.id, broken.id} == set(ids(as_json("jobs", "ls", "--status", "completed", "-s", "failed")))


def test_the_cursor_leads_through_all_pages(treadle, as_json, td):
    stored = [td.enqueue("mail").id for _ in range(5)]
    first = as_json("jobs", "ls", "--limit", "3")
    second = as_json("jobs", "ls", "--limit", "3", "--cursor", first["next_cursor"])
    assert stored[::-1] == ids(first) + ids(second)
    assert second["next_cursor"] is None
    more = treadle("jobs", "ls", "--limit", "3", "--type", "mail").stderr
    assert f"treadle jobs ls type:mail --limit 3 --cursor {first['next_cursor']}" in more


@pytest.mark.parametrize(
    "words", [["--status", "running"], ["--limit", "0"], ["--limit", "201"], ["--cursor", "x"], ["--nonsense"]]
)
def test_an_invalid_filter_is_exit_code_2(treadle, td, words):
    assert treadle("jobs", "ls", *words).exit_code == 2


def test_the_text_of_a_job_cannot_control_the_terminal(treadle, td):
    job = failed(td, "mail", "\x1b[31mred\x07 [bold]\nsecond line", tenant="\x1b]0;title\x07")
    for words in (["jobs", "ls"], ["jobs", "show", job.id]):
        shown = treadle(*words).stdout
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "\\x1b[31mred\\x07 [bold] second line" in shown


def test_show_prints_everything_about_a_job(treadle, td):
    job = td.enqueue("mail", {"to": "ada", "big": 9007199254740993}, tenant="acme", subject="call-7", priority=3)
    [lease] = td.claim()
    try:
        raise ConnectionError("refused")
    except ConnectionError as error:
        lease.fail(error, retry_in=0)
    [lease] = td.claim()
    lease.complete({"sent": True})

    shown = treadle("jobs", "show", job.id).stdout

    for part in (
        job.id,
        "● completed",
        "tenant acme",
        "subject call-7",
        "priority 3",
        "2 of 5 attempts",
        '"big": 9007199254740993',
        "attempt 1 failed after",
        "ConnectionError: refused",
        "Traceback (most recent call last)",
        '"sent": true',
    ):
        assert part in shown


def test_a_running_job_shows_its_progress(treadle, td):
    from treadle.job import Progress
    from treadle.stores.base import ClaimRequest

    worker = enlist(td, "host-1", "mail")
    job = td.enqueue("mail")
    [claimed] = td.store.claim(worker.id, ClaimRequest(limit=1))
    td.store.save_progress([(claimed, Progress(0.62, "page 31 of 50"))])
    shown = treadle("jobs", "show", job.id).stdout
    assert "62% page 31 of 50" in shown
    assert "started on worker host-1" in shown


def test_the_timeline_names_workers_that_have_ended(treadle, td):
    @td.job(max_attempts=2, backoff=0)
    def mail(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise OSError

    job = mail.enqueue()
    while td.tick().ran:
        pass
    assert not td.workers()

    lines = treadle("jobs", "show", job.id).stdout.splitlines()

    name = f"worker {socket.gethostname()}-{os.getpid()}"
    assert [f"attempt {n} started on {name}" for n in (1, 2)] == [
        line[line.index("attempt") :] for line in lines if "started on" in line
    ]


def test_a_shown_job_says_how_often_it_was_snoozed(treadle, as_json, td):
    job = td.enqueue("mail")
    assert "snoozed" not in treadle("jobs", "show", job.id).stdout
    for _ in range(2):
        [lease] = td.claim()
        lease.snooze(0)
    assert "0 of 5 attempts · snoozed 2 times" in treadle("jobs", "show", job.id).stdout
    assert as_json("jobs", "show", job.id)["snoozes"] == 2


def test_a_shown_job_is_json_with_its_history(as_json, td):
    job = failed(td, error="broken", max_attempts=1)
    shown = as_json("jobs", "show", job.id)
    assert (shown["status"], shown["error"]) == ("failed", "broken")
    assert [attempt["error"] for attempt in shown["history"]] == ["broken"]


def test_a_missing_job_is_exit_code_4(treadle, td):
    result = treadle("jobs", "show", "nothing")
    assert result.exit_code == 4
    assert "✗ there is no job nothing" in result.stderr
    assert "→ treadle jobs ls" in result.stderr


def test_failed_jobs_are_retried(treadle, td):
    jobs = [failed(td), failed(td)]
    result = treadle("jobs", "retry", *(job.id for job in jobs))
    assert result.exit_code == 0
    assert [job.id for job in jobs] == [line.split()[0] for line in result.stdout.splitlines()]
    assert {Status.PENDING} == {now(td, job).status for job in jobs}


def test_a_retry_of_a_waiting_job_is_exit_code_5(treadle, td):
    job = td.enqueue("mail")
    result = treadle("jobs", "retry", job.id)
    assert result.exit_code == 5
    assert "it is pending" in result.stderr
    assert f"→ treadle jobs show {job.id}" in result.stderr


def test_a_retry_whose_key_is_in_use_is_exit_code_5_and_names_the_holder(treadle, td):
    job = failed(td, dedupe="k")
    holder = td.enqueue("mail", dedupe="k")
    result = treadle("jobs", "retry", job.id)
    assert result.exit_code == 5
    assert holder.id in result.stderr


def test_waiting_jobs_are_cancelled_and_running_ones_are_asked_to_stop(treadle, td):
    running, waiting = processing(td), td.enqueue("mail")
    out = treadle("jobs", "cancel", waiting.id, running.id).stdout
    assert f"{waiting.id}  cancelled" in out
    assert f"{running.id}  its worker is asked to stop it" in out
    assert now(td, waiting).status == Status.CANCELLED


def test_errors_are_shown_for_each_job_and_the_others_are_changed(treadle, as_json, td):
    good, ended = td.enqueue("mail"), completed(td, "other")
    result = as_json("jobs", "cancel", good.id, ended.id, code=5)
    assert [(good.id, True), (ended.id, False)] == [(item["id"], item["ok"]) for item in result["items"]]
    assert result["items"][0]["job"]["status"] == "cancelled"
    assert result["items"][1]["exit_code"] == 5
    assert now(td, good).status == Status.CANCELLED


def test_errors_of_different_kinds_are_exit_code_1(treadle, td):
    result = treadle("jobs", "cancel", completed(td).id, "nothing")
    assert result.exit_code == 1
    assert result.stderr.count("✗") == 2


def test_jobs_are_deleted_with_yes(treadle, td):
    job = completed(td)
    assert treadle("jobs", "delete", job.id, "--yes").exit_code == 0
    assert td.get(job.id) is None


def test_a_delete_without_a_terminal_to_confirm_on_is_refused(treadle, td):
    job = completed(td)
    result = treadle("jobs", "delete", job.id, input="y\n")
    assert result.exit_code == 2
    assert "add --yes" in result.stderr
    assert td.get(job.id) is not None


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, False), (b"n\n", 1, True)])
def test_a_delete_on_a_terminal_asks(td, folder, answer, code, left):
    job = completed(td)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "treadle", "jobs", "delete", job.id], stdin=theirs, stderr=subprocess.PIPE, cwd=folder
    )
    os.write(ours, answer)
    _, asked = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert b"permanently?" in asked
    assert code == process.returncode
    assert left is (td.get(job.id) is not None)


def test_a_running_job_is_not_deleted(treadle, td):
    result = treadle("jobs", "delete", processing(td).id, "--yes")
    assert result.exit_code == 5
    assert "cancel it first" in result.stderr


def test_an_action_without_an_id_is_exit_code_2(treadle, td):
    assert treadle("jobs", "retry").exit_code == 2


def test_why_shows_the_reasons_and_the_next_step(treadle, td):
    job = td.enqueue("mail")

    lines = treadle("jobs", "why", job.id).stdout.splitlines()

    assert "pending" in lines[0]
    assert ["• no worker is running on this database", "  → start one: treadle worker app:td"] == lines[1:]


def test_why_as_json_has_the_deciding_reason_first(as_json, td):
    job = failed(td)

    answer = as_json("jobs", "why", job.id)

    assert (job.id, "failed") == (answer["id"], answer["status"])
    assert {"code", "text", "way_out", "data"} == answer["reasons"][0].keys()


def test_why_of_an_unknown_job_is_exit_code_4(treadle, td):
    assert treadle("jobs", "why", "no-such-job").exit_code == 4


def test_secrets_are_not_printed(treadle, td):
    job = td.enqueue("login", {"user": "ada", "password": "hunter2"}, max_attempts=1)
    [lease] = td.claim()
    lease.fail(RuntimeError("no such login: password=hunter2"))
    for words in (["show", job.id], ["ls"], ["why", job.id]):
        for more in ([], ["--json"]):
            printed = treadle("jobs", *words, *more)
            assert printed.exit_code == 0
            assert "login" in printed.stdout
            assert "hunter2" not in printed.output


def test_scheduled_and_retrying_jobs_are_shown_as_that(treadle, as_json, td):
    later, due = td.enqueue("mail", delay=3600), td.enqueue("resize")
    again = td.enqueue("crawl")
    [lease] = td.claim(types=["crawl"])
    lease.fail(ValueError("refused"))
    shown = {line.split()[0]: line.split()[3] for line in treadle("jobs", "ls").stdout.splitlines()[1:]}
    assert shown == {later.id: "scheduled", due.id: "pending", again.id: "retrying"}
    assert "○ retrying" in treadle("jobs", "show", again.id).stdout
    states = {job["id"]: (job["status"], job["state"]) for job in as_json("jobs", "ls")["items"]}
    expected = {later.id: ("pending", "scheduled"), due.id: ("pending", "queued"), again.id: ("pending", "retrying")}
    assert states == expected
