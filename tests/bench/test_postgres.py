"""The benchmark laboratory on a PostgreSQL server: what only it has. test_sqlite.py tests the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from bench.postgres.backend import PostgresBackend
from tests.eventually import eventually
from tests.servers.pgbouncer import PgBouncer
from treadle import Treadle

SECTIONS = {
    "ceiling": {"commits", *(f"raw_{verb}{way}" for verb in ("insert", "move") for way in ("", "_text", "_many"))},
    "wakeups": {"wakeups_p99", "wakeups_rate"},
    "snapshot": {"snapshot", "snapshot_rated"},
}


ROOT = Path(__file__).parents[2]


def bench(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "--db", url, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)


def databases(url: str) -> set[str]:
    with psycopg.connect(url) as admin:
        return {name for (name,) in admin.execute("SELECT datname FROM pg_database")}


@pytest.fixture
def backend(postgres_url: str) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(postgres_url)
    yield backend
    backend.close()


def test_a_quick_run_has_the_numbers_that_only_a_server_has_and_leaves_nothing(postgres_url: str) -> None:
    ran = bench(postgres_url, "--quick", "--n", "300", "--json", "--profile", "--only", ",".join(SECTIONS))

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    by_section: dict[str, set[str]] = {}
    for row in found["rows"]:
        by_section.setdefault(row["section"], set()).add(row["key"])
        assert row["low"] <= row["value"] <= row["high"]
        assert row["value"] > 0, row
    assert by_section == SECTIONS
    assert "fsync" in found["machine"]["database"]["settings"]
    threads = found["profile"]["profile"]["threads"]
    assert {"INSERT_LEASES", "COMMIT"} <= threads["treadle-claim_0"]["statements"].keys()
    assert {"COMPLETE_ALL"} <= threads["treadle-settle_0"]["statements"].keys()
    assert not {name for name in databases(postgres_url) if name.startswith("treadle_bench_")}
    with psycopg.connect(postgres_url) as given:
        assert given.execute("SELECT to_regnamespace('treadle')").fetchone() == (None,)


def test_generated_rows_are_valid_for_treadle(backend: PostgresBackend) -> None:
    database = backend.new("any")
    database.waiting(30, "limited", priority=3, later=60)
    done = database.finished(20)
    database.held("limited")

    app = Treadle(database.url)
    counts = {(row["status"], row["type"]): row["count"] for row in app.store.counts(("status", "type")).rows}
    assert counts == {("pending", "limited"): 30, ("completed", "noop"): 20, ("processing", "limited"): 1}
    [job, *_] = app.jobs(status="pending").jobs
    assert (job.priority, job.payload["n"]) == (3, 29)
    app.close()
    assert database.completed("noop") == len(database.times(done)) == 20
    database.clear()
    assert database.completed("noop") == 0


def test_databases_are_dropped_even_if_they_were_not_closed(postgres_url: str) -> None:
    backend = PostgresBackend(postgres_url)
    made = backend.new("any").connection.info.dbname
    assert made in databases(postgres_url)

    backend.close()

    assert made not in databases(postgres_url)


def test_each_bare_loop_moves_every_job(backend: PostgresBackend) -> None:
    database = backend.new("any")
    for loop in backend.loops:
        database.clear()
        database.waiting(25)
        assert [loop.move(database.connection, 10) for _ in range(4)] == [10, 10, 5, 0]
        assert database.completed("noop") == 25
        assert ("finished", 25) == database.connection.execute(
            "SELECT 'finished', count(*) FROM treadle.finished WHERE status = 'completed'"
        ).fetchone()


def test_behind_a_pooler_in_transaction_mode_half_of_the_jobs_are_picked_up_within_a_poll(postgres_url: str) -> None:
    with PgBouncer(postgres_url, "transaction") as pooler:
        ran = bench(postgres_url, "--pooler", pooler.url(postgres_url), "--quick", "--json", "--only", "pickup")
    assert ran.returncode == 0, ran.stderr
    found = {row["key"]: row for row in json.loads(ran.stdout)["rows"]}
    p50 = found["pickup_pooler_p50"]
    assert p50["value"] > 50  # it polled, and heard nothing


def test_a_pooler_without_a_server_is_refused() -> None:
    command = [sys.executable, "-m", "bench", "--pooler", "postgresql://127.0.0.1:6432/jobs", "--quick"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode == 2
    assert "--pooler is for a PostgreSQL server: name it with --db" in ran.stderr


def test_a_role_that_may_not_create_databases_gets_an_error_that_says_so(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS treadle_bench_nobody")
        admin.execute("CREATE ROLE treadle_bench_nobody LOGIN PASSWORD 'secret'")
    try:
        ran = bench(as_role(postgres_url, "treadle_bench_nobody:secret"), "--quick", "--only", "ceiling")
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute("DROP ROLE treadle_bench_nobody")

    assert ran.returncode == 1
    assert "'treadle_bench_nobody' may not create any: ALTER ROLE" in ran.stderr
    assert "secret" not in ran.stderr


def as_role(url: str, role: str) -> str:
    scheme, rest = url.split("://")
    return f"{scheme}://{role}@{rest.rpartition('@')[2]}"


def test_an_unreachable_server_is_an_error_in_one_line() -> None:
    ran = bench("postgresql://me:secret@127.0.0.1:1/jobs", "--quick")

    assert ran.returncode == 1
    assert "postgresql://me@127.0.0.1:1/jobs cannot be reached" in ran.stderr
    assert "secret" not in ran.stderr


def test_a_server_counts_what_an_idle_worker_costs_it(backend: PostgresBackend) -> None:
    database = backend.new("idle")
    before, _ = database.load()

    with psycopg.connect(database.url, autocommit=True) as session:
        for _ in range(5):
            session.execute("SELECT 1")
        assert database.load()[1] >= 1

    eventually(lambda: database.load()[0] >= before + 5)
