"""Every command on a libSQL server, while the other tests of this folder use a SQLite file."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.helpers import completed, failed, needs_database, now, processing, unseen
from tests.servers.libsql import WHAT_IS_THERE, ByHand
from tests.servers.postgres import free_port
from treadle import Treadle
from treadle.cli.doctor import sqlite

TOKEN = "eyJhbGciOi.secret.signature"


@pytest.fixture
def shown(libsql_url: str) -> str:
    return libsql_url


@pytest.fixture
def url(shown: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A server named by $TREADLE_URL, with a token that no command may print."""
    url = f"{shown}?authToken={TOKEN}"
    monkeypatch.setenv("TREADLE_URL", url)
    return url


@pytest.fixture
def td(url: str) -> Iterator[Treadle]:
    app = Treadle(url)
    app.store.open()
    yield app
    app.close()


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    unseen(TOKEN, monkeypatch)


# Which server


@needs_database
def test_reading_a_server_without_tables_does_not_create_them(treadle, url, shown, words):
    result = treadle(*words)
    assert result.exit_code == 3
    assert f"{shown} has no treadle tables" in result.stderr
    assert f"→ treadle db upgrade --db {shown}" in result.stderr
    assert ByHand(shown).execute(WHAT_IS_THERE).fetchall() == []


@needs_database
def test_an_unreachable_server_is_exit_code_3(treadle, words, monkeypatch):
    monkeypatch.setenv("TREADLE_URL", f"libsql+http://127.0.0.1:{free_port()}?authToken={TOKEN}")
    result = treadle(*words)
    assert result.exit_code == 3
    assert "no answer" in result.stderr
    assert "is the server up" in result.stderr


@pytest.mark.parametrize("schema", [0, 99])
def test_a_schema_of_another_version_is_exit_code_3(treadle, td, shown, schema):
    ByHand(shown).execute(f"UPDATE treadle_meta SET value = {schema} WHERE key IN ('schema', 'oldest')")
    result = treadle("stats")
    assert result.exit_code == 3
    assert ("schema is 0" if schema == 0 else "supports up to 1") in result.stderr


@pytest.mark.parametrize("place", ["libsql://", "libsql://host/database", "libsq://host", "libsql+http://h:port"])
def test_an_invalid_url_is_exit_code_2_and_its_token_is_not_shown(treadle, place):
    assert treadle("stats", "--db", f"{place}?authToken={TOKEN}").exit_code == 2


# The server itself


def test_upgrade_creates_the_tables_and_says_so_once(treadle, url, shown):
    assert f"{shown}: schema 1, created" in treadle("db", "upgrade").stdout
    assert f"{shown}: schema 1, already current" in treadle("db", "upgrade").stdout


def test_status_and_sql_and_roles(treadle, as_json, td, shown):
    status = as_json("db", "status")
    assert ("libsql", shown, 1) == (status["store"], status["where"], status["schema"])
    assert f"libsql {shown}" in treadle("db", "status").stdout
    assert "CREATE TABLE treadle_jobs" in treadle("db", "sql").stdout
    assert "roles exist only on PostgreSQL" in treadle("db", "roles").stderr


def test_the_doctor_finds_a_healthy_server_healthy(treadle, as_json, td, shown):
    found = as_json("doctor")
    assert (found["where"], found["problems"], found["warnings"]) == (shown, 0, 0)
    texts = {finding["check"]: finding["text"] for finding in found["findings"]}
    assert texts["server"].startswith("libSQL server with SQLite 3.")
    assert texts["schema"] == "schema 1 (current)"
    assert texts["round_trip"].startswith("it answers in ")
    assert texts["watch"] == "the server sends no notifications: a worker polls for jobs once a second"
    assert "all is well" in treadle("doctor").stdout


def test_the_doctor_warns_of_a_server_far_away():
    assert sqlite.round_trip(0.25).level == "warning"


# Jobs


def test_enqueue_creates_the_tables_and_says_where(treadle, url, shown):
    result = treadle("enqueue", "mail", "to=ada", "--tenant", "acme")
    assert result.exit_code == 0
    assert f"in {shown}" in result.stderr
    assert [{"to": "ada"}] == [job.payload for job in Treadle(url).jobs(tenant="acme")]


def test_jobs_are_listed_shown_counted_and_explained(treadle, as_json, td):
    done, broken, waits = completed(td), failed(td), td.enqueue("mail")
    processing(td, "report")
    assert {waits.id, done.id, broken.id} <= {job["id"] for job in as_json("jobs", "ls")["items"]}
    assert broken.id == as_json("jobs", "show", broken.id)["id"]
    assert "worker" in treadle("jobs", "why", waits.id).stdout
    assert treadle("stats").exit_code == treadle("workers").exit_code == 0


def test_jobs_are_retried_cancelled_deleted_and_pruned(treadle, td):
    broken, done, waits = failed(td), completed(td), td.enqueue("mail")
    assert treadle("jobs", "retry", broken.id).exit_code == 0
    assert treadle("jobs", "cancel", waits.id).exit_code == 0
    assert treadle("jobs", "delete", done.id, "--yes").exit_code == 0
    assert ["pending", "cancelled"] == [now(td, job).status for job in (broken, waits)]
    assert td.get(done.id) is None
    assert treadle("db", "prune", "--older-than", "1d").exit_code == 0
    assert td.get(waits.id) is not None


JOBS = """
@td.job
def work(n: int) -> int:
    return n
"""


def test_a_worker_and_a_tick_run_waiting_jobs(treadle, start, write_app, td, url):
    app = write_app(JOBS)
    first = td.enqueue("work", {"n": 1})
    process = start("worker", app, "--burst", "--processes", "2", TREADLE_URL=url)
    output = "".join(process.communicate(timeout=60))
    assert process.returncode == 0, output
    assert TOKEN not in output
    second = td.enqueue("work", {"n": 2})
    result = treadle("tick", app)
    assert result.exit_code == 0, result.output
    assert [1, 2] == [now(td, job).result for job in (first, second)]


def test_json_has_no_token_either(as_json, td):
    assert TOKEN not in json.dumps([as_json("doctor"), as_json("db", "status"), as_json("stats")])
