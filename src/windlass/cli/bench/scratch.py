"""A database of our own, filled by plain SQL in no time, and read for what really happened in it."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

from windlass import Windlass

_ROWS = "WITH RECURSIVE k (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM k WHERE i + 1 < :n)"
_ID = ":prefix || printf('%012x', i)"

_JOBS = f"""
INSERT INTO windlass_jobs (id, type, queue, tenant, subject, payload, priority, max_attempts, created_at)
{_ROWS} SELECT {_ID}, :type, 'default', '', '', '{{"n":' || i || '}}', :priority, 5, :now FROM k
"""
_READY = f"""
INSERT INTO windlass_ready (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at)
{_ROWS} SELECT {_ID}, 'default', :type, '', :priority, :run_at, 0, 0, 0, :now FROM k
"""
_FINISHED = f"""
INSERT INTO windlass_finished
       (id, lease, status, queue, type, tenant, attempts, worker, run_at, started_at, completed_at)
{_ROWS} SELECT {_ID}, i + 1, 'completed', 'default', :type, '', 1, 'w', :run_at, :run_at, :now FROM k
"""
_LEASE = """
INSERT INTO windlass_leases (id, lease, queue, type, tenant, attempt, snoozes, suspicion, worker, run_at, started_at)
SELECT id, 0, queue, type, tenant, 1, 0, 0, '', :now, :now FROM windlass_jobs WHERE id = :prefix || '000000000000'
"""
_TALLY = """
INSERT INTO windlass_tallies (status, type, queue, count) VALUES (?, ?, 'default', ?)
    ON CONFLICT DO UPDATE SET count = count + excluded.count
"""


class Jobs(NamedTuple):
    """Some jobs that were put in together: their ids are `prefix` and 12 hex digits."""

    n: int
    type: str
    prefix: str


class Scratch:
    """A SQLite file with windlass's tables. It checkpoints only while nobody else uses it."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.db"
        self.url = f"sqlite:///{self.path}"
        app = Windlass(self.url)
        app.store.open()
        app.close()
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("PRAGMA wal_autocheckpoint = 0")
        self._last = 0

    def waiting(self, n: int, type: str = "noop", *, priority: int = 0, later: float = 0.0) -> Jobs:
        """Jobs that wait, due `later` seconds from now (negative: since then)."""
        return self._put(_READY, "pending", n, type, priority, later)

    def finished(self, n: int, type: str = "noop") -> Jobs:
        """Jobs that were completed a while ago."""
        jobs = self._put(_FINISHED, "completed", n, type, 0, -60.0)
        self.connection.execute("UPDATE windlass_meta SET value = max(value, ?) WHERE key = 'lease'", (n,))
        return jobs

    def held(self, type: str) -> Jobs:
        """A job in hand that nobody ends."""
        return self._put(_LEASE, "processing", 1, type, 0, 0.0)

    def _put(self, place: str, status: str, n: int, type: str, priority: int, later: float) -> Jobs:
        now = time.time_ns() // 1000
        self._last = max(now // 1000, self._last + 1)  # ids are UUIDv7: they begin with their millisecond
        stamp = f"{self._last:012x}"
        jobs = Jobs(n, type, f"{stamp[:8]}-{stamp[8:]}-7000-8000-")
        values = {"n": n, "type": type, "prefix": jobs.prefix, "priority": priority, "now": now}
        values["run_at"] = now + round(later * 1e6)
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute(_JOBS, values)
        self.connection.execute(place, values)
        self.connection.execute(_TALLY, (status, type, n))
        self.connection.execute("COMMIT")
        self.checkpoint()
        return jobs

    def checkpoint(self) -> None:
        """Leave nothing of what was put in for a worker to copy."""
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def completed(self, type: str) -> int:
        row = self.connection.execute(
            "SELECT count FROM windlass_tallies WHERE status = 'completed' AND type = ? AND queue = 'default'", (type,)
        ).fetchone()
        return row[0] if row else 0

    def times(self, jobs: Jobs) -> list[tuple[int, int]]:
        """When each of them was claimed and when it was settled, in microseconds, in the order of the latter."""
        return self.connection.execute(
            "SELECT started_at, completed_at FROM windlass_finished WHERE id >= ? AND id < ? ORDER BY completed_at",
            (jobs.prefix, jobs.prefix + "g"),
        ).fetchall()

    def close(self) -> None:
        self.connection.close()
        for file in self.path.parent.glob(f"{self.path.name}*"):
            file.unlink()
