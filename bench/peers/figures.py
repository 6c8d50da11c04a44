"""What is measured: each figure, its rows, and the queues that it makes sense for."""

from __future__ import annotations

import msgspec

from bench.peers.measure import Measure, drain, enqueue, pickup
from bench.peers.peer import Store

ASYNC = ("graphile-worker", "pg-boss", "PgQueuer", "Procrastinate", "BullMQ")
"""Their handlers run on an event loop."""
PLAIN = ("Celery", "Dramatiq")
"""Their handlers are plain functions, as those that treadle runs in threads."""
SINGLY = "treadle singly"
"""What treadle from many threads is compared with."""


class Row(msgspec.Struct, frozen=True):
    """A number of a figure."""

    what: str
    unit: str
    more_is_better: bool


class Figure(msgspec.Struct, frozen=True):
    key: str
    store: Store
    """Where treadle keeps its jobs."""
    peers: tuple[str, ...]
    measure: Measure | None
    """None: all at the same time (idle.py)."""
    rows: dict[str, Row]


def _rate(key: str, store: Store, peers: tuple[str, ...], measure: Measure, what: str) -> Figure:
    return Figure(key, store, peers, measure, {"": Row(f"{store}: {what}", "jobs/s", True)})


def _pickup(key: str, store: Store, peers: tuple[str, ...]) -> Figure:
    rows = {p: Row(f"{store}: pickup by another process, {p}", "ms", False) for p in ("p50", "p99")}
    return Figure(key, store, peers, pickup, rows)


IDLE = {
    "cpu": Row("Idle worker: CPU", "s/min", False),
    "transactions": Row("Idle worker on PostgreSQL: transactions", "/s", False),
    "connections": Row("Idle worker on PostgreSQL: connections", "", False),
}

FIGURES = (
    _rate("drain-async-1", "PostgreSQL", ASYNC, drain("async", 1), "drain of async no-ops, 1 process"),
    _rate("drain-async-2", "PostgreSQL", ASYNC, drain("async", 2), "drain of async no-ops, 2 processes"),
    _rate(
        "drain-thread-1",
        "PostgreSQL",
        ("graphile-worker", *PLAIN),
        drain("thread", 1),
        "drain of plain functions (treadle: in threads), 1 process",
    ),
    _rate("drain-sqlite-1", "SQLite", ("Huey",), drain("thread", 1), "drain of plain functions, 1 process"),
    _rate("drain-sqlite-2", "SQLite", ("Huey",), drain("thread", 2), "drain of plain functions, 2 processes"),
    _rate("enqueue-postgres", "PostgreSQL", (*ASYNC, *PLAIN), enqueue("singly"), "enqueue singly"),
    _rate("enqueue-bulk-postgres", "PostgreSQL", ASYNC, enqueue("bulk"), "enqueue in bulk, 1,000 a call"),
    _rate("enqueue-threads-postgres", "PostgreSQL", (SINGLY,), enqueue("threads"), "treadle, enqueue from 64 threads"),
    _rate("enqueue-sqlite", "SQLite", ("Huey",), enqueue("singly"), "enqueue singly"),
    _rate("enqueue-bulk-sqlite", "SQLite", ("Huey",), enqueue("bulk"), "enqueue in bulk, 1,000 a call"),
    _rate("enqueue-threads-sqlite", "SQLite", (SINGLY,), enqueue("threads"), "treadle, enqueue from 64 threads"),
    _pickup("pickup-postgres", "PostgreSQL", (*ASYNC, *PLAIN)),
    _pickup("pickup-sqlite", "SQLite", ("Huey",)),
    Figure("idle-postgres", "PostgreSQL", (*ASYNC, *PLAIN), None, IDLE),
    Figure("idle-sqlite", "SQLite", ("Huey",), None, {"cpu": Row("SQLite: idle worker, CPU", "s/min", False)}),
)
