"""The show: a model run becomes tiles under two worker processes, one of which is killed on the way."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
from pathlib import Path

import numpy as np

from examples.show import Stage, all_ended
from examples.weather_tiles.grid import REGIONS, forecast
from treadle import Treadle

MODEL, RUN, HOURS = "hrrr", "20230125_12", 18
TILES = HOURS * len(REGIONS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/example weather_tiles", description=__doc__)
    parser.add_argument("--out", type=Path, help="a folder to put the tiles into, to look at them afterwards")
    out = parser.parse_args().out
    with Stage("weather_tiles") as stage:
        url = f"sqlite:///{stage.folder}/jobs.db"
        publish(stage.folder / "upstream", HOURS)
        os.environ |= {"TREADLE_URL": url, "WEATHER": str(stage.folder)}
        td = Treadle(url)
        td.enqueue("scan_source", {"model_id": MODEL})
        stage.say("•", f"one job stored in {td.store.where}: scan_source({MODEL})")
        stage.say("•", "two worker processes: treadle worker examples.weather_tiles.jobs:td --processes 2")
        worker = stage.start("treadle", *WORKER)
        stage.watch(td, lambda counts: counts["completed"] > TILES // 3, worker)
        show_workers(stage, td)
        kill_one(stage, td)
        stage.watch(td, all_ended, worker)
        show_what_happened(stage, td)
        tiles = sorted((stage.folder / "tiles").rglob("*.npz"))
        stage.say("✗" if len(tiles) < TILES else "✓", f"{len(tiles)} of {TILES} tiles, each with a picture")
        if out is not None:
            shutil.copytree(stage.folder / "tiles", out, dirs_exist_ok=True)
            stage.say("•", f"they are in {out}")
        stage.stay(f"{stage.folder}/tiles", f".venv/bin/treadle dashboard --db {url}")
        td.close()
    if len(tiles) < TILES:
        raise SystemExit(1)


WORKER = ("worker", "examples.weather_tiles.jobs:td", "--processes", "2", "--concurrency", "2", "--grace", "5")


def publish(upstream: Path, hours: int, rows: int = 240, columns: int = 360) -> None:
    """A run, as a weather service would put it on its server."""
    folder = upstream / MODEL / RUN
    folder.mkdir(parents=True, exist_ok=True)
    for hour in range(hours):
        np.save(folder / f"{hour:03}.npy", forecast(hour, rows, columns))


def show_workers(stage: Stage, td: Treadle) -> None:
    now = td.store.now()
    held = {job.worker_id: job for job in td.jobs(status="processing")}
    rows = []
    for worker in td.workers():
        job = held.get(worker.id)
        current = "" if job is None else f"{job.type} {job.subject} {job.payload.get('region', '')}"
        rows.append((worker.name, f"{(now - worker.seen_at) / 1e6:.1f} s ago", worker.leases, current))
    stage.table("Workers", ("worker", "last heartbeat", "jobs in hand", "one of them"), rows)


def kill_one(stage: Stage, td: Treadle) -> None:
    """kill -9, as a crash would. The supervisor gives its jobs back at once and starts another."""
    victim = max(td.workers(), key=lambda worker: worker.leases)
    os.kill(int(victim.name.rpartition("-")[2]), signal.SIGKILL)
    stage.say("✗", f"kill -9 {victim.name}: it dies with {victim.leases} jobs in hand", "red")


def show_what_happened(stage: Stage, td: Treadle) -> None:
    rows = []
    for type in ("scan_source", "ingest_grib", "build_tile"):
        found = td.jobs(type=type, limit=200)
        died = sum(len(td.attempts(job.id)) for job in found)
        rows.append((type, len(found), sum(job.status == "completed" for job in found), died or ""))
    stage.table("What happened", ("type", "jobs", "completed", "runs that died"), rows)


if __name__ == "__main__":
    main()
