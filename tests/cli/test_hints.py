"""Commands that the output recommends name the database and the app of this call."""

from __future__ import annotations

import shlex

import pytest

from tests.cli.helpers import failed
from treadle import Treadle
from treadle.cli.base import Shared

URL = "postgresql://joe:secret@host/jobs"


@pytest.mark.parametrize(
    ("given", "text", "hint"),
    [
        ({}, "start one: treadle worker app:td", "start one: treadle worker app:td"),
        ({"db": "sqlite:///x y.db"}, "treadle jobs retry ID", "treadle --db 'sqlite:///x y.db' jobs retry ID"),
        ({"db": URL}, "is it up? treadle doctor", "is it up? treadle --db 'postgresql://joe:•••@host/jobs' doctor"),
        ({"db": "sqlite:///x.db"}, "treadle worker app:td", "treadle --db sqlite:///x.db worker app:td"),
        (
            {"app": "shop:td"},
            "treadle jobs ls; treadle stats",
            "treadle --app shop:td jobs ls; treadle --app shop:td stats",
        ),
        ({"app": "shop:td"}, "treadle tick app:td", "treadle tick shop:td"),
        ({"target": "shop:td"}, "treadle doctor", "treadle --app shop:td doctor"),
        (
            {"app": "shop:td", "db": "sqlite:///x.db"},
            "treadle worker app:td",
            "treadle --db sqlite:///x.db worker shop:td",
        ),
        ({"db": "sqlite:///x.db"}, "treadle db upgrade --db sqlite:///y.db", "treadle db upgrade --db sqlite:///y.db"),
        ({"db": "sqlite:///x.db"}, "`treadle worker` creates it", "`treadle worker` creates it"),
        ({"program": "manage.py treadle"}, "treadle tokens ls", "manage.py treadle tokens ls"),
        ({"program": "manage.py treadle"}, "treadle worker app:td --burst", "manage.py treadle worker --burst"),
        (
            {"program": "manage.py treadle", "db": "sqlite:///x.db"},
            "treadle jobs retry ID",
            "manage.py treadle --db sqlite:///x.db jobs retry ID",
        ),
    ],
)
def test_a_hint_has_the_options_of_the_call(given, text, hint):
    assert hint == Shared(**given).hint(text)


def test_the_next_page_is_of_the_same_database(treadle, folder):
    td = Treadle(f"sqlite:///{folder}/other.db")
    jobs = [td.enqueue("mail") for _ in range(2)]
    td.close()
    first = treadle("jobs", "ls", "--limit", "1", "--db", "sqlite:///other.db")
    words = shlex.split(first.stderr.partition("more: ")[2])
    assert jobs[0].id in treadle(*words[1:]).stdout


@pytest.mark.parametrize(
    "words", [["stats"], ["doctor"], ["jobs", "why", "{id}"], ["top"], ["jobs", "retry", "{ready}"]]
)
def test_every_output_names_the_database_of_the_call(treadle, folder, words):
    td = Treadle(f"sqlite:///{folder}/other.db")
    ids = {"id": failed(td).id, "ready": td.enqueue("mail").id}
    td.close()
    result = treadle(*(word.format(**ids) for word in words), "--db", "sqlite:///other.db")
    assert "treadle --db sqlite:///other.db " in result.output


@pytest.mark.parametrize("words", ["pause mail", "drain mail", "ls"])
def test_the_command_that_resumes_names_the_app_of_the_call(treadle, td, write_app, words):
    td.pause(queue="mail")
    app = f"{write_app()}:td"
    assert f"→ treadle --app {app} queues resume mail\n" in treadle("queues", *words.split(), "--app", app).output


def test_a_server_that_cannot_be_reached_is_looked_at_again_without_its_password(treadle):
    result = treadle("stats", "--db", "postgresql://joe:secret@127.0.0.1:1/jobs")
    assert result.exit_code == 3
    assert "treadle --db 'postgresql://joe:•••@127.0.0.1:1/jobs' doctor" in result.stderr
