"""The raw ceiling: the same rows, moved through the same tables by a bare loop of batched SQL in one process.

No handler, no lease to check, no type but one, nobody else to mind: what is left when all that is taken away is what
SQLite and the disk give to who writes batches of rows with `executemany`. That is what everything is compared with.
The same loop with each batch as one JSON text, which is windlass's own way, is shown beside it: nothing is faster.
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
        self.insert = self._insert_with(raw.insert_many)
        """Rows of so many new jobs per second, in batches as large as a bulk enqueue's."""
        self.move = self._move_with(raw.move_many)
        """Jobs moved from ready over leases to finished per second, in batches as large as a worker's."""
        self.insert_json = self._insert_with(raw.insert_json)
        self.move_json = self._move_with(raw.move_json)

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
    bulk, noop = setting.sizes.bulk, setting.sizes.noop
    insert, move = (
        f"raw SQL: insert, {CHUNK:,} a batch",
        f"raw SQL: claim and complete, {setting.concurrency:,} a batch",
    )
    runs: Sequence[tuple[str, str, str, Callable[[], float]]] = (
        ("fsync", "disk: 4 KiB write and fdatasync", "/s", lambda: fsyncs(setting.directory, setting.sizes.seconds)),
        ("raw_insert", insert, "jobs/s", lambda: ceiling.insert(bulk)),
        ("raw_insert_json", "… each batch as one JSON text", "jobs/s", lambda: ceiling.insert_json(bulk)),
        ("raw_move", move, "jobs/s", lambda: ceiling.move(noop)),
        ("raw_move_json", "… each batch as one JSON text", "jobs/s", lambda: ceiling.move_json(noop)),
    )
    rows = []
    for key, what, unit, run in runs:
        [sample] = alternately(setting, {what: run}).values()
        rows.append(Row.of("ceiling", key, what, unit, sample))
    return rows
