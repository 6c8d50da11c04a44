"""Which database and which app a command means, and what it says when there is none."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from tests.cli.helpers import looking
from windlass import Windlass


@looking
def test_looking_at_a_database_that_is_not_there_does_not_create_it(windlass, folder, words):
    result = windlass(*words)
    assert result.exit_code == 3
    assert f"there is no database at {folder / 'windlass.db'}" in result.stderr
    assert "→ windlass db upgrade" in result.stderr
    assert result.stdout == ""
    assert list(folder.iterdir()) == []


@looking
def test_looking_at_a_file_of_somebody_else_leaves_it_as_it_is(windlass, folder, words):
    with sqlite3.connect(folder / "windlass.db") as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    connection.close()
    result = windlass(*words)
    assert result.exit_code == 3
    assert "has no windlass tables" in result.stderr
    connection = sqlite3.connect(folder / "windlass.db")
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    connection.close()


@pytest.mark.parametrize(("schema", "says"), [(0, "has no windlass tables"), (99, "knows 2")])
def test_a_schema_of_another_version_is_exit_code_3(windlass, wl, schema, says):
    with sqlite3.connect(wl.store.where) as connection:
        connection.execute("UPDATE windlass_meta SET value = ? WHERE key IN ('schema', 'oldest')", (schema,))
    connection.close()
    result = windlass("stats")
    assert result.exit_code == 3
    assert says in result.stderr


def test_a_file_that_is_no_database_is_exit_code_3(windlass, folder):
    (folder / "windlass.db").write_text("dear diary, " * 500)
    result = windlass("stats")
    assert result.exit_code == 3
    assert "cannot be read as a SQLite database" in result.stderr


def test_a_folder_that_is_not_there_is_exit_code_3(windlass, folder):
    result = windlass("enqueue", "mail", "--db", "sqlite:///nowhere/jobs.db")
    assert result.exit_code == 3
    assert "mkdir -p" in result.stderr


@pytest.mark.parametrize("url", ["jobs.db", "sqlite://", "mysql://here", "sqlite:///:memory:"])
def test_a_url_that_cannot_be_is_exit_code_2(windlass, url):
    result = windlass("stats", "--db", url)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "words",
    [["--db", "URL", "stats", "--json"], ["--json", "stats", "--db", "URL"], ["stats", "--db", "URL", "--json"]],
)
def test_the_shared_options_may_stand_before_or_after_the_command(windlass, folder, words):
    other = Windlass("sqlite:///other.db")
    other.enqueue("mail")
    other.close()
    result = windlass(*["sqlite:///other.db" if word == "URL" else word for word in words])
    assert result.exit_code == 0
    assert result.stdout.startswith("{")
    assert str(folder / "other.db") in result.stdout


def test_the_shared_options_may_stand_inside_a_group(windlass, wl):
    assert windlass("jobs", "--json", "ls").stdout.startswith('{"items":[],"next_cursor":null,')


def test_an_option_after_the_command_wins_over_one_before_it(windlass, wl):
    assert windlass("--db", "sqlite:///nowhere.db", "stats", "--db", "sqlite:///windlass.db").exit_code == 0


def test_the_database_is_found_by_option_then_variable_then_pyproject(windlass, folder):
    (folder / "pyproject.toml").write_text('[tool.windlass]\ndb = "sqlite:///c.db"\n')
    env = {"WINDLASS_URL": "sqlite:///b.db"}
    assert "a.db" in windlass("enqueue", "x", "--db", "sqlite:///a.db", env=env).stderr
    assert "b.db" in windlass("enqueue", "x", env=env).stderr
    assert "c.db" in windlass("enqueue", "x").stderr


def test_a_broken_pyproject_is_exit_code_2(windlass, folder):
    (folder / "pyproject.toml").write_text("[tool")
    result = windlass("stats")
    assert result.exit_code == 2
    assert "pyproject.toml cannot be read" in result.stderr


def test_every_option_has_a_variable(windlass, wl):
    for _ in range(3):
        wl.enqueue("mail")
    result = windlass("jobs", "ls", env={"WINDLASS_JSON": "1", "WINDLASS_JOBS_LS_LIMIT": "2"})
    assert result.stdout.count('"id"') == 2


@looking
def test_commands_about_the_database_import_no_user_code(windlass, wl, folder, words, monkeypatch):
    (folder / "pyproject.toml").write_text('[tool.windlass]\napp = "explodes:wl"\n')
    (folder / "explodes.py").write_text("raise SystemExit('imported')")
    monkeypatch.setenv("WINDLASS_APP", "explodes:wl")
    windlass(*words)
    assert "explodes" not in sys.modules


def test_a_module_that_is_not_there_lists_what_was_tried(windlass, folder):
    result = windlass("tick", "no_such_app:wl")
    assert result.exit_code == 2
    assert "there is no module 'no_such_app'" in result.stderr
    assert str(folder / "no_such_app.py") in result.stderr


def test_a_module_that_lacks_another_module_shows_where(windlass, folder):
    (folder / "lacks_one.py").write_text("import no_such_dependency")
    result = windlass("tick", "lacks_one:wl")
    assert result.exit_code == 2
    assert "lacks_one.py" in result.stderr
    assert "No module named 'no_such_dependency'" in result.stderr


def test_a_module_that_raises_shows_its_own_lines_only(windlass, folder):
    (folder / "raises_one.py").write_text("1 / 0")
    result = windlass("tick", "raises_one")
    assert result.exit_code == 2
    assert "ZeroDivisionError" in result.stderr
    assert "target.py" not in result.stderr
    assert "importlib" not in result.stderr


def test_a_name_that_is_not_in_the_module_says_what_is(windlass, write_app):
    result = windlass("tick", f"{write_app()}:app")
    assert result.exit_code == 2
    assert "It has: wl." in result.stderr


def test_a_name_that_is_no_windlass_says_what_it_is(windlass, write_app):
    result = windlass("tick", f"{write_app('other = 3')}:other")
    assert result.exit_code == 2
    assert "is a int, not a Windlass" in result.stderr


def test_a_module_alone_means_its_only_windlass(windlass, write_app):
    assert windlass("tick", write_app("again = wl")).exit_code == 0


def test_a_module_with_two_of_them_must_be_told_which(windlass, write_app):
    result = windlass("tick", write_app("second = Windlass('sqlite:///second.db')"))
    assert result.exit_code == 2
    assert "It has: wl, second." in result.stderr


def test_a_file_name_is_no_module_name(windlass):
    result = windlass("tick", "app.py")
    assert result.exit_code == 2
    assert "try app:wl" in result.stderr


def test_no_app_at_all_says_where_it_was_looked_for(windlass, folder):
    result = windlass("worker")
    assert result.exit_code == 2
    assert "$WINDLASS_APP" in result.stderr
    assert str(folder / "pyproject.toml") in result.stderr


def test_the_app_is_found_by_argument_then_option_then_variable_then_pyproject(windlass, write_app, folder):
    a, b, c, d = (write_app(f"wl = Windlass('sqlite:///{name}.db')") for name in "abcd")
    (folder / "pyproject.toml").write_text(f'[tool.windlass]\napp = "{d}:wl"\n')
    env = {"WINDLASS_APP": c}
    assert "a.db" in windlass("tick", a, "-a", b, env=env).stderr
    assert "b.db" in windlass("tick", "-a", b, env=env).stderr
    assert "c.db" in windlass("tick", env=env).stderr
    assert "d.db" in windlass("tick").stderr


def test_db_names_the_database_of_an_app_that_leaves_it_open(windlass, write_app):
    assert "named.db" in windlass("tick", write_app(), "--db", "sqlite:///named.db").stderr


def test_db_cannot_change_the_database_of_an_app_that_names_it(windlass, write_app, folder):
    result = windlass("tick", write_app("wl = Windlass('sqlite:///own.db')"), "--db", "sqlite:///named.db")
    assert result.exit_code == 2
    assert f"keeps its jobs in {folder / 'own.db'}" in result.stderr


def test_a_command_imports_only_what_it_needs():
    code = """
import sys
from windlass.cli import cli
cli(["--help"], standalone_mode=False)
cli(["db", "sql"], standalone_mode=False)
print({name for name in sys.modules if name.startswith("windlass.cli.demo") or name == "windlass.cli.worker"})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_an_unknown_command_is_exit_code_2_and_suggests_one(windlass):
    result = windlass("stat")
    assert result.exit_code == 2
    assert "No such command 'stat'" in result.stderr


def test_the_version_is_printed(windlass):
    assert windlass("--version").stdout.startswith("windlass ")


def test_no_command_prints_the_help(windlass):
    result = windlass("--help")
    assert result.exit_code == 0
    for command in ("demo", "worker", "enqueue", "jobs", "stats", "workers", "tick", "db", "doctor"):
        assert f"\n  {command}" in result.stdout
