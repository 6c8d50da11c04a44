"""`treadle bench`: a tiny run. It checks that no number is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from click.testing import Result

from tests.servers.libsql import WHAT_IS_THERE, ByHand
from treadle.cli.bench import with_database

KEYS = {
    "enqueue": {"enqueue_singly", "enqueue_threads", "enqueue_bulk"},
    "drain": {f"drain_{kind}_{n}" for kind in ("async", "thread") for n in (1, 2)},
    "pickup": {"pickup_return_p50", "pickup_return_p99"},
}
FIELDS = {"section", "key", "what", "unit", "value", "low", "high"}


def keys(result: Result) -> dict[str, set[str]]:
    """The keys of all rows, by section; each row has all fields."""
    found: dict[str, set[str]] = {}
    for row in json.loads(result.stdout)["rows"]:
        assert row.keys() == FIELDS
        assert row["low"] <= row["value"] <= row["high"]
        assert row["value"] > 0 or row["section"] == "pickup"  # a clock may step
        found.setdefault(row["section"], set()).add(row["key"])
    return found


def test_a_quick_run_has_every_number_and_leaves_nothing(treadle: Callable[..., Result], folder: Path) -> None:
    ran = treadle("bench", "--quick", "--n", "500", "--json")

    assert ran.exit_code == 0, ran.stderr
    assert keys(ran) == KEYS
    machine = json.loads(ran.stdout)["machine"]
    assert machine["database"]["settings"]["synchronous"] == "FULL"
    assert {"cores", "cpu", "python", "load", "concurrency", "sizes"} <= machine.keys()
    assert "enqueue: singly (1 of 1)" in ran.stderr
    assert list(folder.iterdir()) == []


def test_the_table_has_a_line_for_each_number(treadle: Callable[..., Result], tmp_path: Path) -> None:
    ran = treadle("bench", "--quick", "--n", "100", "--only", "enqueue", "--dir", str(tmp_path), "-q")

    assert ran.exit_code == 0, ran.stderr
    assert "enqueue: from 64 threads, jobs/s" in ran.stdout
    assert len(ran.stdout.splitlines()) == 1 + len(KEYS["enqueue"])
    assert ran.stderr == ""


def test_on_postgres_it_uses_its_own_databases(treadle: Callable[..., Result], postgres_url: str) -> None:
    ran = treadle("bench", "--quick", "--n", "200", "--json", "--db", postgres_url)

    assert ran.exit_code == 0, ran.stderr
    assert keys(ran) == KEYS
    with psycopg.connect(postgres_url) as given:
        assert given.execute("SELECT to_regnamespace('treadle')").fetchone() == (None,)
        assert given.execute("SELECT 1 FROM pg_database WHERE datname LIKE 'treadle_bench_%'").fetchall() == []


def test_a_libsql_server_is_measured_and_left_as_it_was(treadle: Callable[..., Result], libsql_url: str) -> None:
    ran = treadle("bench", "--quick", "--n", "100", "--json", "--only", "enqueue,pickup", "--db", libsql_url)

    assert ran.exit_code == 0, ran.stderr
    assert keys(ran) == {name: KEYS[name] for name in ("enqueue", "pickup")}
    assert ByHand(libsql_url).execute(WHAT_IS_THERE).fetchall() == []


def test_a_libsql_server_that_is_in_use_is_left_alone(treadle: Callable[..., Result], libsql_url: str) -> None:
    assert treadle("enqueue", "mail", "--db", libsql_url).exit_code == 0

    ran = treadle("bench", "--quick", "--db", libsql_url)

    assert ran.exit_code == 2
    assert "a libSQL server has no second database" in ran.stderr
    assert "1" in treadle("stats", "--by", "type", "--db", libsql_url).stdout


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--only", "drain,fuel"], 2, "fuel is not one of enqueue, drain, pickup"),
        (["--only", "ceiling"], 2, "for more, run ./script/bench in a clone of the repository"),
        (["--profile"], 2, "for more, run ./script/bench in a clone of the repository"),
        (["--db", "sqlite:///x.db", "--dir", "."], 2, "name either --db or --dir"),
        (["--db", "libsql+http://127.0.0.1:1?authToken=secret"], 3, "Connection refused"),
        (["--db", "postgresql://me:secret@127.0.0.1:1/jobs"], 3, "Connection refused"),
    ],
)
def test_an_impossible_request_is_an_error_that_says_so(
    treadle: Callable[..., Result], options: list[str], code: int, says: str
) -> None:
    ran = treadle("bench", *options)

    assert code == ran.exit_code
    assert says in ran.stderr
    assert "secret" not in ran.output


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@h:1/mine?sslmode=require", "postgresql://u:p@h:1/other?sslmode=require"),
        ("postgresql://u@h?dbname=mine&sslmode=require", "postgresql://u@h/other?sslmode=require"),
        ("postgresql:///mine", "postgresql:///other"),
    ],
)
def test_the_database_of_a_url_is_replaced_wherever_it_is(url: str, expected: str) -> None:
    assert expected == with_database(url, "other")
