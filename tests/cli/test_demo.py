"""`treadle demo`, as it is run from the README."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from treadle import Treadle
from treadle.cli.demo import pid_of
from treadle.stores.base import WorkerRow


def test_the_demo_ends_by_itself_and_shows_what_happened(start):
    process = start("demo")
    shown, said = process.communicate(timeout=150)
    assert process.returncode == 0, shown + said
    assert "kill -9" in shown
    assert "jobs are back in the queue" in shown
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
