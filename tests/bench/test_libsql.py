"""The benchmark laboratory on a libSQL server: what only it has. test_sqlite.py tests the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.servers.libsql import WHAT_IS_THERE, ByHand
from treadle import Treadle

SECTIONS = {
    "ceiling": {"raw_round_trips", "raw_insert", "raw_insert_json", "raw_move", "raw_move_json"},
    "round-trips": {"round_trips_drain"},
    "pickup": {"pickup_poll_p50", "pickup_poll_p99"},
}


ROOT = Path(__file__).parents[2]


def bench(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "--db", url, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)


def test_a_quick_run_has_the_numbers_that_only_a_server_has_and_leaves_nothing(libsql_url: str) -> None:
    options = ("--quick", "--n", "1000", "--json", "--profile", "--only", ",".join(SECTIONS))
    ran = bench(libsql_url, *options)

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    by_section: dict[str, set[str]] = {}
    for row in found["rows"]:
        by_section.setdefault(row["section"], set()).add(row["key"])
        assert row["value"] > 0, row
    assert by_section == SECTIONS
    assert "libSQL server with SQLite 3." in found["machine"]["database"]["database"]
    statements = found["profile"]["profile"]["threads"]["treadle-settle_0"]["statements"]
    assert any(name.endswith("COMMIT") for name in statements)
    assert ByHand(libsql_url).execute(WHAT_IS_THERE).fetchall() == []


def test_a_server_that_has_jobs_is_left_alone(libsql_url: str) -> None:
    td = Treadle(libsql_url)
    td.enqueue("noop")

    ran = bench(f"{libsql_url}?authToken=secret", "--quick", "--only", "idle")

    assert ran.returncode == 1
    assert "has jobs or workers in it" in ran.stderr
    assert "secret" not in ran.stderr
    assert td.counts(()) == [{"count": 1}]


def test_tables_that_existed_without_jobs_exist_afterwards(libsql_url: str) -> None:
    Treadle(libsql_url).store.open()

    assert bench(libsql_url, "--quick", "--n", "100", "--only", "round-trips").returncode == 0

    assert Treadle(libsql_url).counts(()) == []


def test_benchmarks_that_need_two_databases_are_left_out(libsql_url: str) -> None:
    ran = bench(libsql_url, "--quick", "--only", "backlog")

    assert ran.returncode == 2
    assert "backlog is not measured here" in ran.stderr
