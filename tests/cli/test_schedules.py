"""`treadle schedules`: what people read, exit codes and the audit. tests/snapshots has the JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from tests.cli.helpers import enlist
from treadle import Treadle
from treadle.schedule import NewSchedule, Rule

Command = Callable[..., Result]


def audited(td: Treadle) -> list[tuple[str, str, int]]:
    return [(row.action, row.what, row.count) for row in reversed(td.store.audits(10))]


def test_a_list_shows_what_is_next_and_what_is_paused(treadle: Command, td: Treadle) -> None:
    td.schedules.put("nightly", "report", cron="0 3 * * *", zone="Europe/Berlin")
    td.schedules.put("digest", "mail", every=900, tenant="acme")
    td.schedules.pause("digest", tenant="acme", by="ann", reason="invoice")

    lines = treadle("schedules", "ls").stdout.splitlines()

    assert [line.split()[0] for line in lines] == ["NAME", "nightly", "digest"]
    assert "0 3 * * * Europe/Berlin" in lines[1]
    assert "every 15m" in lines[2]
    assert "paused by ann: invoice" in lines[2]
    assert treadle("schedules", "ls", "--tenant", "nobody").stderr == "no schedules\n"


def test_one_schedule_shows_why_its_moments_and_its_jobs(treadle: Command, td: Treadle) -> None:
    td.schedules.put("nightly", "report", cron="0 3 * * *", zone="Europe/Berlin", payload={"password": "hunter2"})
    job = td.schedules.run_now("nightly")

    shown = treadle("schedules", "show", "nightly").stdout

    assert "fires next at" in shown
    assert shown.count("03:00:00 CE") == 10  # CET or CEST
    assert job.id in shown
    assert "hunter2" not in shown
    assert "hunter2" in treadle("schedules", "show", "nightly", "--reveal").stdout


def test_changes_are_made_and_audited(treadle: Command, td: Treadle) -> None:
    td.schedules.put("s", "mail", every=60)

    assert treadle("schedules", "pause", "s", "--reason", "why not").exit_code == 0
    paused = td.schedules.get("s")
    assert paused is not None
    assert paused.pause is not None
    assert paused.pause.by.startswith("cli:")
    assert paused.pause.reason == "why not"
    assert "paused by cli:" in treadle("schedules", "show", "s").stdout
    assert "fires next" in treadle("schedules", "resume", "s").stderr
    id = treadle("schedules", "run", "s").stdout.strip()
    assert td.jobs("schedule:s")[0].id == id
    assert "60 jobs stored for 60 moments" in treadle("schedules", "backfill", "s", "1h", "0").stdout
    assert treadle("schedules", "delete", "s", "--yes").exit_code == 0

    assert audited(td) == [
        ("pause_schedule", "s", 1),
        ("resume_schedule", "s", 1),
        ("run_schedule", "s", 1),
        ("backfill_schedule", "s", 60),
        ("delete_schedule", "s", 1),
    ]


def test_a_pause_has_an_end(treadle: Command, as_json: Any, td: Treadle) -> None:
    td.schedules.put("s", "mail", every=60)

    paused = as_json("schedules", "pause", "s", "--until", "2100-01-01T00:00Z")

    assert paused["pause"]["until"] == "2100-01-01T00:00:00Z"
    assert paused["next_at"] == "2100-01-01T00:01:00Z"


@pytest.mark.parametrize("words", [("show",), ("pause",), ("resume",), ("run",), ("delete", "--yes")])
def test_an_unknown_schedule_is_not_found(treadle: Command, td: Treadle, words: tuple[str, ...]) -> None:
    result = treadle("schedules", words[0], "nope", *words[1:])

    assert result.exit_code == 4
    assert "there is no schedule nope" in result.stderr
    assert "treadle schedules ls" in result.stderr


def test_what_live_workers_declare_is_not_deleted(treadle: Command, td: Treadle) -> None:
    declared = NewSchedule(name="nightly", type="report", rule=Rule(cron="0 3 * * *"))
    td.store.declare_schedules([declared])
    enlist(td, "host-1", "report", schedules={"nightly": declared.spec})

    result = treadle("schedules", "delete", "nightly", "--yes")

    assert result.exit_code == 5
    assert "treadle schedules pause nightly" in result.stderr
    assert audited(td) == []


def test_delete_asks_first(treadle: Command, td: Treadle) -> None:
    td.schedules.put("s", "mail", every=60)

    result = treadle("schedules", "delete", "s")

    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert td.schedules.get("s") is not None
