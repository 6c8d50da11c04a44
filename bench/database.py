"""A database for one measurement, filled by plain SQL, and read to find out what happened in it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple


class Jobs(NamedTuple):
    """Some jobs that were inserted together: their ids are `prefix` and 12 hex digits."""

    n: int
    type: str
    prefix: str


class BenchDatabase(ABC):
    """A database with treadle's tables, removed when it is closed."""

    url: str
    connection: Any
    """A connection of the database's driver, for plain SQL."""
    tables: str
    """What the names of treadle's tables begin with."""
    _last = 0

    def waiting(self, n: int, type: str = "noop", *, priority: int = 0, later: float = 0.0) -> Jobs:
        """Jobs that wait, due `later` seconds from now (negative: since then)."""
        return self._put("ready", "pending", n, type, priority, later)

    def finished(self, n: int, type: str = "noop", *, ago: float = 0.0) -> Jobs:
        """Jobs that were completed, all at the same moment."""
        return self._put("finished", "completed", n, type, 0, -60.0, ago)

    def held(self, type: str) -> Jobs:
        """A leased job that no worker ends."""
        return self._put("leases", "processing", 1, type, 0, 0.0)

    def _put(self, table: str, status: str, n: int, type: str, priority: int, later: float, ago: float = 0.0) -> Jobs:
        now = self._now() - round(ago * 1e6)
        self._last = max(now // 1000, self._last + 1)  # ids are UUIDv7: they begin with their millisecond
        stamp = f"{self._last:012x}"
        jobs = Jobs(n, type, f"{stamp[:8]}-{stamp[8:]}-7000-8000-")
        self._fill(
            table,
            {
                "n": n,
                "type": type,
                "prefix": jobs.prefix,
                "priority": priority,
                "status": status,
                "now": now,
                "run_at": now + round(later * 1e6),
            },
        )
        self.tidy()
        return jobs

    def load(self) -> tuple[int, int] | None:
        """Transactions so far, and sessions of treadle now, if there is a server that counts them."""
        return None

    def cpu(self) -> float:
        """Seconds of CPU that the sessions of a server have used so far; 0 if there is no server on this machine."""
        return 0.0

    def _now(self) -> int:
        """Microseconds, by the clock that decides what is due."""
        return time.time_ns() // 1000

    @abstractmethod
    def _fill(self, table: str, values: Mapping[str, Any]) -> None:
        """The rows of jobs, in `jobs`, in `table` and in the tallies."""

    @abstractmethod
    def tidy(self) -> None:
        """Clean up after inserted rows, so that no worker has to."""

    @abstractmethod
    def alone(self) -> None:
        """Let this connection do the housekeeping of a worker: no other connection writes."""

    @abstractmethod
    def clear(self) -> None:
        """Delete all jobs."""

    @abstractmethod
    def completed(self, type: str) -> int: ...

    @abstractmethod
    def times(self, jobs: Jobs) -> list[tuple[int, int]]:
        """When each of them was claimed and when it was settled, in microseconds, in the order of the latter."""

    def left(self) -> int:
        """Jobs that have not ended."""
        return int(self._row("SELECT (SELECT count(*) FROM {0}ready) + (SELECT count(*) FROM {0}leases)")[0])

    def rate(self) -> float:
        """Jobs per second, of all that have ended: from the first claim to the last completion."""
        sql = "SELECT count(*), max(completed_at) - min(started_at) FROM {0}finished"
        ended, took = self._row(sql)
        return float(ended / max(1, took) * 1e6)

    def _row(self, sql: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self.connection.execute(sql.format(self.tables)).fetchone()
        return row

    @abstractmethod
    def results(self) -> dict[str, int]:
        """What each job has returned, by its id. For jobs that return a number."""

    @abstractmethod
    def close(self) -> None: ...
