"""`treadle tick`."""

from __future__ import annotations

import pytest

JOBS = """
@td.job
def good(): return 1
@td.job(max_attempts=1)
def bad(): raise RuntimeError("boom")
"""


def test_a_tick_runs_due_jobs(treadle, write_app, td, folder):
    app = write_app(JOBS)
    job = td.enqueue("good")
    result = treadle("tick", app)
    assert result.exit_code == 0
    assert result.stdout == "ran 1 job: 1 completed\n"
    assert str(folder / "treadle.db") in result.stderr
    assert td.result(job.id, timeout=1) == 1


def test_a_tick_as_json_is_its_report(as_json, write_app, td):
    app = write_app(JOBS)
    for _ in range(3):
        td.enqueue("good")
    report = as_json("tick", app, "--max-jobs", "2")
    assert (report["ran"], report["completed"]) == (2, 2)
    assert report["next_due_at"] is not None


def test_a_tick_in_which_a_job_fails_is_exit_code_1(treadle, write_app, td):
    app = write_app(JOBS)
    td.enqueue("bad", max_attempts=1)
    result = treadle("tick", app)
    assert result.exit_code == 1
    assert "1 failed" in result.stdout


def test_a_tick_as_json_is_ok_only_if_its_exit_code_is_0(as_json, write_app, td):
    app = write_app(JOBS)
    td.enqueue("bad", max_attempts=1)
    assert as_json("tick", app, code=1)["ok"] is False
    assert as_json("tick", app, code=0)["ok"] is True


def test_a_tick_with_nothing_to_do_is_exit_code_0(treadle, write_app):
    assert treadle("tick", write_app(JOBS)).stdout == "ran 0 jobs\n"


@pytest.mark.parametrize("words", [["--max-jobs", "0"], ["--max-seconds", "0"], ["--max-seconds", "x"]], ids=" ".join)
def test_a_tick_without_bounds_is_exit_code_2(treadle, write_app, words):
    assert treadle("tick", write_app(JOBS), *words).exit_code == 2
