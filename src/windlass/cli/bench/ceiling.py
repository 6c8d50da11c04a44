"""The raw ceiling: the same rows, moved through the same tables by a bare loop of batched SQL in one process.

No handler, no lease to check, no type but one, nobody else to mind: what is left when all that is taken away is what
SQLite and the disk give. Each loop is written both ways, row by row with `executemany` and a batch at a time as one
JSON text, and the faster one is the ceiling.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from windlass.cli.bench import raw
from windlass.cli.bench.measure import alternately
from windlass.cli.bench.report import Row
from windlass.cli.bench.scratch import Scratch
from windlass.cli.bench.setting import Setting
from windlass.ids import new_id

CHUNK = 1000
"""Jobs in one bulk enqueue."""
LOG = 2048
"""Pages of log after which SQLite checkpoints, as much as windlass lets it grow."""


class Ceiling:
    """Raw rates, measured on demand beside whatever is compared with them."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._scratch = Scratch(setting.directory, "ceiling")
        self._scratch.connection.execute(f"PRAGMA wal_autocheckpoint = {LOG}")
        self._insert: Callable[[int], float] | None = None
        self._move: Callable[[int], float] | None = None
        self.ways: dict[str, str] = {}

    def insert(self, n: int) -> float:
        """Rows of `n` new jobs per second, in batches as large as a bulk enqueue's."""
        if self._insert is None:
            self._insert = self._faster(
                "raw_insert", self._insert_with(raw.insert_many), self._insert_with(raw.insert_json)
            )
        return self._insert(n)

    def move(self, n: int) -> float:
        """Jobs moved from ready over leases to finished per second, in batches as large as a worker's."""
        if self._move is None:
            self._move = self._faster("raw_move", self._move_with(raw.move_many), self._move_with(raw.move_json))
        return self._move(n)

    def _faster(self, what: str, many: Callable[[int], float], json: Callable[[int], float]) -> Callable[[int], float]:
        """The faster of two ways, by one run of each."""
        self._setting.say("raw ceiling: with executemany and with JSON")
        n = min(self._setting.sizes.bulk, 20_000)
        rates = {"executemany": many(n), "json": json(n)}
        self.ways[what] = max(rates, key=lambda way: rates[way])
        return json if self.ways[what] == "json" else many

    def _insert_with(self, insert: raw.Insert) -> Callable[[int], float]:
        def run(n: int) -> float:
            rows = [(new_id(), f'{{"n":{i}}}') for i in range(n)]
            self._clear()
            began = time.perf_counter()
            for start in range(0, n, CHUNK):
                insert(self._scratch.connection, rows[start : start + CHUNK])
            return n / (time.perf_counter() - began)

        return run

    def _move_with(self, move: raw.Move) -> Callable[[int], float]:
        def run(n: int) -> float:
            self._clear()
            self._scratch.waiting(n)
            began = time.perf_counter()
            moved = 0
            while moved < n:
                moved += move(self._scratch.connection, self._setting.concurrency)
            return n / (time.perf_counter() - began)

        return run

    def _clear(self) -> None:
        for table in ("jobs", "ready", "finished", "tallies"):
            self._scratch.connection.execute(f"DELETE FROM windlass_{table}")
        self._scratch.checkpoint()

    def how(self, key: str) -> str:
        """In which way, and in batches of how many."""
        size = CHUNK if key == "raw_insert" else self._setting.concurrency
        return f", {self.ways[key]}, {size:,} a batch" if key in self.ways else ""

    def close(self) -> None:
        self._scratch.close()


def fsyncs(directory: Path, seconds: float) -> float:
    """How often in a second the disk takes 4 KiB and says that they are safe."""
    path = directory / "fsync"
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


def measure(setting: Setting, ceiling: Ceiling) -> list[Row]:
    """The ceilings themselves."""
    runs: Sequence[tuple[str, str, str, Callable[[], float]]] = (
        ("fsync", "disk: 4 KiB write and fdatasync", "/s", lambda: fsyncs(setting.directory, setting.sizes.seconds)),
        ("raw_insert", "raw SQL: insert", "jobs/s", lambda: ceiling.insert(setting.sizes.bulk)),
        ("raw_move", "raw SQL: claim and complete", "jobs/s", lambda: ceiling.move(setting.sizes.noop)),
    )
    rows = []
    for key, what, unit, run in runs:
        [sample] = alternately(setting, {what: run}).values()
        rows.append(Row.of("ceiling", key, what + ceiling.how(key), unit, sample))
    return rows
