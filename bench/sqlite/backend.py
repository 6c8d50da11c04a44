"""A directory, with a SQLite file for each measurement."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

from bench.backend import About, Backend, Loop
from bench.sqlite import raw
from bench.sqlite.database import SQLiteBenchDatabase
from treadle.stores.sqlite.url import check, file_system


class SQLiteBackend(Backend):
    """A new directory on the disk to measure, removed afterwards."""

    driver = "SQLite"
    safe = ("fsync", "disk: 4 KiB write and fdatasync", "fsyncs")
    loops = (
        Loop("", "raw SQL", raw.insert_many, raw.move_many),
        Loop("json", "… each batch as one JSON text", raw.insert_json, raw.move_json),
    )

    def __init__(self, parent: Path) -> None:
        check(parent / "bench.db")
        self._parent = parent
        self._directory = Path(tempfile.mkdtemp(prefix=".treadle-bench-", dir=parent))

    def new(self, name: str) -> SQLiteBenchDatabase:
        path = self._directory / f"{name}.db"
        if path.exists():
            raise ValueError(f"{name!r} is in use: close it first, or choose another name")
        return SQLiteBenchDatabase(path)

    def commits(self, seconds: float) -> float:
        """Writes of 4 KiB with fdatasync, per second."""
        path = self._directory / "fsync"
        block, count = os.urandom(4096), 0
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        sync = getattr(os, "fdatasync", os.fsync)
        try:
            began = time.perf_counter()
            while (passed := time.perf_counter() - began) < seconds:
                os.pwrite(fd, block, count % 2048 * 4096)
                sync(fd)
                count += 1
            return count / passed
        finally:
            os.close(fd)
            path.unlink()

    def about(self) -> About:
        disk = file_system(self._parent) or "an unknown file system"
        memory = " (in memory: its fsync costs nothing)" if disk in ("tmpfs", "ramfs") else ""
        return About(f"SQLite {sqlite3.sqlite_version}", {"synchronous": "FULL"}, f"{self._parent} on {disk}{memory}")

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
