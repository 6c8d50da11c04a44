"""`treadle jobs` with a filter: lists, and actions on many jobs."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.cli.helpers import completed, failed, now, processing
from treadle import Status
from treadle.bulk import Bulk


def ids(page):
    return [job["id"] for job in page["items"]]


# Lists


def test_a_filter_narrows_the_list(as_json, td):
    td.enqueue("other")
    job = td.enqueue("send_mail", {"user": {"id": 42}}, tenant="acme")
    for filter in ("type:send_*", "payload.user.id:42", "tenant:acme status:queued", job.id):
        assert [job.id] == ids(as_json("jobs", "ls", filter))


def test_a_filter_may_be_several_words(as_json, td):
    td.enqueue("other")
    job = failed(td, "mail", "connection refused")
    assert [job.id] == ids(as_json("jobs", "ls", "status:failed", 'error:"connection refused"'))


def test_a_list_as_json_is_the_same_as_in_the_api(as_json, td):
    stored = [td.enqueue("mail").id for _ in range(3)]
    page = as_json("jobs", "ls", "type:mail", "--limit", "2")
    assert ["items", "next_cursor", "total", "searched", "filter"] == list(page)
    assert ({"value": 3, "relation": "eq"}, None, "type:mail") == (page["total"], page["searched"], page["filter"])
    assert stored[:1] == ids(as_json("jobs", "ls", "type:mail", "--cursor", page["next_cursor"]))


def test_options_and_a_filter_must_both_match(treadle, as_json, td):
    td.enqueue("mail"), td.enqueue("other", tenant="acme")
    job = td.enqueue("mail", tenant="acme")
    assert [job.id] == ids(as_json("jobs", "ls", "tenant:acme", "--type", "mail"))
    result = treadle("jobs", "ls", "type:mail", "--type", "mail")
    assert result.exit_code == 2
    assert "Give it once" in result.stderr


def test_the_next_page_has_the_same_filter(treadle, td):
    for _ in range(3):
        td.enqueue("send mail")
    more = treadle("jobs", "ls", 'type:"send mail"', "--status", "pending", "--limit", "1").stderr
    assert "treadle jobs ls 'status:pending type:\"send mail\"' --limit 1 --cursor " in more


@pytest.mark.parametrize("words", [["ls", "staus:failed"], ["retry", "staus:failed", "--yes"]], ids=" ".join)
def test_an_unreadable_filter_is_exit_code_2(treadle, td, words):
    result = treadle("jobs", *words)
    assert result.exit_code == 2
    assert "cannot read 'staus:failed'" in result.stderr
    assert "did you mean status?" in result.stderr


def test_a_search_that_ends_early_says_so(treadle, as_json, td, monkeypatch):
    monkeypatch.setattr("treadle.stores.shared.search.SEARCHED", 2)
    monkeypatch.setattr("treadle.stores.shared.search.FIRST_LOOK", 1)
    for type in ("rare", "a", "b", "c"):
        td.enqueue(type)
    result = treadle("jobs", "ls", "type:rare")
    assert "no jobs match" in result.stderr
    assert "searched the newest 2 jobs" in result.stderr
    assert "--cursor" in result.stderr
    assert 2 == as_json("jobs", "ls", "type:rare")["searched"]


# Actions on many jobs


def test_a_bulk_action_prints_a_summary(treadle, td):
    jobs = [failed(td) for _ in range(3)]
    kept = completed(td)
    result = treadle("jobs", "retry", "status:failed", "--yes")
    assert (result.exit_code, result.stdout) == (0, "3 jobs retried\n")
    assert {Status.PENDING} == {now(td, job).status for job in jobs}
    assert now(td, kept).status is Status.COMPLETED


@pytest.mark.parametrize(
    ("verb", "filter", "printed", "status"),
    [
        ("run-now", "status:scheduled", "1 job made due", "pending"),
        ("reschedule --priority=9", "status:scheduled", "1 job rescheduled", "pending"),
        ("cancel", "status:pending", "1 job cancelled", "cancelled"),
        ("delete", "type:mail", "1 job deleted", None),
    ],
)
def test_every_action_accepts_a_filter(treadle, td, verb, filter, printed, status):
    job = td.enqueue("mail", delay=3600)
    result = treadle("jobs", *verb.split(), filter, "-y")
    assert (result.exit_code, result.stdout) == (0, f"{printed}\n")
    found = td.get(job.id)
    assert status == (found and found.status)


def test_a_job_runs_now_by_its_id(treadle, td):
    job = td.enqueue("mail", delay=3600)
    result = treadle("jobs", "run-now", job.id)
    assert (result.exit_code, result.stdout) == (0, f"{job.id}  due now\n")
    assert [job.id] == [lease.job.id for lease in td.claim()]


def test_a_job_is_rescheduled_by_its_id(treadle, as_json, td):
    job = td.enqueue("mail", delay=3600)
    result = treadle("jobs", "reschedule", job.id, "--in", "2h", "--priority", "4", "--queue", "slow")
    assert (result.exit_code, result.stdout) == (0, f"{job.id}  rescheduled\n")
    moved = now(td, job)
    assert (moved.priority, moved.queue) == (4, "slow")
    assert moved.run_at > job.run_at
    [shown] = as_json("jobs", "reschedule", job.id, "--priority", "5")["items"]
    assert (shown["ok"], shown["job"]["priority"]) == (True, 5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "add --delay or --run-at, --priority or --queue"),
        (["--priority", "40000"], "-32767 to 32767"),
        (["--delay", "1h", "--run-at", "2030-01-01"], "either delay or run_at"),
        (["--queue", ""], "cannot be empty"),
    ],
    ids=str,
)
@pytest.mark.parametrize("which", ["id", "filter"])
def test_a_reschedule_with_wrong_options_changes_nothing(treadle, td, which, options, said):
    job = td.enqueue("mail", delay=3600)
    result = treadle("jobs", "reschedule", job.id if which == "id" else "type:mail", "--yes", *options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert now(td, job) == job


def test_an_ended_job_cannot_be_rescheduled(treadle, td):
    result = treadle("jobs", "reschedule", completed(td).id, "--priority", "1")
    assert result.exit_code == 5
    assert "use retry for one that has ended" in result.stderr


def test_an_ended_job_cannot_run_now(treadle, td):
    result = treadle("jobs", "run-now", completed(td).id)
    assert result.exit_code == 5
    assert "use retry for one that has ended" in result.stderr


def test_a_bulk_action_as_json(as_json, td):
    failed(td), failed(td)
    answer = as_json("jobs", "delete", "status:failed", "type:mail", "--yes")
    assert answer == {"action": "delete", "filter": "status:failed type:mail", "total": 2, "done": 2, "skipped": 0}


def test_jobs_that_do_not_allow_the_action_are_counted_as_skipped(treadle, td):
    failed(td), td.enqueue("mail")
    result = treadle("jobs", "retry", "type:mail", "--yes")
    assert result.exit_code == 0
    assert "1 job retried, skipped 1 whose status no longer allows it" in result.stdout


def test_an_action_that_applies_to_no_job_is_exit_code_5(treadle, td):
    processing(td)
    assert treadle("jobs", "delete", "type:mail", "--yes").exit_code == 5


def test_a_filter_without_matches_is_exit_code_0(treadle, as_json, td):
    result = treadle("jobs", "retry", "status:failed")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no jobs match" in result.stderr
    assert 0 == as_json("jobs", "retry", "status:failed")["total"]


def test_a_count_other_than_expected_is_exit_code_5_and_changes_nothing(treadle, td):
    job = failed(td)
    result = treadle("jobs", "retry", "status:failed", "--expect", "2", "--yes")
    assert result.exit_code == 5
    assert "expected 2 matching jobs, found 1" in result.stderr
    assert "Nothing was changed" in result.stderr
    assert now(td, job).status is Status.FAILED
    assert treadle("jobs", "retry", job.id, "--expect", "2").exit_code == 5
    assert treadle("jobs", "retry", "status:failed", "--expect", "1", "--yes").exit_code == 0


def test_a_bulk_action_without_a_terminal_to_confirm_on_is_refused(treadle, td):
    job = failed(td)
    result = treadle("jobs", "retry", "status:failed", input="y\n")
    assert result.exit_code == 2
    assert "will not retry without asking: 1 job matches" in result.stderr
    assert "add --yes" in result.stderr
    assert now(td, job).status is Status.FAILED


def on_a_terminal(folder, *words, answer=b""):
    """Run a command on a terminal. Return its stderr and exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "treadle", "jobs", *words],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        cwd=folder,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    os.write(ours, answer)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # how Linux reports that the other end is closed
            break
        shown += part
    code = process.wait(60)
    os.close(ours)
    return shown.decode(), code


@pytest.mark.parametrize(("answer", "code", "status"), [(b"y\n", 0, "pending"), (b"n\n", 1, "failed")])
def test_a_bulk_action_on_a_terminal_shows_the_count_asks_and_shows_progress(td, folder, answer, code, status):
    jobs = [failed(td), failed(td)]
    shown, got = on_a_terminal(folder, "retry", "status:failed", answer=answer)
    assert "2 jobs match. Retry them? [y/N]" in shown
    assert got == code
    assert {status} == {now(td, job).status for job in jobs}
    assert ("2/2" in shown) is (code == 0)


def test_a_bulk_delete_asks_first(td, folder):
    failed(td)
    shown, code = on_a_terminal(folder, "delete", "status:failed", answer=b"n\n")
    assert "1 job matches. Delete it permanently? [y/N]" in shown
    assert code == 1


# Clone


def test_a_clone_is_a_new_job_with_the_changed_values(treadle, as_json, td):
    job = td.enqueue("mail", {"to": "ada", "n": 1}, tenant="acme")
    result = treadle("jobs", "clone", job.id, "to=bob", "cc:=[1]")
    assert result.exit_code == 0
    clone = td.get(result.stdout.strip())
    assert clone is not None
    assert (clone.payload, clone.tenant) == ({"to": "bob", "n": 1, "cc": [1]}, "acme")
    assert f"like {job.id}" in result.stderr
    assert job.payload == as_json("jobs", "clone", job.id)["payload"]


def test_a_clone_of_a_missing_job_is_exit_code_4(treadle, td):
    assert treadle("jobs", "clone", "nothing").exit_code == 4


def test_a_clone_with_an_argument_that_is_not_a_pair_is_exit_code_2(treadle, td):
    assert treadle("jobs", "clone", td.enqueue("mail").id, "nonsense").exit_code == 2


def test_a_bulk_action_that_is_interrupted_says_how_far_it_got(treadle, td, monkeypatch):
    for _ in range(3):
        failed(td)
    step, steps = Bulk.step, []

    def interrupted(work):
        if steps:
            raise KeyboardInterrupt
        steps.append(step(work))
        return steps[0]

    monkeypatch.setattr("treadle.bulk.CHUNK", 2)
    monkeypatch.setattr(Bulk, "step", interrupted)
    result = treadle("jobs", "retry", "status:failed", "--yes")
    assert result.exit_code == 130
    assert "stopped: 2 jobs retried; the others are unchanged" in result.stderr
    assert {Status.PENDING: 2, Status.FAILED: 1} == {row["status"]: row["count"] for row in td.counts()}
