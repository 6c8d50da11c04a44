"""Changes from the command line are in the audit, with the user's name. On SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from click.testing import Result

from tests.cli.helpers import completed, failed
from treadle import Treadle
from treadle.errors import StoreUnusable
from treadle.stores.sqlite.store import SQLiteStore

Run = Callable[..., Result]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, folder: object, monkeypatch: pytest.MonkeyPatch) -> str:
    url = "sqlite:///treadle.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    monkeypatch.setenv("TREADLE_URL", url)
    monkeypatch.setenv("LOGNAME", "ann")
    return url


@pytest.fixture
def td(url: str) -> Iterator[Treadle]:
    app = Treadle(url)
    app.store.open()
    yield app
    app.close()


def audit(td: Treadle) -> list[tuple[str, str, int]]:
    """Each action and its object, oldest first; all by ann."""
    rows = td.store.audits(100)[::-1]
    assert {row.who for row in rows} <= {"cli:ann"}
    return [(row.action, row.what, row.count) for row in rows]


def test_each_action_on_a_job_is_recorded(td: Treadle, treadle: Run) -> None:
    ended, waiting, later = failed(td), td.enqueue("mail"), td.enqueue("mail", delay=60)
    for words in (["retry", ended.id], ["cancel", waiting.id], ["run-now", later.id], ["delete", waiting.id, "--yes"]):
        assert treadle("jobs", *words).exit_code == 0

    expected = [("retry", ended.id, 1), ("cancel", waiting.id, 1), ("run_now", later.id, 1), ("delete", waiting.id, 1)]
    assert expected == audit(td)


def test_a_reschedule_is_recorded_with_what_it_sets(td: Treadle, treadle: Run) -> None:
    first, second = td.enqueue("mail"), td.enqueue("mail")
    at = "2030-01-02T03:04:05+00:00"
    assert treadle("jobs", "reschedule", first.id, "--priority", "2", "--queue", "slow").exit_code == 0
    assert treadle("jobs", "reschedule", f"id:{second.id}", "--run-at", at, "--yes").exit_code == 0

    expected = [
        ("reschedule", f"{first.id} priority=2 queue=slow", 1),
        ("reschedule", f"id:{second.id} run_at=2030-01-02T03:04:05Z", 1),
    ]
    assert expected == audit(td)


def test_an_action_that_was_refused_is_not_recorded(td: Treadle, treadle: Run) -> None:
    assert treadle("jobs", "retry", td.enqueue("mail").id).exit_code == 5
    assert treadle("jobs", "retry", "status:failed", "--yes").exit_code == 0
    assert treadle("db", "prune").exit_code == 0

    assert audit(td) == []


def test_a_bulk_action_is_one_record_with_its_count(td: Treadle, treadle: Run) -> None:
    for _ in range(3):
        failed(td)
    treadle("jobs", "retry", "status:failed", "--yes")

    assert audit(td) == [("retry", "status:failed", 3)]


def test_new_jobs_are_recorded_once(td: Treadle, treadle: Run) -> None:
    first = treadle("enqueue", "mail", "--dedupe", "x").stdout.strip()
    treadle("enqueue", "mail", "--dedupe", "x")  # finds the first
    second = treadle("jobs", "clone", first).stdout.strip()

    assert audit(td) == [("enqueue", first, 1), ("clone", f"{first} → {second}", 1)]


def test_an_upgrade_is_recorded_once(url: str, treadle: Run) -> None:
    for _ in range(2):
        assert treadle("db", "upgrade").exit_code == 0

    with closing(Treadle(url)) as td:
        assert audit(td) == [("upgrade", f"schema 0 → {td.store.newest_schema()}", 1)]


def test_tokens_and_prunes_are_recorded(td: Treadle, treadle: Run) -> None:
    completed(td)
    treadle("tokens", "create", "ci")
    treadle("tokens", "revoke", "ci")
    treadle("db", "prune", "--older-than", "0")

    done = [
        ("create token", "ci", 1),
        ("revoke token", "ci", 1),
        ("prune", "completed, cancelled for more than 0ms", 1),
    ]
    assert done == audit(td)


def test_a_change_that_cannot_be_recorded_is_made_with_a_warning(
    folder: object, treadle: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: SQLiteStore, row: object) -> None:
        raise StoreUnusable("here", "the audit is gone", "look for it")

    app = Treadle("sqlite:///treadle.db")
    job = app.enqueue("mail")
    monkeypatch.setattr(SQLiteStore, "audit", broken)
    result = treadle("jobs", "cancel", job.id)

    assert result.exit_code == 0
    assert "the audit does not show this change" in result.stderr
    assert treadle("enqueue", "mail").stderr.count("audit") == 0  # a producer may not write it
