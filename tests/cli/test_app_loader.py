"""Which database and which app a command uses, and its error when there is none."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import uuid

import pytest

from tests.cli.helpers import needs_database
from treadle import Treadle


@needs_database
def test_reading_a_missing_database_does_not_create_it(treadle, folder, words):
    result = treadle(*words)
    assert result.exit_code == 3
    assert f"there is no database at {folder / 'treadle.db'}" in result.stderr
    assert all(f" {way}" in result.stderr for way in ("--db", "--app", "$TREADLE_URL", "pyproject.toml"))
    assert "→ treadle db upgrade" in result.stderr
    assert result.stdout == ""
    assert list(folder.iterdir()) == []


def test_a_missing_database_is_first_looked_for_elsewhere_and_created_last(treadle, folder):
    """Whoever reads is most likely in the wrong folder, or has forgotten to name the app."""
    _, _, app, database, create = treadle("stats").stderr.splitlines()
    assert app == "→ cd to the folder of your app, or name it: --app app:td, $TREADLE_APP, or `app` in pyproject.toml"
    assert database == "→ name its database: --db URL, $TREADLE_URL, or `db` in pyproject.toml"
    assert create.startswith(f"→ treadle db upgrade --db sqlite:///{folder}/treadle.db  ")

    _, path, create = treadle("stats", "--db", "sqlite:///job.db").stderr.splitlines()
    assert path.startswith("→ cd to the folder of your app, or correct the path: sqlite:///jobs.db is relative")
    assert create.startswith(f"→ treadle db upgrade --db sqlite:///{folder}/job.db  ")


def test_in_a_django_project_the_commands_of_manage_py_are_named(treadle, folder):
    """`treadle` itself looks in a file of its own there, and the app needs Django to be set up."""
    (folder / "manage.py").touch()
    result = treadle("jobs", "ls")
    assert result.exit_code == 3
    assert "→ in a Django project: python manage.py treadle_worker, and python manage.py treadle …" in result.stderr
    assert (
        f"→ treadle db upgrade --db sqlite:///{folder}/mine.db"
        in treadle("jobs", "ls", "--db", f"sqlite:///{folder}/mine.db").stderr
    )

    (folder / "shop.py").write_text("from django.db import models\nclass Order(models.Model): ...")
    # Not in this process, in which other tests may have set up Django.
    command = [sys.executable, "-m", "treadle", "stats", "--app", "shop:td"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert process.returncode == 2
    assert "settings are not configured" in process.stderr
    assert "→ in a Django project: python manage.py treadle_worker" in process.stderr


@needs_database
def test_reading_a_database_without_treadles_tables_does_not_change_it(treadle, folder, words):
    with sqlite3.connect(folder / "treadle.db") as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    connection.close()
    result = treadle(*words)
    assert result.exit_code == 3
    assert "has no treadle tables" in result.stderr
    connection = sqlite3.connect(folder / "treadle.db")
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    connection.close()


@pytest.mark.parametrize(("schema", "says"), [(0, "schema is 0"), (99, "supports up to 1")])
def test_a_schema_of_another_version_is_exit_code_3(treadle, td, schema, says):
    with sqlite3.connect(td.store.where) as connection:
        connection.execute("UPDATE treadle_meta SET value = ? WHERE key IN ('schema', 'oldest')", (schema,))
    connection.close()
    result = treadle("stats")
    assert result.exit_code == 3
    assert says in result.stderr


def test_a_file_that_is_not_a_database_is_exit_code_3(treadle, folder):
    (folder / "treadle.db").write_text("dear diary, " * 500)
    result = treadle("stats")
    assert result.exit_code == 3
    assert "cannot be read as a SQLite database" in result.stderr


def test_a_missing_folder_is_exit_code_3(treadle, folder):
    result = treadle("enqueue", "mail", "--db", "sqlite:///nowhere/jobs.db")
    assert result.exit_code == 3
    assert "mkdir -p" in result.stderr


@pytest.mark.parametrize("url", ["jobs.db", "sqlite://", "mysql://here", "sqlite:///:memory:"])
def test_an_invalid_url_is_exit_code_2(treadle, url):
    result = treadle("stats", "--db", url)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "words",
    [["--db", "URL", "stats", "--json"], ["--json", "stats", "--db", "URL"], ["stats", "--db", "URL", "--json"]],
)
def test_the_shared_options_can_be_before_or_after_the_command(treadle, folder, words):
    other = Treadle("sqlite:///other.db")
    other.enqueue("mail")
    other.close()
    result = treadle(*["sqlite:///other.db" if word == "URL" else word for word in words])
    assert result.exit_code == 0
    assert result.stdout.startswith("{")
    assert str(folder / "other.db") in result.stdout


def test_the_shared_options_can_be_inside_a_group(treadle, td):
    assert treadle("jobs", "--json", "ls").stdout.startswith('{"items":[],"next_cursor":null,')


def test_an_option_after_the_command_wins_over_one_before_it(treadle, td):
    assert treadle("--db", "sqlite:///nowhere.db", "stats", "--db", "sqlite:///treadle.db").exit_code == 0


def test_the_database_is_found_by_option_then_variable_then_pyproject(treadle, folder):
    (folder / "pyproject.toml").write_text('[tool.treadle]\ndb = "sqlite:///c.db"\n')
    env = {"TREADLE_URL": "sqlite:///b.db"}
    assert "a.db" in treadle("enqueue", "x", "--db", "sqlite:///a.db", env=env).stderr
    assert "b.db" in treadle("enqueue", "x", env=env).stderr
    assert "c.db" in treadle("enqueue", "x").stderr


def test_a_broken_pyproject_is_exit_code_2(treadle, folder):
    (folder / "pyproject.toml").write_text("[tool")
    result = treadle("stats")
    assert result.exit_code == 2
    assert "pyproject.toml cannot be read" in result.stderr


def test_every_option_has_a_variable(treadle, td):
    for _ in range(3):
        td.enqueue("mail")
    result = treadle("jobs", "ls", env={"TREADLE_JSON": "1", "TREADLE_JOBS_LS_LIMIT": "2"})
    assert result.stdout.count('"id"') == 2


@needs_database
@pytest.mark.parametrize("place", ["option", "variable", "pyproject"])
def test_where_a_url_names_the_database_no_user_code_is_imported(treadle, td, folder, words, place, monkeypatch):
    (folder / "explodes.py").write_text("raise SystemExit('imported')")
    url = "sqlite:///treadle.db"
    db = f'db = "{url}"\n' if place == "pyproject" else ""
    (folder / "pyproject.toml").write_text(f'[tool.treadle]\napp = "explodes:td"\n{db}')
    if place != "pyproject":
        monkeypatch.setenv("TREADLE_APP", "explodes:td")
    if place == "variable":
        monkeypatch.setenv("TREADLE_URL", url)
    given = ["--app", "explodes:td", "--db", url] if place == "option" else []
    assert "cannot import explodes" not in treadle(*words, *given).stderr  # a hint may name it
    assert "explodes" not in sys.modules


@needs_database
@pytest.mark.parametrize("place", ["option", "before", "variable", "pyproject"])
def test_every_command_with_a_database_takes_that_of_an_app(treadle, folder, words, place, monkeypatch):
    module = f"own_{uuid.uuid4().hex}"
    (folder / f"{module}.py").write_text(f"from treadle import Treadle\ntd = Treadle('sqlite:///{place}.db')")
    name = f"{module}:td"
    if place == "variable":
        monkeypatch.setenv("TREADLE_APP", name)
    if place == "pyproject":
        (folder / "pyproject.toml").write_text(f'[tool.treadle]\napp = "{name}"\n')
    after, before = {"option": (["--app", name], []), "before": ([], ["-a", name])}.get(place, ([], []))
    result = treadle(*before, *words, *after)
    assert result.exit_code == 3
    assert f"there is no database at {folder / f'{place}.db'}" in result.stderr


def test_the_command_line_wins_over_the_environment_and_that_over_pyproject(treadle, folder, write_app):
    (folder / "pyproject.toml").write_text('[tool.treadle]\ndb = "sqlite:///c.db"\n')
    (folder / "has_a.py").write_text("from treadle import Treadle\ntd = Treadle('sqlite:///a.db')")
    env = {"TREADLE_URL": "sqlite:///b.db"}
    assert "a.db" in treadle("enqueue", "x", "--app", "has_a:td", env=env).stderr
    assert "b.db" in treadle("enqueue", "x", env=env | {"TREADLE_APP": "has_a:td"}).stderr
    assert "a.db" in treadle("enqueue", "x", env={"TREADLE_APP": "has_a:td"}).stderr
    assert "b.db" in treadle("enqueue", "x", "--app", write_app(), env=env).stderr  # it has no URL of its own


def test_what_an_app_hides_is_hidden_before_a_worker_has_published_it(treadle, folder):
    body = "from treadle import Treadle\ntd = Treadle('sqlite:///h.db', redact=['iban'])\n@td.job\ndef pay(iban): ..."
    (folder / "hides.py").write_text(body)
    stored = treadle("enqueue", "pay", "iban=DE89", "--app", "hides:td")
    assert "DE89" not in treadle("jobs", "show", stored.stdout.strip(), "--app", "hides:td").stdout


def test_the_error_for_a_missing_module_lists_what_was_tried(treadle, folder):
    result = treadle("tick", "no_such_app:td")
    assert result.exit_code == 2
    assert "there is no module 'no_such_app'" in result.stderr
    assert str(folder / "no_such_app.py") in result.stderr


def test_the_error_for_a_missing_import_of_the_module_shows_where(treadle, folder):
    (folder / "lacks_one.py").write_text("import no_such_dependency")
    result = treadle("tick", "lacks_one:td")
    assert result.exit_code == 2
    assert "lacks_one.py" in result.stderr
    assert "No module named 'no_such_dependency'" in result.stderr


def test_the_error_for_a_module_that_raises_shows_only_its_own_lines(treadle, folder):
    (folder / "raises_one.py").write_text("1 / 0")
    result = treadle("tick", "raises_one")
    assert result.exit_code == 2
    assert "ZeroDivisionError" in result.stderr
    assert "target.py" not in result.stderr
    assert "importlib" not in result.stderr


def test_the_error_for_a_name_that_is_not_in_the_module_lists_those_that_are(treadle, write_app):
    result = treadle("tick", f"{write_app()}:app")
    assert result.exit_code == 2
    assert "It has: td." in result.stderr


def test_a_name_that_is_not_a_treadle_is_an_error_with_its_type(treadle, write_app):
    result = treadle("tick", f"{write_app('other = 3')}:other")
    assert result.exit_code == 2
    assert "is a int, not a Treadle" in result.stderr


def test_a_module_alone_means_its_only_treadle(treadle, write_app):
    assert treadle("tick", write_app("again = td")).exit_code == 0


def test_a_module_with_two_apps_needs_a_name(treadle, write_app):
    result = treadle("tick", write_app("second = Treadle('sqlite:///second.db')"))
    assert result.exit_code == 2
    assert "It has: td, second." in result.stderr


def test_a_file_name_is_not_a_module_name(treadle):
    result = treadle("tick", "app.py")
    assert result.exit_code == 2
    assert "try app:td" in result.stderr


def test_without_an_app_the_error_lists_where_it_was_searched(treadle, folder):
    result = treadle("worker")
    assert result.exit_code == 2
    assert "$TREADLE_APP" in result.stderr
    assert str(folder / "pyproject.toml") in result.stderr


def test_the_app_is_found_by_argument_then_option_then_variable_then_pyproject(treadle, write_app, folder):
    a, b, c, d = (write_app(f"td = Treadle('sqlite:///{name}.db')") for name in "abcd")
    (folder / "pyproject.toml").write_text(f'[tool.treadle]\napp = "{d}:td"\n')
    env = {"TREADLE_APP": c}
    assert "a.db" in treadle("tick", a, "-a", b, env=env).stderr
    assert "b.db" in treadle("tick", "-a", b, env=env).stderr
    assert "c.db" in treadle("tick", env=env).stderr
    assert "d.db" in treadle("tick").stderr


def test_db_names_the_database_of_an_app_that_leaves_it_open(treadle, write_app):
    assert "named.db" in treadle("tick", write_app(), "--db", "sqlite:///named.db").stderr


def test_db_cannot_change_the_database_of_an_app_that_names_it(treadle, write_app, folder):
    result = treadle("tick", write_app("td = Treadle('sqlite:///own.db')"), "--db", "sqlite:///named.db")
    assert result.exit_code == 2
    assert f"keeps its jobs in {folder / 'own.db'}" in result.stderr


def test_a_command_imports_only_what_it_needs():
    code = """
import sys
from treadle.cli import cli
cli(["--help"], standalone_mode=False)
cli(["db", "sql"], standalone_mode=False)
print({name for name in sys.modules if name.startswith("treadle.cli.demo") or name == "treadle.cli.worker"})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_an_unknown_command_is_exit_code_2_and_suggests_one(treadle):
    result = treadle("stat")
    assert result.exit_code == 2
    assert "No such command 'stat'. Did you mean 'stats'?" in result.stderr


def test_the_version_is_printed(treadle):
    assert treadle("--version").stdout.startswith("treadle ")


def test_no_command_prints_the_help(treadle):
    result = treadle("--help")
    assert result.exit_code == 0
    for command in ("demo", "worker", "enqueue", "jobs", "stats", "workers", "tick", "db", "doctor"):
        assert f"\n  {command}" in result.stdout
