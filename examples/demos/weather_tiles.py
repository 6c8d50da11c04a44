"""The demo: a model run becomes tiles under two worker processes, one of which is killed on the way."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import time
from pathlib import Path

from examples.demos.screen import Screen, all_ended
from examples.weather_tiles.grid import MODEL, REGIONS, publish
from treadle import Treadle

HOURS = 18
TILES = HOURS * len(REGIONS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/example weather_tiles", description=__doc__)
    parser.add_argument("--out", type=Path, help="copy the tiles into this folder")
    out = parser.parse_args().out
    with Screen("weather_tiles") as screen:
        url = f"sqlite:///{screen.folder}/jobs.db"
        publish(screen.folder / "upstream", HOURS)
        os.environ |= {"TREADLE_URL": url, "WEATHER": str(screen.folder)}
        td = Treadle(url)
        td.enqueue("scan_source", {"model_id": MODEL})
        screen.say("•", f"one job stored in {url}: scan_source({MODEL})")
        screen.say("•", "two worker processes: treadle worker examples.weather_tiles.jobs:td --processes 2")
        worker = screen.start("treadle", *WORKER)
        screen.watch(td, lambda counts: counts["completed"] > TILES // 3, worker)
        show_workers(screen, td)
        kill_one(screen, td)
        screen.watch(td, all_ended, worker)
        show_what_happened(screen, td)
        tiles = sorted((screen.folder / "tiles").rglob("*.npz"))
        screen.say("✗" if len(tiles) < TILES else "✓", f"{len(tiles)} of {TILES} tiles, each with a picture")
        if out is not None:
            shutil.copytree(screen.folder / "tiles", out, dirs_exist_ok=True)
            screen.say("•", f"the tiles are in {out}")
        screen.stay(f"{screen.folder}/tiles", f".venv/bin/treadle dashboard --db {url}")
        td.close()
    if len(tiles) < TILES:
        raise SystemExit(1)


WORKER = ("worker", "examples.weather_tiles.jobs:td", "--processes", "2", "--concurrency", "2", "--grace", "5")


def show_workers(screen: Screen, td: Treadle) -> None:
    now = time.time_ns() // 1000
    held = {job.worker_id: job for job in td.jobs(status="processing")}
    rows = []
    for worker in td.workers():
        job = held.get(worker.id)
        current = "" if job is None else f"{job.type} {job.subject} {job.payload.get('region', '')}"
        rows.append((worker.name, f"{(now - worker.seen_at) / 1e6:.1f} s ago", worker.leases, current))
    screen.table("Workers", ("worker", "last heartbeat", "jobs", "one of them"), rows)


def kill_one(screen: Screen, td: Treadle) -> None:
    """kill -9, like a crash. The supervisor releases its jobs at once and starts another worker."""
    victim = max(td.workers(), key=lambda worker: worker.leases)
    os.kill(int(victim.name.rpartition("-")[2]), signal.SIGKILL)
    screen.say("✗", f"kill -9 {victim.name}: it dies while it runs {victim.leases} jobs", "red")


def show_what_happened(screen: Screen, td: Treadle) -> None:
    rows = []
    for type in ("scan_source", "ingest_grib", "build_tile"):
        found = td.jobs(type=type, limit=200)
        died = sum(len(td.attempts(job.id)) for job in found)
        rows.append((type, len(found), sum(job.status == "completed" for job in found), died or ""))
    screen.table("What happened", ("type", "jobs", "completed", "runs that died"), rows)


if __name__ == "__main__":
    main()
