"""Three types of jobs, each of which makes the next: scan_source → ingest_grib → build_tile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from examples.weather_tiles.grid import REGIONS, cut, picture
from treadle import Context, Treadle, exponential

td = Treadle(os.environ.get("TREADLE_URL", "sqlite:///jobs.db"))

WEATHER = Path(os.environ.get("WEATHER", "weather"))
"""In it: `upstream`, which stands for NOAA's server, `raw`, what we have fetched, and `tiles`, what we have made."""

HOURS = "CREATE TABLE IF NOT EXISTS hours (model TEXT, run TEXT, hour INTEGER, PRIMARY KEY (model, run, hour))"
TILES = (
    "CREATE TABLE IF NOT EXISTS tiles (model TEXT, run TEXT, hour INTEGER, region TEXT, builds INTEGER NOT NULL, "
    "PRIMARY KEY (model, run, hour, region))"
)


@td.job(dedupe=True)
def scan_source(ctx: Context, model_id: str) -> None:
    """Order every hour that the source has and we have not seen. That it was seen, and its job, are one commit."""
    found = sorted((path.parent.name, int(path.stem)) for path in (WEATHER / "upstream" / model_id).glob("*/*.npy"))
    with ctx.transaction() as db:
        db.execute(HOURS)
        for run_id, hour in found:
            added = db.execute("INSERT INTO hours VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (model_id, run_id, hour))
            if added.rowcount:
                sooner_first = ingest_grib.using(priority=-hour, subject=f"{model_id}/{run_id}/{hour}")
                sooner_first.enqueue(model_id=model_id, run_id=run_id, hour=hour)
        ctx.result = {"hours": len(found)}


@td.job(max_attempts=4, backoff=exponential(base=1, cap=60))
def ingest_grib(model_id: str, run_id: str, hour: int) -> None:
    """Fetch one hour. Its tiles are follow-ups: they are there if and only if it has completed."""
    raw = _path("raw", model_id, run_id, hour)
    with _complete(raw) as unfinished:
        shutil.copyfile(_path("upstream", model_id, run_id, hour), unfinished)
        np.load(unfinished)  # a download that was cut short is none
    for region in REGIONS:
        before_other_hours = build_tile.using(priority=100 - hour, subject=f"{model_id}/{run_id}/{hour}")
        before_other_hours.enqueue(model_id=model_id, run_id=run_id, hour=hour, region=region)


@td.job(max_attempts=4, backoff=exponential(base=1, cap=60))
def build_tile(ctx: Context, model_id: str, run_id: str, hour: int, region: str) -> None:
    """Cut a region out of an hour: the numbers as NPZ, and a picture for people."""
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
    """A file appears when it is complete, or not at all, whenever its writer dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left_behind in path.parent.glob(f".{path.name}.*"):
        left_behind.unlink(missing_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    yield unfinished
    os.replace(unfinished, path)
