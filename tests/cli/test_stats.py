"""`treadle stats`, `treadle queues` and `treadle workers`."""

from __future__ import annotations

import re

from tests.cli.helpers import completed, enlist, failed, processing
from treadle.management import COUNTED_BY
from treadle.stores.base import ClaimRequest, TypePolicy

HEADS = [
    "TYPE",
    "QUEUED",
    "SCHEDULED",
    "RETRYING",
    "BLOCKED",
    "PROCESSING",
    "COMPLETED",
    "FAILED",
    "OLDEST",
    "P95",
    "RUN",
]


def test_stats_count_by_type_and_state(treadle, td, folder):
    completed(td, "mail"), failed(td, "mail"), processing(td, "mail")
    for _ in range(3):
        td.enqueue("resize", queue="slow")
    td.enqueue("resize", delay=3600)

    lines = treadle("stats").stdout.splitlines()

    assert lines[0].split() == HEADS
    assert lines[1].split()[:8] == ["resize", "3", "1", "0", "0", "0", "0", "0"]
    assert lines[1].split()[9] == "-"
    assert lines[2].split()[:9] == ["mail", "0", "0", "0", "0", "1", "1", "1", "-"]
    assert re.search(r"\dm?s$", lines[2])
    assert f"3 queued · 1 processing · 0 workers · sqlite {folder / 'treadle.db'}" in lines[-1]


def test_a_job_that_waits_after_a_failure_is_distinguished_from_one_that_is_due(treadle, td):
    td.enqueue("mail"), td.enqueue("mail")
    td.claim()[0].fail(ConnectionError("refused"), retry_in=60)

    assert treadle("stats").stdout.splitlines()[1].split()[:4] == ["mail", "1", "0", "1"]


def test_a_type_that_no_worker_handles_is_marked(treadle, td):
    enlist(td, "host-1", "mail")
    td.enqueue("mail"), td.enqueue("resize", queue="slow")

    lines = treadle("stats").stdout.splitlines()

    assert "⚠ no worker handles it in queue slow" in next(line for line in lines if line.startswith("resize"))
    assert "⚠" not in next(line for line in lines if line.startswith("mail"))
    assert 1 == "\n".join(lines).count("⚠")


def test_problems_are_shown_with_the_next_step(treadle, td):
    enlist(td, "host-2", "mail", seconds_ago=60)
    td.enqueue("mail")
    for _ in range(5):
        failed(td, "other")

    shown = treadle("stats").stdout

    assert "⚠ worker host-2 is lost: no heartbeat for 1m" in shown
    assert "⚠ 1 job waits and no worker is running\n  → start one: treadle worker app:td" in shown
    assert '⚠ 5 of 5 runs of type "other" failed in the last 15 minutes' in shown


def test_stats_of_an_empty_database_are_one_line(treadle, td):
    assert treadle("stats").stdout.startswith("0 queued · 0 processing · 0 workers")


def test_stats_as_json_have_queues_latency_and_problems(as_json, td):
    completed(td, "mail"), td.enqueue("resize")

    stats = as_json("stats")

    assert [("mail", 0), ("resize", 1)] == [(row["type"], row["queued"]) for row in stats["queues"]]
    assert {"jobs", "wait_p50", "wait_p95", "run_p50", "run_p95"} == stats["latency"]["mail"].keys()
    assert ["no_worker"] == [problem["code"] for problem in stats["problems"]]
    assert "status:queued" == stats["problems"][0]["filter"]


def test_stats_as_json_have_counts_totals_workers_and_unhandled_types(as_json, td):
    td.enqueue("mail"), td.enqueue("resize")
    enlist(td, "host-1", "mail"), enlist(td, "host-2", "mail", seconds_ago=60)
    stats = as_json("stats")
    assert {"status": "pending", "type": "mail", "queue": "default", "count": 1} in stats["items"]
    assert stats["totals"] == {"pending": 2, "blocked": 0, "processing": 0, "completed": 0, "failed": 0, "cancelled": 0}
    assert stats["workers"] == {"live": 1, "lost": 1}
    assert stats["unhandled"] == [{"queue": "default", "type": "resize", "pending": 1}]
    assert stats["database"]["store"] == "sqlite"


def test_stats_by_tenant(treadle, as_json, td):
    td.enqueue("mail", tenant="acme"), td.enqueue("mail")
    items = as_json("stats", "--by", "tenant, status")["items"]
    assert {"tenant": "acme", "status": "pending", "count": 1} in items
    lines = treadle("stats", "--by", "tenant").stdout.splitlines()
    assert [line.split() for line in lines] == [["TENANT", "COUNT"], ["-", "1"], ["acme", "1"]]


def test_stats_by_an_unknown_field_is_exit_code_2(treadle, td):
    assert treadle("stats", "--by", "colour").exit_code == 2


def test_the_help_lists_all_fields_to_count_by(treadle):
    shown = " ".join(treadle("stats", "--help").stdout.split())
    assert f"some of {', '.join(COUNTED_BY)} instead" in shown


def test_no_workers_says_how_to_start_one(treadle, td):
    result = treadle("workers")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "→ treadle worker app:td" in result.stderr


def test_workers_are_shown_with_their_heartbeat_and_jobs(treadle, td):
    one = enlist(td, "host-1", "mail", "resize", queues=("fast",))
    enlist(td, "host-2", seconds_ago=60)
    for type in ("mail", "mail", "resize"):
        td.enqueue(type, queue="fast")
    td.store.claim(one.id, ClaimRequest(limit=3))

    _, lost, alive = treadle("workers").stdout.splitlines()

    assert alive.split()[:5] == ["●", "host-1", "3/10", "mail", "×2"]  # noqa: RUF001
    assert re.search(r"mail ×2 for \S+, resize for \S+ +fast +mail, resize +0\.1\.0", alive)  # noqa: RUF001
    assert lost.split()[:4] == ["◌", "host-2", "0/10", "-"]
    assert re.search(r"1m( \d+s)? ago: lost$", lost)


def test_workers_as_json_are_the_same_as_in_the_api(as_json, td):
    one = enlist(td, "host-1", "mail")
    enlist(td, "host-2", seconds_ago=60)
    td.enqueue("mail")
    td.store.claim(one.id, ClaimRequest(limit=3))

    workers = {worker["name"]: worker for worker in as_json("workers")["items"]}

    assert {name: worker["live"] for name, worker in workers.items()} == {"host-1": True, "host-2": False}
    names = ["id", "name", "concurrency", "queues", "types", "version", "started_at", "seen_at", "silent_for", "live"]
    assert [*names, "stalled_for", "quiet_for", "running", "doing"] == list(workers["host-1"])
    [doing] = workers["host-1"]["doing"]
    assert ("mail", 1) == (doing["type"], doing["count"])
    assert doing["since"].endswith("Z")
    assert 59 < workers["host-2"]["silent_for"] < 120


def test_queues_are_listed_by_queue_and_type(treadle, as_json, td):
    td.enqueue("resize", queue="img"), td.enqueue("mail", delay=3600), completed(td, "report")
    td.store.publish([TypePolicy(type="resize", concurrency=4)])

    lines = [line.split() for line in treadle("queues", "ls").stdout.splitlines()]
    items = as_json("queues", "ls")["items"]

    assert lines[0][:3] == ["QUEUE", "TYPE", "QUEUED"]
    assert [["default", "mail"], ["default", "report"], ["img", "resize"]] == [line[:2] for line in lines[1:]]
    assert lines[1][2:12] == ["0", "1", "0", "0", "0", "0", "0", "0", "-", "-"]
    assert lines[3][2:11] == ["1", "0", "0", "0", "0", "0", "0", "0", "4"]
    assert (1, 4, True) == (items[2]["queued"], items[2]["limit"], items[2]["exact"])
    assert items[0]["next_due"].endswith("Z")
    assert items[0]["oldest_due"] is None


def test_no_queues_say_so_on_stderr(treadle, td):
    result = treadle("queues", "ls")
    assert (result.stdout, result.exit_code) == ("", 0)
    assert "no jobs" in result.stderr


def test_there_is_no_color_in_a_pipe(treadle, td):
    failed(td)
    assert "\x1b" not in treadle("stats").stdout + treadle("jobs", "ls").stdout
