"""`treadle worker`, in real processes."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from tests.cli.helpers import now
from treadle import Status

JOBS = """
import os, threading
@td.job
def good(): return os.getpid()
@td.job(timeout=0.2, max_attempts=1)
def stuck(): threading.Event().wait(600)
"""


def line_with(stream, text: str) -> str:
    """The next line with that text."""
    for line in stream:
        if text in line:
            return line
    raise AssertionError(f"ended without {text!r}")


def test_a_worker_prints_its_database_and_its_types(start, write_app, folder):
    process = start("worker", write_app(JOBS), "--concurrency", "3")
    line = line_with(process.stderr, "treadle ")
    assert str(folder / "treadle.db") in line
    assert "2 types: good, stuck · 3 at once" in line
    process.terminate()
    assert process.wait(60) == 0


def test_a_worker_runs_enqueued_jobs(start, write_app, td):
    process = start("worker", write_app(JOBS))
    assert process.pid != td.result(td.enqueue("good").id, timeout=60)  # the supervisor runs no jobs
    process.terminate()
    assert process.wait(60) == 0


def test_a_burst_runs_due_jobs_and_ends(start, write_app, td):
    jobs = [td.enqueue("good") for _ in range(20)]
    later = td.enqueue("good", delay=3600)
    process = start("worker", write_app(JOBS), "--burst", "--processes", "2")
    assert process.wait(60) == 0
    assert {Status.COMPLETED} == {now(td, job).status for job in jobs}
    assert now(td, later).status == Status.PENDING
    assert td.workers() == []


def test_a_worker_takes_only_from_its_queues(start, write_app, td):
    mine, other = td.enqueue("good", queue="fast"), td.enqueue("good")
    assert start("worker", write_app(JOBS), "--burst", "--queues", "fast").wait(60) == 0
    assert (now(td, mine).status, now(td, other).status) == (Status.COMPLETED, Status.PENDING)


def test_there_is_a_warning_for_a_queue_without_jobs(start, write_app, td):
    td.enqueue("good", queue="slow")
    app = write_app('@td.job(queue="fast")\ndef quick(): ...\n' + JOBS)
    process = start("worker", app, "--burst", "-Q", "fsat", "-Q", "nosuch", "-Q", "slow", "-Q", "fast")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said.count("no type uses queue") == 2
    assert "no type uses queue fsat, and no job is in it\n  → did you mean fast?" in said
    assert "no type uses queue nosuch, and no job is in it\n  → the queues are: default, fast, slow" in said


def test_dash_q_means_quiet_here_too(start, write_app):
    process = start("worker", write_app(JOBS), "--burst", "-q")
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("command", "says"),
    [("worker", "treadle workers ls --json"), ("dashboard", "the API answers in JSON")],
)
def test_json_is_refused_where_no_data_is_printed(treadle, command, says):
    for words in (["--json", command], [command, "--json"]):
        result = treadle(*words)
        assert result.exit_code == 2
        assert f"treadle {command} prints no JSON: leave --json out" in result.stderr
        assert says in result.stderr


def test_json_for_all_commands_does_not_keep_a_worker_from_starting(start, write_app):
    assert start("worker", write_app(JOBS), "--burst", TREADLE_JSON="1").wait(60) == 0


def test_a_killed_worker_is_replaced_and_its_supervisor_says_so(start, write_app, td):
    process = start("worker", write_app(JOBS))
    victim = td.result(td.enqueue("good").id, timeout=60)
    os.kill(victim, signal.SIGKILL)
    line_with(process.stderr, "was killed by SIGKILL")
    assert victim != td.result(td.enqueue("good").id, timeout=60)


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("no_such_app:td", "there is no module"),
        ("empty:nothing", "has no 'nothing'"),
        (
            "empty:td",
            "has no jobs\nNothing is declared with @td.job when the module is imported.\n→ import the modules that",
        ),
    ],
)
def test_an_app_that_cannot_be_loaded_ends_the_worker_with_exit_code_2(start, folder, app, says):
    (folder / "empty.py").write_text("from treadle import Treadle\ntd = Treadle()")
    process = start("worker", app)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert says in said


def test_a_database_that_cannot_be_opened_ends_the_worker_with_exit_code_3(start, write_app):
    process = start("worker", write_app(JOBS), "--db", "sqlite:///nowhere/jobs.db")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "mkdir -p" in said


@pytest.mark.parametrize("words", [["-c", "0"], ["-p", "0"], ["--grace", "x"]], ids=" ".join)
def test_invalid_options_are_exit_code_2(treadle, words):
    assert treadle("worker", "app:td", *words).exit_code == 2


def test_a_thread_that_never_ends_does_not_keep_the_worker_from_ending(start, write_app, td):
    process = start("worker", write_app(JOBS), "--grace", "0", "--concurrency", "3")
    with pytest.raises(Exception, match="timed out"):
        td.result(td.enqueue("stuck", max_attempts=1).id, timeout=60)
    process.terminate()
    assert process.wait(60) == 0


def test_python_dash_m_is_the_same_command(start):
    process = start("--version")
    assert process.communicate(timeout=60)[0].startswith("treadle ")


def test_a_lifespan_that_fails_ends_the_worker_with_its_reason(start, write_app):
    lifespan = '@td.lifespan\ndef mail(): raise OSError("no route to the mail server"); yield\n'
    app = write_app(lifespan + JOBS)
    process = start("worker", app)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert ".mail failed, so the worker cannot start: OSError: no route to the mail server" in said
    assert f"/{app}.py:4)" in said
    assert "Traceback" not in said


HANDLER = """
import logging
logger = logging.getLogger("app")
logger.addHandler(logging.StreamHandler())
logger.propagate = False
"""


@pytest.mark.parametrize("own", ["", "import logging; logging.basicConfig(format='mine: %(message)s')\n", HANDLER])
def test_log_lines_are_json_also_from_child_processes(start, write_app, td, own):
    jobs = f"""
{own}import logging
@td.job
def here(): logging.getLogger("app").warning("in a thread")
@td.job(run="process")
def apart(): logging.getLogger("app").warning("in a child")
"""
    sent = {td.enqueue(type, tenant="acme").id: type for type in ("here", "apart")}
    process = start("worker", write_app(jobs), "--burst", "--log-format", "json")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = [json.loads(line) for line in said.splitlines()]
    assert {line["job_id"]: line["job_type"] for line in lines} == sent
    assert {line["message"] for line in lines} == {"in a thread", "in a child"}
    assert {(line["tenant"], line["attempt"], line["level"]) for line in lines} == {("acme", 1, "WARNING")}


def test_an_app_keeps_its_own_logging_also_in_child_processes(start, write_app, td):
    jobs = """
import logging
logging.basicConfig(format="mine: %(message)s")
@td.job(run="process")
def apart(): logging.warning("in a child")
"""
    td.enqueue("apart")
    _, said = start("worker", write_app(jobs), "--burst").communicate(timeout=60)
    assert "mine: in a child" in said.splitlines()


def test_lines_for_people_have_the_date_and_the_job(start, write_app, td):
    job = td.enqueue("loud")
    process = start("worker", write_app('import logging\n@td.job\ndef loud(): logging.warning("hello")\n'), "--burst")
    _, said = process.communicate(timeout=60)
    assert re.search(
        rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d WARNING \d+ job {job.id} \(loud\): hello$", said, re.MULTILINE
    )
