"""Three types of jobs, each of which enqueues the next: scan_source → ingest_grib → build_tile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from treadle import Context, Treadle, exponential

from .grid import MODEL, REGIONS, cut, picture

td = Treadle(os.environ.get("TREADLE_URL", "sqlite:///jobs.db"))

WEATHER = Path(os.environ.get("WEATHER", "weather"))
"""Holds `upstream`, which stands for NOAA's server, `raw`, the downloaded hours, and `tiles`, the results."""

HOURS = "CREATE TABLE IF NOT EXISTS hours (model TEXT, run TEXT, hour INTEGER, PRIMARY KEY (model, run, hour))"
TILES = (
    "CREATE TABLE IF NOT EXISTS tiles (model TEXT, run TEXT, hour INTEGER, region TEXT, builds INTEGER NOT NULL, "
    "PRIMARY KEY (model, run, hour, region))"
)


@td.job(dedupe=True)
def scan_source(ctx: Context, model_id: str) -> None:
    """Enqueue every hour that is new. The row that marks it as seen and its job are one commit."""
    found = sorted((path.parent.name, int(path.stem)) for path in (WEATHER / "upstream" / model_id).glob("*/*.npy"))
    with ctx.transaction() as db:
        db.execute(HOURS)
        for run_id, hour in found:
            added = db.execute("INSERT INTO hours VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (model_id, run_id, hour))
            if added.rowcount:
                sooner_first = ingest_grib.using(priority=-hour, subject=f"{model_id}/{run_id}/{hour}")
                sooner_first.enqueue(model_id=model_id, run_id=run_id, hour=hour)
        ctx.result = {"hours": len(found)}


# At night, when the last run of the day is complete. If the machine was off then, once when it is on again.
scan_source.schedule("nightly-scan", cron="30 2 * * *", zone="America/New_York", payload={"model_id": MODEL})


@td.job(max_attempts=4, backoff=exponential(base=1, cap=60))
def ingest_grib(model_id: str, run_id: str, hour: int) -> None:
    """Download one hour. Its tiles are follow-ups: they exist if and only if this job has completed."""
    raw = _path("raw", model_id, run_id, hour)
    with _complete(raw) as unfinished:
        shutil.copyfile(_path("upstream", model_id, run_id, hour), unfinished)
        np.load(unfinished)  # raises if the download was cut short
    for region in REGIONS:
        before_other_hours = build_tile.using(priority=100 - hour, subject=f"{model_id}/{run_id}/{hour}")
        before_other_hours.enqueue(model_id=model_id, run_id=run_id, hour=hour, region=region)


@td.job(max_attempts=4, backoff=exponential(base=1, cap=60))
def build_tile(ctx: Context, model_id: str, run_id: str, hour: int, region: str) -> None:
    """Cut a region out of an hour: the numbers as NPZ, and a PNG to look at."""
    tile = cut(np.load(_path("raw", model_id, run_id, hour), mmap_mode="r"), region)
    place = WEATHER / "tiles" / model_id / run_id / f"{hour:03}" / region
    with _complete(place.with_suffix(".npz")) as unfinished, unfinished.open("wb") as file:
        np.savez_compressed(file, temperature=tile)
    with _complete(place.with_suffix(".png")) as unfinished:
        picture(tile).save(unfinished, "PNG")
    with ctx.transaction() as db:
        db.execute(TILES)
        db.execute(
            "INSERT INTO tiles VALUES (?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET builds = builds + 1",
            (model_id, run_id, hour, region),
        )
        ctx.result = {"coldest": round(float(tile.min()), 1), "warmest": round(float(tile.max()), 1)}


def _path(kind: str, model_id: str, run_id: str, hour: int) -> Path:
    return WEATHER / kind / model_id / run_id / f"{hour:03}.npy"


@contextmanager
def _complete(path: Path) -> Iterator[Path]:
    """The file appears complete or not at all, even if its writer dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left_behind in path.parent.glob(f".{path.name}.*"):
        left_behind.unlink(missing_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    yield unfinished
    os.replace(unfinished, path)
