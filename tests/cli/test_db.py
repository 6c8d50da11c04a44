"""`treadle db`."""

from __future__ import annotations

import itertools
import sqlite3

import pytest

from tests.cli.helpers import completed, failed
from treadle import Treadle, clock, function


def test_status_shows_the_place_and_schema_of_the_database(treadle, as_json, td, folder):
    assert f"sqlite {folder / 'treadle.db'}" in treadle("db", "status").stdout
    assert "1 (current)" in treadle("db", "status").stdout
    assert tuple(as_json("db", "status")[name] for name in ("schema", "journal_mode")) == (1, "wal")


def test_upgrade_creates_the_database_and_may_be_repeated(treadle, folder):
    first, second = treadle("db", "upgrade"), treadle("db", "upgrade")
    assert "created" in first.stdout
    assert "already current" in second.stdout
    assert treadle("stats").exit_code == 0


def test_upgrade_creates_the_tables_in_a_file_that_has_others(treadle, as_json, folder):
    with sqlite3.connect(folder / "mine.db") as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    connection.close()
    assert {"where": str(folder / "mine.db"), "schema": 1, "before": 0} == as_json(
        "db", "upgrade", "--db", "sqlite:///mine.db"
    )


def test_sql_prints_the_tables_and_changes_nothing(treadle, as_json, folder):
    script = treadle("db", "sql").stdout
    sqlite3.connect(":memory:").executescript(script)
    assert {"sql": script} == as_json("db", "sql")
    assert list(folder.iterdir()) == []


@pytest.fixture
def old(folder, monkeypatch):
    """Open the database with a clock some days in the past, and ids of that time."""
    numbers = itertools.count()

    def open_(days: float) -> Treadle:
        then = clock.now() - clock.seconds(days * 86_400)
        text = f"{then // 1000:012x}"
        ids = (f"{text[:8]}-{text[8:]}-7000-8000-{number:012x}" for number in numbers)
        monkeypatch.setattr(function, "new_id", lambda: next(ids))
        return Treadle(f"sqlite:///{folder}/treadle.db", clock=lambda: then)

    return open_


def test_prune_deletes_jobs_that_ended_long_ago(treadle, td, old):
    kept = [completed(td)]
    before = old(8)
    for _ in range(3):
        completed(before)
    kept.append(failed(before))
    before.close()
    result = treadle("db", "prune")
    assert result.exit_code == 0
    assert result.stdout.startswith("3 jobs deleted")
    assert {job.id for job in kept} == {job.id for job in td.jobs()}


def test_prune_accepts_an_age_and_statuses(as_json, td, old):
    before = old(1)
    completed(before), failed(before)
    before.close()
    assert as_json("db", "prune", "--older-than", "2d", "--status", "failed") == {"deleted": 0}
    assert as_json("db", "prune", "--older-than", "12h", "--status", "failed") == {"deleted": 1}
    assert as_json("db", "prune", "--older-than", "12h") == {"deleted": 1}


@pytest.mark.parametrize("words", [["--status", "pending"], ["--older-than", "long"]], ids=" ".join)
def test_a_prune_with_wrong_options_is_exit_code_2(treadle, td, words):
    assert treadle("db", "prune", *words).exit_code == 2
