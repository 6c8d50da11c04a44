"""`windlass stats` and `windlass workers`."""

from __future__ import annotations

from tests.cli.helpers import completed, enlist, failed, processing


def test_stats_count_by_type_and_status(windlass, wl, folder):
    completed(wl, "mail"), failed(wl, "mail"), processing(wl, "mail")
    for _ in range(3):
        wl.enqueue("resize", queue="slow")
    lines = windlass("stats").stdout.splitlines()
    assert lines[0].split() == ["TYPE", "PENDING", "PROCESSING", "COMPLETED", "FAILED"]
    assert lines[1].split()[:5] == ["resize", "3", "0", "0", "0"]
    assert lines[2].split() == ["mail", "0", "1", "1", "1"]
    assert "⚠ no worker handles it in queue slow" in lines[1]
    assert f"3 pending · 1 processing · 0 workers · sqlite {folder / 'windlass.db'}" in lines[-1]


def test_stats_of_an_empty_database_are_one_line(windlass, wl):
    assert windlass("stats").stdout.startswith("0 pending · 0 processing · 0 workers")


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


def test_workers_are_shown_with_their_heartbeat(windlass, wl):
    enlist(wl, "host-1", "mail", "resize", queues=("fast",))
    enlist(wl, "host-2", seconds_ago=60)
    _, lost, alive = windlass("workers").stdout.splitlines()
    assert alive.split()[:7] == ["●", "host-1", "0/10", "fast", "mail,", "resize", "0.1.0"]
    assert lost.split()[:2] == ["◌", "host-2"]
    assert lost.endswith("1m ago: lost")


def test_workers_as_json_have_times_and_whether_they_live(as_json, wl):
    enlist(wl, "host-1", "mail"), enlist(wl, "host-2", seconds_ago=60)
    workers = as_json("workers")["items"]
    assert {worker["name"]: worker["live"] for worker in workers} == {"host-1": True, "host-2": False}
    assert workers[0]["seen_at"].endswith("Z")


def test_there_is_no_colour_in_a_pipe(windlass, wl):
    failed(wl)
    assert "\x1b" not in windlass("stats").stdout + windlass("jobs", "ls").stdout
