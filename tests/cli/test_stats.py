"""`windlass stats`, `windlass queues` and `windlass workers`."""

from __future__ import annotations

import re

from tests.cli.helpers import completed, enlist, failed, processing
from windlass.stores.base import TypePolicy, Wanted

HEADS = ["TYPE", "QUEUED", "SCHEDULED", "RETRYING", "PROCESSING", "COMPLETED", "FAILED", "OLDEST", "P95", "RUN"]


def test_stats_count_by_type_and_state(windlass, wl, folder):
    completed(wl, "mail"), failed(wl, "mail"), processing(wl, "mail")
    for _ in range(3):
        wl.enqueue("resize", queue="slow")
    wl.enqueue("resize", delay=3600)

    lines = windlass("stats").stdout.splitlines()

    assert lines[0].split() == HEADS
    assert lines[1].split()[:7] == ["resize", "3", "1", "0", "0", "0", "0"]
    assert lines[1].split()[8] == "-"
    assert lines[2].split()[:8] == ["mail", "0", "0", "0", "1", "1", "1", "-"]
    assert re.search(r"\dm?s$", lines[2])
    assert f"3 queued · 1 processing · 0 workers · sqlite {folder / 'windlass.db'}" in lines[-1]


def test_a_job_that_waits_after_a_failure_is_told_from_one_that_is_due(windlass, wl):
    wl.enqueue("mail"), wl.enqueue("mail")
    wl.claim()[0].fail(ConnectionError("refused"), retry_in=60)

    assert windlass("stats").stdout.splitlines()[1].split()[:4] == ["mail", "1", "0", "1"]


def test_what_nobody_handles_is_told_beside_its_type(windlass, wl):
    enlist(wl, "host-1", "mail")
    wl.enqueue("mail"), wl.enqueue("resize", queue="slow")

    lines = windlass("stats").stdout.splitlines()

    assert "⚠ no worker handles it in queue slow" in next(line for line in lines if line.startswith("resize"))
    assert "⚠" not in next(line for line in lines if line.startswith("mail"))
    assert 1 == "\n".join(lines).count("⚠")


def test_what_is_wrong_is_told_with_the_next_step(windlass, wl):
    enlist(wl, "host-2", "mail", seconds_ago=60)
    wl.enqueue("mail")
    for _ in range(5):
        failed(wl, "other")

    shown = windlass("stats").stdout

    assert "⚠ worker host-2 is lost: no heartbeat for 1m" in shown
    assert "⚠ 1 job waits and no worker is running\n  → start one: windlass worker app:wl" in shown
    assert '⚠ 5 of 5 runs of type "other" failed in the last 15 minutes' in shown


def test_stats_of_an_empty_database_are_one_line(windlass, wl):
    assert windlass("stats").stdout.startswith("0 queued · 0 processing · 0 workers")


def test_stats_as_json_have_queues_latency_and_problems(as_json, wl):
    completed(wl, "mail"), wl.enqueue("resize")

    stats = as_json("stats")

    assert [("mail", 0), ("resize", 1)] == [(lane["type"], lane["queued"]) for lane in stats["queues"]]
    assert {"jobs", "wait_p50", "wait_p95", "run_p50", "run_p95"} == stats["latency"]["mail"].keys()
    assert ["no_worker"] == [problem["code"] for problem in stats["problems"]]
    assert "status:queued" == stats["problems"][0]["filter"]


def test_stats_as_json_have_counts_totals_workers_and_what_nobody_handles(as_json, wl):
    wl.enqueue("mail"), wl.enqueue("resize")
    enlist(wl, "host-1", "mail"), enlist(wl, "host-2", "mail", seconds_ago=60)
    stats = as_json("stats")
    assert {"status": "pending", "type": "mail", "queue": "default", "count": 1} in stats["items"]
    assert stats["totals"] == {"pending": 2, "processing": 0, "completed": 0, "failed": 0, "cancelled": 0}
    assert stats["workers"] == {"live": 1, "lost": 1}
    assert stats["unhandled"] == [{"queue": "default", "type": "resize", "pending": 1}]
    assert stats["database"]["store"] == "sqlite"


def test_stats_by_tenant(windlass, as_json, wl):
    wl.enqueue("mail", tenant="acme"), wl.enqueue("mail")
    items = as_json("stats", "--by", "tenant, status")["items"]
    assert {"tenant": "acme", "status": "pending", "count": 1} in items
    lines = windlass("stats", "--by", "tenant").stdout.splitlines()
    assert [line.split() for line in lines] == [["TENANT", "COUNT"], ["-", "1"], ["acme", "1"]]


def test_stats_by_something_else_is_exit_code_2(windlass, wl):
    assert windlass("stats", "--by", "colour").exit_code == 2


def test_no_workers_says_how_to_start_one(windlass, wl):
    result = windlass("workers")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "→ windlass worker app:wl" in result.stderr


def test_workers_are_shown_with_their_heartbeat_and_what_they_do(windlass, wl):
    one = enlist(wl, "host-1", "mail", "resize", queues=("fast",))
    enlist(wl, "host-2", seconds_ago=60)
    for type in ("mail", "mail", "resize"):
        wl.enqueue(type, queue="fast")
    wl.store.claim(one.id, Wanted(limit=3))

    _, lost, alive = windlass("workers").stdout.splitlines()

    assert alive.split()[:5] == ["●", "host-1", "3/10", "mail", "×2"]  # noqa: RUF001
    assert re.search(r"mail ×2 for \S+, resize for \S+ +fast +mail, resize +0\.1\.0", alive)  # noqa: RUF001
    assert lost.split()[:4] == ["◌", "host-2", "0/10", "-"]
    assert re.search(r"1m( \d+s)? ago: lost$", lost)


def test_workers_as_json_are_as_the_api_has_them(as_json, wl):
    one = enlist(wl, "host-1", "mail")
    enlist(wl, "host-2", seconds_ago=60)
    wl.enqueue("mail")
    wl.store.claim(one.id, Wanted(limit=3))

    workers = {worker["name"]: worker for worker in as_json("workers")["items"]}

    assert {name: worker["live"] for name, worker in workers.items()} == {"host-1": True, "host-2": False}
    names = ["id", "name", "concurrency", "queues", "types", "version", "started_at", "seen_at", "silent_for", "live"]
    assert [*names, "running", "doing"] == list(workers["host-1"])
    [doing] = workers["host-1"]["doing"]
    assert ("mail", 1) == (doing["type"], doing["count"])
    assert doing["since"].endswith("Z")
    assert 59 < workers["host-2"]["silent_for"] < 120


def test_queues_are_listed_by_queue_and_type(windlass, as_json, wl):
    wl.enqueue("resize", queue="img"), wl.enqueue("mail", delay=3600), completed(wl, "report")
    wl.store.publish([TypePolicy(type="resize", concurrency=4)])

    lines = [line.split() for line in windlass("queues", "ls").stdout.splitlines()]
    items = as_json("queues", "ls")["items"]

    assert lines[0][:3] == ["QUEUE", "TYPE", "QUEUED"]
    assert [["default", "mail"], ["default", "report"], ["img", "resize"]] == [line[:2] for line in lines[1:]]
    assert lines[1][2:11] == ["0", "1", "0", "0", "0", "0", "0", "-", "-"]
    assert lines[3][2:10] == ["1", "0", "0", "0", "0", "0", "0", "4"]
    assert (1, 4, True) == (items[2]["queued"], items[2]["limit"], items[2]["exact"])
    assert items[0]["next_due"].endswith("Z")
    assert items[0]["oldest_due"] is None


def test_no_queues_say_so_on_stderr(windlass, wl):
    result = windlass("queues", "ls")
    assert (result.stdout, result.exit_code) == ("", 0)
    assert "no jobs" in result.stderr


def test_there_is_no_colour_in_a_pipe(windlass, wl):
    failed(wl)
    assert "\x1b" not in windlass("stats").stdout + windlass("jobs", "ls").stdout
