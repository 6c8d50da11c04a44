"""`treadle demo`, as it is run from the README."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.helpers import enlist, processing
from treadle import Treadle
from treadle.cli.base import Shared
from treadle.cli.demo import kill_one, pid_of
from treadle.cli.demo_screen import DemoScreen
from treadle.stores.base import ClaimRequest, WorkerRow


def test_the_demo_ends_by_itself_and_shows_what_happened(start):
    process = start("demo")
    shown, said = process.communicate(timeout=150)
    assert process.returncode == 0, shown + said
    assert "kill -9" in shown
    assert re.search(r"\d jobs? back in the queue", shown)
    assert "✓ all 412 jobs completed" in shown
    table = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line[:1].isalpha()}
    assert table["charge_card"][:2] == ["60", "60"]
    assert table["publish_post"][:2] == ["12", "12"]
    assert table["resize_image"][:2] == ["80", "80"]
    assert table["send_mail"][:2] == ["260", "260"]
    place = next(line.rpartition(" ")[2] for line in shown.splitlines() if "jobs stored in" in line)
    assert not Path(place).parent.exists()


def test_what_the_demo_prints_is_true_for_its_database(start, folder):
    process = start("demo", "--json", "--db", "sqlite:///kept.db")
    shown, said = process.communicate(timeout=150)
    assert process.returncode == 0, said
    report = json.loads(shown)
    app = Treadle("sqlite:///kept.db")
    assert [{"status": "completed", "count": report["jobs"]}] == app.counts()
    assert report["unfinished"] == 0
    assert report["held_when_killed"] == sum(row["killed_and_completed"] for row in report["types"]) > 0
    assert app.workers() == []
    app.close()


def test_the_demo_has_a_dashboard_that_stays_until_it_is_interrupted(start):
    process = start("demo", "--dashboard")
    link = next(line for line in process.stdout if "watch them: " in line).rpartition(" ")[2].strip()
    with urllib.request.urlopen(link, timeout=20) as answer:
        assert "Signed in" in answer.read().decode()
    shown = ""
    for line in process.stdout:
        shown += line
        if "stays up" in line:
            break
    assert "all 412 jobs completed" in shown
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(link, timeout=20)


def test_the_demo_refuses_a_database_that_others_may_use(treadle, td):
    result = treadle("demo", "--db", "sqlite:///treadle.db")
    assert result.exit_code == 2
    assert "needs a database of its own" in result.stderr


def test_the_pid_of_a_worker_is_found_without_proc():
    assert pid_of(WorkerRow(id="x", name="my-host-77", concurrency=1)) == 77
    assert pid_of(WorkerRow(id="x", name="my-host-77", concurrency=1, host={"pid": 88})) == 88


def test_one_worker_is_not_shown_as_several(td, capsys):
    enlist(td, "host-1")
    processing(td)
    DemoScreen(Shared(), td).look()
    assert capsys.readouterr().out.endswith("0/1 completed, 1 processing, 1 worker\n")


@pytest.fixture
def sleeper():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def test_a_worker_is_killed_only_if_another_runs_which_is_not_taken_for_its_successor(td, capsys, sleeper):
    first = enlist(td, f"host-{sleeper.pid}", "mail")
    td.enqueue("mail")
    td.store.claim(first.id, ClaimRequest(limit=1))
    screen = DemoScreen(Shared(), td)
    kill_one(td, screen)
    assert (screen.victim, sleeper.poll()) == (None, None)
    enlist(td, "host-2", "mail")
    kill_one(td, screen)
    assert sleeper.wait(20) == -signal.SIGKILL
    td.store.declare_dead(first.id, "killed")
    screen.look()
    said = capsys.readouterr().out
    assert "it dies while it runs 1 job\n" in said
    assert "1 job back in the queue" in said
    assert "works in its place" not in said
    enlist(td, "host-3", "mail")
    screen.look()
    assert "host-3 works in its place" in capsys.readouterr().out
