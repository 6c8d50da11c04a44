"""`windlass jobs` with a filter: lists, and one thing done to many."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.cli.helpers import completed, failed, now, processing
from windlass import Status
from windlass.bulk import Bulk


def ids(page):
    return [job["id"] for job in page["items"]]


# Lists


def test_a_filter_narrows_the_list(as_json, wl):
    wl.enqueue("other")
    job = wl.enqueue("send_mail", {"user": {"id": 42}}, tenant="acme")
    for filter in ("type:send_*", "payload.user.id:42", "tenant:acme status:queued", job.id):
        assert [job.id] == ids(as_json("jobs", "ls", filter))


def test_a_filter_may_be_several_words(as_json, wl):
    wl.enqueue("other")
    job = failed(wl, "mail", "connection refused")
    assert [job.id] == ids(as_json("jobs", "ls", "status:failed", 'error:"connection refused"'))


def test_a_list_as_json_is_as_the_api_has_it(as_json, wl):
    stored = [wl.enqueue("mail").id for _ in range(3)]
    page = as_json("jobs", "ls", "type:mail", "--limit", "2")
    assert ["items", "next_cursor", "total", "searched", "filter"] == list(page)
    assert ({"value": 3, "relation": "eq"}, None, "type:mail") == (page["total"], page["searched"], page["filter"])
    assert stored[:1] == ids(as_json("jobs", "ls", "type:mail", "--cursor", page["next_cursor"]))


def test_options_and_a_filter_hold_together(windlass, as_json, wl):
    wl.enqueue("mail"), wl.enqueue("other", tenant="acme")
    job = wl.enqueue("mail", tenant="acme")
    assert [job.id] == ids(as_json("jobs", "ls", "tenant:acme", "--type", "mail"))
    result = windlass("jobs", "ls", "type:mail", "--type", "mail")
    assert result.exit_code == 2
    assert "Say it once" in result.stderr


def test_the_next_page_has_the_same_filter(windlass, wl):
    for _ in range(3):
        wl.enqueue("send mail")
    more = windlass("jobs", "ls", 'type:"send mail"', "--status", "pending", "--limit", "1").stderr
    assert "windlass jobs ls 'status:pending type:\"send mail\"' --limit 1 --cursor " in more


@pytest.mark.parametrize("words", [["ls", "staus:failed"], ["retry", "staus:failed", "--yes"]], ids=" ".join)
def test_a_filter_that_cannot_be_read_is_exit_code_2(windlass, wl, words):
    result = windlass("jobs", *words)
    assert result.exit_code == 2
    assert "cannot read 'staus:failed'" in result.stderr
    assert "did you mean status?" in result.stderr


def test_a_search_that_ends_early_says_so(windlass, as_json, wl, monkeypatch):
    monkeypatch.setattr("windlass.stores.sql.search.SEARCHED", 2)
    monkeypatch.setattr("windlass.stores.sql.search.FIRST_LOOK", 1)
    for type in ("rare", "a", "b", "c"):
        wl.enqueue(type)
    result = windlass("jobs", "ls", "type:rare")
    assert "no jobs match" in result.stderr
    assert "searched the newest 2 jobs" in result.stderr
    assert "--cursor" in result.stderr
    assert 2 == as_json("jobs", "ls", "type:rare")["searched"]


# One thing done to many


def test_a_bulk_is_summed_up(windlass, wl):
    jobs = [failed(wl) for _ in range(3)]
    kept = completed(wl)
    result = windlass("jobs", "retry", "status:failed", "--yes")
    assert (result.exit_code, result.stdout) == (0, "retried 3 jobs\n")
    assert {Status.PENDING} == {now(wl, job).status for job in jobs}
    assert now(wl, kept).status is Status.COMPLETED


@pytest.mark.parametrize(
    ("verb", "filter", "told", "status"),
    [
        ("run-now", "status:scheduled", "let run 1 job", "pending"),
        ("cancel", "status:pending", "cancelled 1 job", "cancelled"),
        ("delete", "type:mail", "deleted 1 job", None),
    ],
)
def test_every_verb_takes_a_filter(windlass, wl, verb, filter, told, status):
    job = wl.enqueue("mail", delay=3600)
    result = windlass("jobs", verb, filter, "-y")
    assert (result.exit_code, result.stdout) == (0, f"{told}\n")
    found = wl.get(job.id)
    assert status == (found and found.status)


def test_a_job_runs_now_by_its_id(windlass, wl):
    job = wl.enqueue("mail", delay=3600)
    result = windlass("jobs", "run-now", job.id)
    assert (result.exit_code, result.stdout) == (0, f"{job.id}  due now\n")
    assert [job.id] == [lease.job.id for lease in wl.claim()]


def test_an_ended_job_cannot_run_now(windlass, wl):
    result = windlass("jobs", "run-now", completed(wl).id)
    assert result.exit_code == 5
    assert "one that has ended can be retried" in result.stderr


def test_a_bulk_as_json(as_json, wl):
    failed(wl), failed(wl)
    answer = as_json("jobs", "delete", "status:failed", "type:mail", "--yes")
    assert answer == {"action": "delete", "filter": "status:failed type:mail", "total": 2, "done": 2, "skipped": 0}


def test_what_cannot_be_done_to_some_is_told(windlass, wl):
    failed(wl), wl.enqueue("mail")
    result = windlass("jobs", "retry", "type:mail", "--yes")
    assert result.exit_code == 0
    assert "retried 1 job, skipped 1: that cannot be done to them as they are now" in result.stdout


def test_what_can_be_done_to_none_is_exit_code_5(windlass, wl):
    processing(wl)
    assert windlass("jobs", "delete", "type:mail", "--yes").exit_code == 5


def test_no_match_is_no_problem(windlass, as_json, wl):
    result = windlass("jobs", "retry", "status:failed")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no jobs match" in result.stderr
    assert 0 == as_json("jobs", "retry", "status:failed")["total"]


def test_another_number_than_expected_is_exit_code_5_and_changes_nothing(windlass, wl):
    job = failed(wl)
    result = windlass("jobs", "retry", "status:failed", "--expect", "2", "--yes")
    assert result.exit_code == 5
    assert "2 jobs were to be changed, but 1 match now" in result.stderr
    assert "Nothing was changed" in result.stderr
    assert now(wl, job).status is Status.FAILED
    assert windlass("jobs", "retry", job.id, "--expect", "2").exit_code == 5
    assert windlass("jobs", "retry", "status:failed", "--expect", "1", "--yes").exit_code == 0


def test_a_bulk_without_a_terminal_to_ask_on_is_refused(windlass, wl):
    job = failed(wl)
    result = windlass("jobs", "retry", "status:failed", input="y\n")
    assert result.exit_code == 2
    assert "will not retry unasked: 1 job matches" in result.stderr
    assert "add --yes" in result.stderr
    assert now(wl, job).status is Status.FAILED


def on_a_terminal(folder, *words, answer=b""):
    """What it wrote on stderr, and its exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "windlass", "jobs", *words],
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
        except OSError:  # how Linux says that nobody is left at the other end
            break
        shown += part
    code = process.wait(60)
    os.close(ours)
    return shown.decode(), code


@pytest.mark.parametrize(("answer", "code", "status"), [(b"y\n", 0, "pending"), (b"n\n", 1, "failed")])
def test_a_bulk_on_a_terminal_tells_the_number_asks_and_shows_how_far_it_is(wl, folder, answer, code, status):
    jobs = [failed(wl), failed(wl)]
    shown, got = on_a_terminal(folder, "retry", "status:failed", answer=answer)
    assert "2 jobs match. Retry them? [y/N]" in shown
    assert got == code
    assert {status} == {now(wl, job).status for job in jobs}
    assert ("2/2" in shown) is (code == 0)


def test_a_bulk_delete_asks_for_ever(wl, folder):
    failed(wl)
    shown, code = on_a_terminal(folder, "delete", "status:failed", answer=b"n\n")
    assert "1 job matches. Delete it for ever? [y/N]" in shown
    assert code == 1


# Clone


def test_a_clone_is_a_new_job_with_what_is_changed(windlass, as_json, wl):
    job = wl.enqueue("mail", {"to": "ada", "n": 1}, tenant="acme")
    result = windlass("jobs", "clone", job.id, "to=bob", "cc:=[1]")
    assert result.exit_code == 0
    clone = wl.get(result.stdout.strip())
    assert clone is not None
    assert (clone.payload, clone.tenant) == ({"to": "bob", "n": 1, "cc": [1]}, "acme")
    assert f"like {job.id}" in result.stderr
    assert job.payload == as_json("jobs", "clone", job.id)["payload"]


def test_a_clone_of_no_job_is_exit_code_4(windlass, wl):
    assert windlass("jobs", "clone", "nothing").exit_code == 4


def test_a_clone_with_a_word_that_is_no_pair_is_exit_code_2(windlass, wl):
    assert windlass("jobs", "clone", wl.enqueue("mail").id, "nonsense").exit_code == 2


def test_a_bulk_that_is_interrupted_says_how_far_it_came(windlass, wl, monkeypatch):
    for _ in range(3):
        failed(wl)
    step, steps = Bulk.step, []

    def interrupted(work):
        if steps:
            raise KeyboardInterrupt
        steps.append(step(work))
        return steps[0]

    monkeypatch.setattr("windlass.bulk.BATCH", 2)
    monkeypatch.setattr(Bulk, "step", interrupted)
    result = windlass("jobs", "retry", "status:failed", "--yes")
    assert result.exit_code == 130
    assert "stopped: retried 2; the others are as they were" in result.stderr
    assert {Status.PENDING: 2, Status.FAILED: 1} == {row["status"]: row["count"] for row in wl.counts()}
