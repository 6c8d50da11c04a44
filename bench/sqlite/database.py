"""A SQLite file for one measurement."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.database import BenchDatabase, Jobs
from treadle import Treadle

LOG = 2048
"""Pages of log after which SQLite checkpoints, the limit that treadle sets too."""

_ROWS = "WITH RECURSIVE k (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM k WHERE i + 1 < :n)"
_ID = ":prefix || printf('%012x', i)"

_JOBS = f"""
INSERT INTO treadle_jobs (id, type, queue, tenant, subject, payload, priority, max_attempts, created_at)
{_ROWS} SELECT {_ID}, :type, 'default', '', '', '{{"n":' || i || '}}', :priority, 5, :now FROM k
"""
_INTO = {
    "ready": f"""
INSERT INTO treadle_ready (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at)
{_ROWS} SELECT {_ID}, 'default', :type, '', :priority, :run_at, 0, 0, 0, :now FROM k
""",
    "finished": f"""
INSERT INTO treadle_finished
       (id, lease, token, status, queue, type, tenant, attempts, worker, run_at, started_at, completed_at)
{_ROWS} SELECT {_ID}, i + 1, 1, 'completed', 'default', :type, '', 1, 'w', :run_at, :run_at, :now FROM k
""",
    "leases": """
INSERT INTO treadle_leases
       (id, lease, token, queue, type, tenant, attempt, snoozes, suspicion, worker, run_at, started_at)
SELECT id, 0, 0, queue, type, tenant, 1, 0, 0, '', :now, :now FROM treadle_jobs WHERE id = :prefix || '000000000000'
""",
}
_TALLY = """
INSERT INTO treadle_tallies (status, type, queue, count)
SELECT column1, :type, 'default', :n FROM (VALUES ('all'), (:status)) WHERE column1 NOT IN ('pending', 'processing')
    ON CONFLICT DO UPDATE SET count = count + excluded.count
"""
_NUMBERS = "UPDATE treadle_meta SET value = max(value, :n) WHERE key = 'lease'"


class SQLiteTables(BenchDatabase):
    """SQLite's tables, wherever they are."""

    tables = "treadle_"

    def _fill(self, table: str, values: Mapping[str, Any]) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute(_JOBS, values)
        self.connection.execute(_INTO[table], values)
        self.connection.execute(_TALLY, values)
        if table == "finished":
            self.connection.execute(_NUMBERS, values)
        self.connection.execute("COMMIT")

    def clear(self) -> None:
        for table in ("jobs", "ready", "finished", "tallies"):
            self.connection.execute(f"DELETE FROM treadle_{table}")
        self.tidy()

    def completed(self, type: str) -> int:
        row = self.connection.execute(
            "SELECT count FROM treadle_tallies WHERE status = 'completed' AND type = ? AND queue = 'default'", (type,)
        ).fetchone()
        return row[0] if row else 0

    def times(self, jobs: Jobs) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = self.connection.execute(
            "SELECT started_at, completed_at FROM treadle_finished WHERE id >= ? AND id < ? ORDER BY completed_at",
            (jobs.prefix, jobs.prefix + "g"),
        ).fetchall()
        return found

    def results(self) -> dict[str, int]:
        return dict(self.connection.execute("SELECT id, CAST(result AS INTEGER) FROM treadle_finished"))


class SQLiteBenchDatabase(SQLiteTables):
    """A file. This connection checkpoints it only while no worker uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{self.path}"
        app = Treadle(self.url)
        app.store.open()
        app.close()
        self.connection: sqlite3.Connection = sqlite3.connect(self.path, isolation_level=None)
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("PRAGMA wal_autocheckpoint = 0")

    def tidy(self) -> None:
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def alone(self) -> None:
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {LOG}")

    def close(self) -> None:
        self.connection.close()
        for file in self.path.parent.glob(f"{self.path.name}*"):
            file.unlink()
