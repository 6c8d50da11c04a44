"""Gridded data: a forecast field, the regions that tiles are cut from, and a picture of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Field = NDArray[np.float32]
"""Temperature in °C, north at the top."""

REGIONS = {"nw": (0, 0), "ne": (0, 1), "sw": (1, 0), "se": (1, 1)}
"""The quarters of the map: half of the rows, half of the columns."""

MODEL, RUN = "hrrr", "20230125_12"
COLDEST, WARMEST = -20.0, 35.0
COLORS = np.array(
    [(59, 28, 122), (44, 86, 184), (66, 166, 214), (150, 214, 190), (247, 236, 150), (244, 160, 72), (190, 36, 44)]
)


def forecast(hour: int, rows: int = 240, columns: int = 360) -> Field:
    """Stands for a weather model: cold in the north, a low that moves east, and hills."""
    y, x = np.mgrid[0 : 1 : rows * 1j, 0 : 1 : columns * 1j]
    climate = -12 + 40 * y
    center = 0.15 + 0.05 * hour
    low = 14 * np.exp(-((x - center) ** 2 / 0.03 + (y - 0.45) ** 2 / 0.05))
    front = 4 * np.sin(9 * (x - center) + 5 * y) * np.exp(-((y - 0.5) ** 2) / 0.08)
    hills = 5 * np.exp(-((x - 0.7) ** 2 / 0.01 + (y - 0.6) ** 2 / 0.04)) * (1 + 0.3 * np.sin(40 * y))
    return np.asarray(climate - low + front - hills, dtype=np.float32)


def publish(upstream: Path, hours: int, rows: int = 240, columns: int = 360) -> None:
    """Write a run into a folder, as a weather service would put it on its server."""
    folder = upstream / MODEL / RUN
    folder.mkdir(parents=True, exist_ok=True)
    for hour in range(hours):
        np.save(folder / f"{hour:03}.npy", forecast(hour, rows, columns))


def cut(field: Field, region: str) -> Field:
    """A region's part of the field."""
    south, east = REGIONS[region]
    rows, columns = field.shape[0] // 2, field.shape[1] // 2
    return field[south * rows : (south + 1) * rows, east * columns : (east + 1) * columns]


def picture(field: Field, scale: int = 3) -> Image.Image:
    """Colors by temperature, with a dark line at 0 °C."""
    warmth = np.clip((field - COLDEST) / (WARMEST - COLDEST), 0, 1) * (len(COLORS) - 1)
    stops = np.arange(len(COLORS))
    channels = [np.interp(warmth, stops, COLORS[:, channel]) for channel in range(3)]
    image = Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))
    image = image.resize((field.shape[1] * scale, field.shape[0] * scale), Image.Resampling.BICUBIC)
    frost = Image.fromarray(field).resize(image.size, Image.Resampling.BICUBIC)
    below = np.asarray(frost) < 0
    line = (below ^ np.roll(below, 1, axis=0)) | (below ^ np.roll(below, 1, axis=1))
    line |= np.roll(line, 1, axis=0)
    line[:2], line[:, 0] = False, False  # np.roll wraps around to the other edge
    pixels = np.asarray(image).copy()
    pixels[line] = (30, 30, 40)
    return Image.fromarray(pixels)
