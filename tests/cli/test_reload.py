"""`treadle worker --reload`, in real processes."""

from __future__ import annotations

import os
import sys
import types

import pytest

from tests.cli.helpers import now
from tests.cli.test_worker import line_with
from tests.eventually import eventually
from treadle import Status
from treadle.cli.reload import SourceFiles

HELPER = "def answer(): return '{}'\n"
APP = """
import os, pathlib, time, reloaded_helper
@td.job
def ask(): return reloaded_helper.answer()
@td.job
def wait(ctx: Context, gate: str):
    while not pathlib.Path(gate).exists() and not ctx.cancelled: time.sleep(0.01)
    return reloaded_helper.answer()
"""


@pytest.fixture
def helper(folder):
    def write(answer: str) -> None:
        (folder / "reloaded_helper.py").write_text(HELPER.format(answer))

    write("one")
    return write


def ask(td) -> str:
    return td.result(td.enqueue("ask").id, timeout=60)


def test_a_worker_restarts_with_the_new_code_and_lets_running_jobs_end(start, write_app, td, helper, folder):
    name = write_app(APP)
    process = start("worker", name, "--reload")
    line_with(process.stderr, "treadle ")
    running = td.enqueue("wait", {"gate": str(folder / "open")})
    assert ask(td) == "one"
    eventually(lambda: now(td, running).status is Status.PROCESSING)
    old = now(td, running).worker_id
    helper("two")
    line_with(process.stderr, "reloaded_helper.py has changed: the worker restarts")
    (folder / "open").touch()
    line_with(process.stderr, "treadle ")
    assert td.result(running.id, timeout=60) == "one"
    assert (now(td, running).attempts, now(td, running).worker_id) == (1, old)
    assert ask(td) == "two"

    (folder / f"{name}.py").write_text("def broken(:")
    line_with(process.stderr, f"{name}.py has changed")
    line_with(process.stderr, "SyntaxError")
    line_with(process.stderr, "the worker waits until you change it")
    write_again = "from treadle import *\ntd = Treadle()\n@td.job\ndef ask(): return 'three'\n"
    (folder / f"{name}.py").write_text(write_again)
    line_with(process.stderr, "1 type: ask")
    assert ask(td) == "three"
    assert process.poll() is None
    process.terminate()
    assert process.wait(60) == 0


def test_a_job_that_does_not_end_is_released_and_runs_again_with_the_new_code(start, write_app, td, helper, folder):
    process = start("worker", write_app(APP), "--reload", "--grace", "0")
    line_with(process.stderr, "treadle ")
    job = td.enqueue("wait", {"gate": str(folder / "open")})
    eventually(lambda: now(td, job).status is Status.PROCESSING)
    helper("two")
    line_with(process.stderr, "treadle ")
    (folder / "open").touch()
    assert td.result(job.id, timeout=60) == "two"
    assert now(td, job).attempts == 1


def test_an_app_that_never_worked_ends_the_worker_also_with_reload(start, folder):
    (folder / "never.py").write_text("1 / 0")
    process = start("worker", "never:td", "--reload")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "ZeroDivisionError" in said


def test_reload_and_burst_exclude_each_other(treadle, write_app):
    result = treadle("worker", write_app(APP), "--reload", "--burst")
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr


def test_a_file_is_seen_when_it_changes_and_not_while_it_is_missing(folder, monkeypatch):
    path = folder / "seen.py"
    path.write_text("")
    os.utime(path, (1, 1))
    module = types.ModuleType("seen")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "seen", module)
    files = SourceFiles()
    assert files.changed() is None
    path.unlink()
    assert files.changed() is None
    path.write_text("")
    os.utime(path, (2, 2))
    assert files.changed() == str(path)


def test_a_file_that_changes_while_it_is_imported_is_seen(folder, monkeypatch):
    files = SourceFiles()
    path = folder / "late.py"
    path.write_text("")
    assert files.changed([str(path)]) == str(path)
    os.utime(path, (2**33, 2**33))  # the clock was wrong: it must not restart for ever
    assert SourceFiles().changed([str(path)]) is None


def test_what_is_installed_is_left_out(monkeypatch):
    module = types.ModuleType("installed")
    module.__file__ = os.__file__
    monkeypatch.setitem(sys.modules, "installed", module)
    files = SourceFiles()
    files.changed()
    assert os.__file__ not in files._seen
