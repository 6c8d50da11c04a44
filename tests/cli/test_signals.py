"""`treadle jobs signal`, and what `jobs show`, `why`, `ls` and `retry` say of steps and waits."""

from __future__ import annotations

import pytest

from tests.durable import approval, child_of, suspend, take


def test_a_signal_is_printed_and_lets_its_job_go_on(treadle, td):
    job = suspend(td, approval())
    shown = treadle("jobs", "signal", "approve:c-7", '{"ok": true}', "--by", "ann")
    assert shown.stdout.split("  ") == ["approve:c-7", '{"ok":true}', "by ann\n"]
    again = treadle("jobs", "signal", "approve:c-7", "false")
    assert again.stdout == shown.stdout
    assert "approve:c-7 was sent before, by ann" in again.stderr
    assert [("signal", "approve:c-7")] == [(row.action, row.what) for row in td.store.audits(10)]
    assert take(td, job.id)


def test_a_signal_as_json(as_json, td):
    found = as_json("jobs", "signal", "pay", '{"password": "hunter2"}', "--tenant", "acme")
    assert (found["name"], found["tenant"], found["value"]) == ("pay", "acme", {"password": "•••"})
    assert found["by"].startswith("cli:")
    assert found == as_json("jobs", "signal", "pay", "--tenant", "acme")
    assert as_json("jobs", "signal", "pay", "--tenant", "acme", "--reveal")["value"] == {"password": "hunter2"}
    assert td.store.get_signal("pay") is None


@pytest.mark.parametrize(("words", "problem"), [(["go", "yes"], "is not JSON"), (["", "1"], "a signal needs a name")])
def test_a_bad_signal(treadle, td, words, problem):
    result = treadle("jobs", "signal", *words)
    assert result.exit_code != 0
    assert problem in result.stderr
    assert td.store.audits(10) == []


def test_a_job_is_shown_with_what_it_waits_for_and_its_steps(treadle, as_json, td):
    job = suspend(td, approval())
    child = child_of(td, job)

    shown, found = treadle("jobs", "show", job.id).stdout, as_json("jobs", "show", job.id)

    assert "approve:c-7" in shown
    assert "not sent" in shown
    assert "hunter2" not in shown
    assert [wait["what"] for wait in found["waits"]] == ["approve:c-7"]
    assert [(step["name"], step["value"]) for step in found["steps"]][1] == ("api_token", "•••")
    lines = treadle("jobs", "show", child.id).stdout
    assert f"parent  {job.id}  blocked" in lines
    assert "blocked until what it waits for has happened" in lines
    assert [child.id, job.id] == [one["id"] for one in as_json("jobs", "ls", "status:blocked")["items"]]
    assert "treadle jobs signal approve:c-7 [JSON]" in treadle("jobs", "why", job.id).stdout


def test_a_retry_from_a_step(treadle, td):
    job = suspend(td, approval())
    td.cancel(job.id)
    assert "plan" in treadle("jobs", "retry", job.id, "--from-step", "nope").stderr
    assert treadle("jobs", "retry", job.id, "--from-step", "api_token").exit_code == 0
    assert ["plan"] == [step.name for step in td.store.steps(job.id)]
    assert f"{job.id} from_step=api_token" == td.store.audits(10)[0].what
    assert "only reschedule does" in treadle("jobs", "retry", "status:failed", "--from-step", "plan", "--yes").stderr


def test_the_step_of_a_signal_has_no_attempt(treadle, td):
    job = suspend(td, approval())
    td.signal("approve:c-7", {"ok": True})
    take(td, job.id)

    [line] = [line for line in treadle("jobs", "show", job.id).stdout.splitlines() if '{"ok":true}' in line]

    assert "signal" in line
    assert line.split()[-3] == "-"
