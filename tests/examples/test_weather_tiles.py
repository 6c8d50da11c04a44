"""scan_source → ingest_grib → build_tile on one SQLite file: every requirement of the example."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from PIL import Image

from examples.weather_tiles import jobs
from examples.weather_tiles.grid import MODEL, REGIONS, RUN, cut, forecast, publish
from examples.weather_tiles.jobs import build_tile, ingest_grib, scan_source, td
from tests import stores
from tests.eventually import eventually
from tests.examples.harness import KILLS, Example, counts, kill_again_and_again
from treadle import Treadle
from treadle.testing import ManualClock, drain, temporary

HOUR = {"model_id": MODEL, "run_id": RUN, "hour": 5}


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ManualClock]:
    monkeypatch.setattr(jobs, "WEATHER", tmp_path)
    with temporary(td, url=f"sqlite:///{tmp_path}/jobs.db") as clock:
        yield clock


def rows(query: str) -> list[Any]:
    return stores.rows(td.store.url, query)


def in_order(n: int) -> list[Any]:
    """The next jobs, as a worker with one slot takes them."""
    return [td.claim(1)[0].job for _ in range(n)]


def test_new_hours_are_looked_for_every_night(clock: ManualClock, tmp_path: Path) -> None:
    publish(tmp_path / "upstream", 6, 8, 12)
    td.tick()
    clock.advance(24 * 3600)

    assert td.tick().fired == 1

    [scan] = td.jobs("schedule:nightly-scan")
    assert (scan.type, scan.payload) == ("scan_source", {"model_id": MODEL})
    assert scan.fired_at is not None
    assert scan.fired_at.astimezone(ZoneInfo("America/New_York")).strftime("%H:%M") in ("02:30", "03:00")
    assert td.count("type:ingest_grib").value > 0


# 2.1 Table jobs


def test_a_job_has_every_column_of_the_table(clock: ManualClock, tmp_path: Path) -> None:
    """`args` are the payload here, `error_message` is `error`, `retry_count` is `attempts` (the first is no retry)."""
    publish(tmp_path / "upstream", 6, 8, 12)
    job = ingest_grib.using(priority=3).enqueue(**HOUR)
    clock.advance(1)
    drain(td)
    columns = "id, type, payload, priority, status, worker_id, created_at, started_at, completed_at, error, attempts"
    [row] = rows(f"SELECT {columns} FROM treadle_job WHERE type = 'ingest_grib'")
    assert row[:5] == (job.id, "ingest_grib", '{"model_id":"hrrr","run_id":"20230125_12","hour":5}', 3, "completed")
    assert row[5]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row[6])  # UTC
    assert row[6] < row[7] <= row[8]
    assert row[9:] == (None, 1)


def test_the_default_priority_is_0() -> None:
    assert scan_source.job_type.policy.priority == 0


# 2.2 Table workers, which it calls optional


def test_workers_have_an_id_a_heartbeat_and_their_current_job(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is hostname-pid; it has the time of its last heartbeat, and its current jobs."""
    publish(tmp_path / "raw", 6, 8, 12)
    go_on = threading.Event()
    monkeypatch.setattr(jobs, "cut", lambda *tile: (go_on.wait(60), cut(*tile))[1])

    async def work() -> None:
        async with td.worker(concurrency=1, beat=0.02):
            await asyncio.to_thread(eventually, lambda: counts(td) == {"processing": 1})
            [worker] = td.workers()
            assert worker.name == f"{socket.gethostname()}-{os.getpid()}"
            assert rows("SELECT id, worker_id FROM treadle_job") == [(job.id, worker.id)]
            clock.advance(5)
            await asyncio.to_thread(eventually, lambda: td.workers()[0].beats > worker.beats + 1)
            assert td.workers()[0].seen_at > worker.seen_at
            go_on.set()
            await asyncio.to_thread(eventually, lambda: counts(td) == {"completed": 1})

    job = build_tile.enqueue(**HOUR, region="ne")
    asyncio.run(work())


# 3 Job types and arguments


def test_scan_source_finds_new_runs_and_only_those(clock: ManualClock, tmp_path: Path) -> None:
    publish(tmp_path / "upstream", 3, 8, 12)
    scan_source.enqueue(model_id="hrrr")
    drain(td)
    assert len(td.jobs(type="ingest_grib")) == 3
    publish(tmp_path / "upstream", 4, 8, 12)  # one hour more has come
    scan_source.enqueue(model_id="hrrr")
    drain(td)
    assert [job.payload["hour"] for job in td.jobs(type="ingest_grib")] == [3, 2, 1, 0]
    assert td.jobs(type="ingest_grib")[0].payload == {"model_id": "hrrr", "run_id": "20230125_12", "hour": 3}


def test_ingest_grib_downloads_a_file_and_orders_its_tiles(clock: ManualClock, tmp_path: Path) -> None:
    publish(tmp_path / "upstream", 6, 8, 12)
    ingest_grib.enqueue(model_id="hrrr", run_id="20230125_12", hour=5)
    drain(td, max_jobs=100)
    assert np.array_equal(np.load(tmp_path / "raw" / MODEL / RUN / "005.npy"), forecast(5, 8, 12))
    assert sorted(job.payload["region"] for job in td.jobs(type="build_tile")) == sorted(REGIONS)


def test_build_tile_generates_npz_tiles_from_a_grib(clock: ManualClock, tmp_path: Path) -> None:
    publish(tmp_path / "upstream", 6)
    ingest_grib.enqueue(**HOUR)
    drain(td)
    folder = tmp_path / "tiles" / MODEL / RUN / "005"
    with np.load(folder / "ne.npz") as tile:
        assert np.array_equal(tile["temperature"], cut(forecast(5), "ne"))
    [job] = [job for job in td.jobs(type="build_tile") if job.payload["region"] == "ne"]
    assert job.payload == {"model_id": "hrrr", "run_id": "20230125_12", "hour": 5, "region": "ne"}
    with Image.open(folder / "ne.png") as preview:
        assert preview.size == (540, 360)
        colors = preview.getcolors(maxcolors=1_000_000)
    assert colors is not None
    assert len(colors) > 500  # a picture, and not one color
    assert (30, 30, 40) in {color for _, color in colors}  # with the line where it freezes


# 4 State transitions


def test_enqueue_inserts_a_pending_job_with_its_time_and_priority(clock: ManualClock) -> None:
    job = build_tile.using(priority=7).enqueue(**HOUR, region="ne")
    assert (job.status, job.created_at, job.priority) == ("pending", clock.now(), 7)
    assert td.get(job.id) == job


def test_claims_go_by_priority_then_age_across_types(clock: ManualClock) -> None:
    for type, priority in (("a", 0), ("b", 0), ("a", 5), ("c", 9), ("b", 5), ("a", -1)):
        td.enqueue(type, {}, priority=priority)
        clock.advance(1)
    assert [(job.type, job.priority) for job in in_order(6)] == [
        ("c", 9),
        ("a", 5),
        ("b", 5),
        ("a", 0),
        ("b", 0),
        ("a", -1),
    ]


def test_tiles_of_a_fetched_hour_come_before_the_next_hour_and_sooner_hours_first(
    clock: ManualClock, tmp_path: Path
) -> None:
    publish(tmp_path / "upstream", 3, 8, 12)
    scan_source.enqueue(model_id=MODEL)
    while td.tick(max_jobs=1).ran:
        clock.advance(1)
    ended = rows("SELECT type, payload ->> 'hour' FROM treadle_job ORDER BY completed_at")
    expected = [("scan_source", None)]
    for hour in range(3):
        expected += [("ingest_grib", hour), *[("build_tile", hour)] * len(REGIONS)]
    assert ended == expected


def test_a_claim_sets_processing_worker_and_started_at(clock: ManualClock) -> None:
    job = scan_source.enqueue(model_id=MODEL)
    clock.advance(2)
    [lease] = td.claim(1)
    assert lease.job.id == job.id
    assert (lease.job.status, lease.job.started_at) == ("processing", clock.now())


def test_complete_sets_completed_and_completed_at(clock: ManualClock) -> None:
    scan_source.enqueue(model_id=MODEL)
    [lease] = td.claim(1)
    clock.advance(3)
    lease.complete()
    job = td.get(lease.job.id)
    assert job is not None
    assert (job.status, job.completed_at) == ("completed", clock.now())


def test_a_failure_keeps_its_trace_is_retried_and_ends_failed(clock: ManualClock, tmp_path: Path) -> None:
    """The retry, which it calls optional, is there: three retries after the first run."""
    publish(tmp_path / "upstream", 6, 8, 12)
    cut_short = tmp_path / "upstream" / MODEL / RUN / "005.npy"
    cut_short.write_bytes(cut_short.read_bytes()[:100])
    job = ingest_grib.enqueue(**HOUR)
    for retries, seconds in enumerate((1, 2, 4)):
        drain(td, raising=False)
        found = td.get(job.id)
        assert found is not None
        assert (found.status, found.attempts) == ("pending", retries + 1)
        clock.advance(seconds)
    drain(td, raising=False)
    found = td.get(job.id)
    assert found is not None
    assert (found.status, found.attempts, found.completed_at) == ("failed", 4, clock.now())
    assert found.error
    assert "ValueError" in found.error
    last = td.attempts(job.id)[-1]
    assert last.traceback is not None
    assert "np.load(unfinished)" in last.traceback
    assert td.jobs(type="build_tile").jobs == []  # a failed ingest has no follow-ups


def test_a_download_that_was_cut_short_is_fixed_by_a_retry(clock: ManualClock, tmp_path: Path) -> None:
    publish(tmp_path / "upstream", 6, 8, 12)
    file = tmp_path / "upstream" / MODEL / RUN / "005.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    ingest_grib.enqueue(**HOUR)
    assert drain(td, raising=False).retried == 1
    file.write_bytes(whole)
    clock.advance(1)
    assert drain(td).completed == 1 + len(REGIONS)


# 5 Concurrency control


def test_wal_mode_is_enabled(clock: ManualClock) -> None:
    scan_source.enqueue(model_id=MODEL)
    assert rows("PRAGMA journal_mode") == [("wal",)]


def test_claims_are_atomic(clock: ManualClock) -> None:
    ids = sorted(build_tile.enqueue(**HOUR, region=f"r{n}").id for n in range(60))
    claimed: list[str] = []

    def claim() -> None:
        while leases := td.claim(1):
            claimed.extend(lease.job.id for lease in leases)

    threads = [threading.Thread(target=claim) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == ids


# The whole of it


def test_every_tile_is_built_and_counted_once_however_often_the_worker_dies(tmp_path: Path) -> None:
    """kill -9 of the worker at 20 random moments, while new hours keep coming."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    watching = Treadle(url)
    with Example("examples.weather_tiles.jobs", TREADLE_URL=url, WEATHER=str(tmp_path)) as worker:

        def more(kill: int) -> None:
            publish(tmp_path / "upstream", 2 * kill + 2, 12, 16)
            watching.enqueue("scan_source", {"model_id": MODEL})

        kill_again_and_again(worker, watching, more)
    hours = 2 * KILLS
    assert counts(watching) == {"completed": KILLS + hours + hours * len(REGIONS)}
    watching.close()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        built = db.execute("SELECT hour, region, builds FROM tiles").fetchall()
    assert sorted(built) == sorted((hour, region, 1) for hour in range(hours) for region in REGIONS)
    folder = tmp_path / "tiles" / MODEL / RUN
    for hour, region, _ in built:
        with np.load(folder / f"{hour:03}" / f"{region}.npz") as tile:
            assert np.array_equal(tile["temperature"], cut(forecast(hour, 12, 16), region))
    assert [path for path in tmp_path.rglob(".*") if path.is_file()] == []  # nothing half-written is left
