"""A PostgreSQL database for one measurement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from bench.database import BenchDatabase, Jobs
from bench.processes import cpu_seconds
from treadle import Treadle
from treadle.stores.postgres.url import read

_ROWS = "FROM generate_series(0, %(n)s - 1) i"
_ID = "(%(prefix)s || lpad(to_hex(i), 12, '0'))::uuid"

_JOBS = f"""
INSERT INTO treadle.jobs (id, type, queue, tenant, subject, payload, priority, max_attempts, created_at)
SELECT {_ID}, %(type)s, 'default', '', '', ('{{"n":' || i || '}}')::json, %(priority)s, 5, %(now)s {_ROWS}
"""
_INTO = {
    "ready": f"""
INSERT INTO treadle.ready (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at)
SELECT {_ID}, 'default', %(type)s, '', %(priority)s, %(run_at)s, 0, 0, 0, %(now)s {_ROWS}
""",
    "finished": f"""
INSERT INTO treadle.finished
       (id, lease, token, status, queue, type, tenant, attempts, worker, run_at, started_at, completed_at)
SELECT {_ID}, nextval('treadle.lease'), 1, 'completed', 'default', %(type)s, '', 1, 'w', %(run_at)s, %(run_at)s, %(now)s
{_ROWS}
""",
    "leases": f"""
INSERT INTO treadle.leases
       (id, lease, token, queue, type, tenant, attempt, snoozes, suspicion, worker, run_at, started_at)
SELECT {_ID}, nextval('treadle.lease'), 1, 'default', %(type)s, '', 1, 0, 0, '', %(now)s, %(now)s {_ROWS}
""",
}
_TALLY = """
INSERT INTO treadle.tallies (status, type, queue, count)
SELECT status, %(type)s, 'default', %(n)s FROM (VALUES ('all'), (%(status)s)) s (status)
 WHERE status NOT IN ('pending', 'processing')
"""
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_MOVING = ("jobs", "ready", "leases", "finished", "tallies", "usage")


LOAD = """
SELECT xact_commit + xact_rollback,
       (SELECT count(*) FROM pg_stat_activity WHERE datname = %(name)s AND pid <> %(own)s)
  FROM pg_stat_database WHERE datname = %(name)s
"""


class PostgresBenchDatabase(BenchDatabase):
    """A database."""

    tables = "treadle."

    def __init__(self, url: str, drop: Callable[[], None]) -> None:
        self.url = url
        self._drop = drop
        app = Treadle(url)
        app.store.open()
        app.close()
        self._conninfo, _ = read(url)
        self.connection: Any = psycopg.connect(self._conninfo, autocommit=True)

    def _now(self) -> int:
        return self._count(_NOW)

    def _fill(self, table: str, values: Mapping[str, Any]) -> None:
        with self.connection.transaction():
            for sql in (_JOBS, _INTO[table], _TALLY):
                self.connection.execute(sql, values)

    def tidy(self) -> None:
        """Do now what autovacuum and the checkpointer would otherwise do during the measurement."""
        self.connection.execute(f"VACUUM (ANALYZE) {', '.join(f'treadle.{table}' for table in _MOVING)}")
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):  # a plain role may not
            self.connection.execute("CHECKPOINT")

    def alone(self) -> None:
        pass

    def clear(self) -> None:
        self.connection.execute(f"TRUNCATE {', '.join(f'treadle.{table}' for table in _MOVING)}")
        self.tidy()

    def completed(self, type: str) -> int:
        sql = "SELECT coalesce(sum(count), 0)::bigint FROM treadle.tallies WHERE status = 'completed' AND type = %s"
        return self._count(sql, (type,))

    def _count(self, sql: str, values: tuple[Any, ...] = ()) -> int:
        row = self.connection.execute(sql, values).fetchone()
        assert row is not None
        return int(row[0])

    def times(self, jobs: Jobs) -> list[tuple[int, int]]:
        sql = """SELECT started_at, completed_at FROM treadle.finished
            WHERE id BETWEEN %s::uuid AND %s::uuid ORDER BY completed_at"""
        ends = (f"{jobs.prefix}{'0' * 12}", f"{jobs.prefix}{'f' * 12}")
        return [(started, completed) for started, completed in self.connection.execute(sql, ends)]

    def load(self) -> tuple[int, int]:
        own = self.connection.info
        apart: Any = psycopg.connect(self._conninfo, dbname="postgres")  # so that this is not counted
        with apart:
            row = apart.execute(LOAD, {"name": own.dbname, "own": own.backend_pid}).fetchone()
        return (row[0], row[1]) if row else (0, 0)

    def cpu(self) -> float:
        sql = "SELECT pid FROM pg_stat_activity WHERE datname = %s"
        pids = [pid for (pid,) in self.connection.execute(sql, (self.connection.info.dbname,)).fetchall()]
        return sum(map(cpu_seconds, pids)) if self._is_here() else 0.0

    def _is_here(self) -> bool:
        """Whether the server runs on this machine, so that its process ids mean something here."""
        return self.connection.info.hostaddr in ("", "127.0.0.1", "::1")

    def results(self) -> dict[str, int]:
        sql = "SELECT id::text, result::text::bigint FROM treadle.finished WHERE result IS NOT NULL"
        return dict(self.connection.execute(sql).fetchall())

    def close(self) -> None:
        self.connection.close()
        self._drop()
