"""The benchmark laboratory: a tiny run of everything. It checks that no number is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.dashboard import PATHS

SECTIONS = {
    "ceiling": {"fsync", "raw_insert", "raw_insert_json", "raw_move", "raw_move_json"},
    "enqueue": {
        *("enqueue_singly", "enqueue_singly_raw", "enqueue_threads", "enqueue_tasks", "enqueue_bulk", "enqueue_large"),
    },
    "drain": {f"drain_{kind}_{n}" for kind in ("async", "thread", "process") for n in (1, 2)} | {"memory_after_drain"},
    "pickup": {f"pickup_{since}_p{percent}" for since in ("call", "return") for percent in (50, 99)},
    "idle": {"idle_cpu", "idle_memory"},
    "backlog": {f"backlog_{key}" for key in ("behind", "limited", "unknown", "future", "finished")},
    "control": {"limit_shared", "limit_key", "limit_rate_20", "limit_keys_200", "drain_types"},
    "claims": {"pairs_some", "pairs_many", "full_keys", "fair", "fair_by_name", "pauses", "why"},
    "durable": {"step", "steps", "fan_in", "signal_call", "signal_return"},
    "prune": {"prune_rate", "prune_cost"},
    "dashboard": {"watched"} | {f"page {path}" for path in PATHS},
}
JUDGED = {
    "enqueue_singly_raw",
    "enqueue_threads",
    "enqueue_bulk",
    "drain_async_1",
    "drain_thread_1",
    "pickup_return_p50",
    "idle_cpu",
    *SECTIONS["backlog"],
    *SECTIONS["control"],
    *SECTIONS["claims"],
    *SECTIONS["durable"],
    *SECTIONS["prune"],
    *SECTIONS["dashboard"],
}


ROOT = Path(__file__).parents[2]


def bench(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "--dir", str(directory), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)


def test_a_quick_run_has_every_number(tmp_path: Path) -> None:
    ran = bench(tmp_path, "--quick", "--n", "1000", "--json", "--profile", "--only", ",".join(SECTIONS))

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    by_section: dict[str, set[str]] = {}
    for row in found["rows"]:
        by_section.setdefault(row["section"], set()).add(row["key"])
        if row["key"] not in ("idle_cpu", *SECTIONS["pickup"]):  # a short measurement may find no CPU; a clock may step
            assert row["value"] > 0, row
        assert row["low"] <= row["value"] <= row["high"]
    assert by_section == SECTIONS
    assert {row["key"] for row in found["rows"] if "met" in row} == JUDGED
    assert found["machine"]["database"]["settings"] == {"synchronous": "FULL"}
    assert "COMMIT" in found["profile"]["profile"]["threads"]["treadle-settle_0"]["statements"]
    assert list(tmp_path.iterdir()) == []


def test_the_table_names_the_machine_and_each_ratio(tmp_path: Path) -> None:
    ran = bench(tmp_path, "--quick", "--n", "1000", "--only", "enqueue")

    assert ran.returncode == 0, ran.stderr
    assert "synchronous = FULL" in ran.stdout
    assert "from 64 threads" in ran.stdout
    assert "≥ 0.5" in ran.stdout
    assert "targets met" in ran.stdout
    assert "enqueue: in bulk (1 of 1)" in ran.stderr  # progress, as plain lines without a terminal


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--only", "drain,fuel"], "'fuel' is not one of ceiling, enqueue, wakeups, drain, round-trips, pickup, idle"),
        (["--only", "drain,snapshot"], "snapshot is measured only on PostgreSQL: name a database with --db"),
        (["--db", "sqlite:///x.db"], "name either --db or --dir"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_so(tmp_path: Path, options: list[str], says: str) -> None:
    ran = bench(tmp_path, *options)

    assert ran.returncode == 2
    assert says in ran.stderr
