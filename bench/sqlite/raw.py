"""The simplest fast SQL for what treadle does to its tables: each statement twice, row by row and by JSON batches."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence

_TALLY = """
INSERT INTO treadle_tallies (status, type, queue, count) VALUES (?, 'noop', 'default', ?)
    ON CONFLICT DO UPDATE SET count = count + excluded.count
"""
_USE = """
INSERT INTO treadle_usage (minute, type, queue, tenant, runs, failures, busy, waiting)
VALUES (?, 'noop', 'default', '', ?, 0, ?, 0)
    ON CONFLICT DO UPDATE SET runs = runs + excluded.runs, busy = busy + excluded.busy
"""
_CLOCK = "UPDATE treadle_meta SET value = ? WHERE key = 'clock'"
_NUMBERS = "UPDATE treadle_meta SET value = value + ? WHERE key = 'lease' RETURNING value"
_JOB = "id, type, queue, tenant, subject, payload, priority, max_attempts, created_at"
_READY = "id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at"
_LEASE = "id, lease, token, queue, type, tenant, attempt, snoozes, suspicion, worker, run_at, started_at"
_ENDED = "id, lease, token, status, queue, type, tenant, attempts, worker, run_at, started_at, completed_at"
_DUE = """
SELECT id, run_at FROM treadle_ready WHERE queue = 'default' AND type = 'noop' AND priority = 0 AND run_at <= ?
 ORDER BY run_at, id LIMIT ?
"""


def insert_many(db: sqlite3.Connection, rows: Sequence[tuple[str, str]]) -> None:
    now = _begin(db)
    jobs = f"INSERT INTO treadle_jobs ({_JOB}) VALUES (?, 'noop', 'default', '', '', ?, 0, 5, ?)"
    ready = f"INSERT INTO treadle_ready ({_READY}) VALUES (?, 'default', 'noop', '', 0, ?, 0, 0, 0, ?)"
    db.executemany(jobs, [(id, payload, now) for id, payload in rows])
    db.executemany(ready, [(id, now, now) for id, _ in rows])
    _inserted(db, now, len(rows))


def insert_json(db: sqlite3.Connection, rows: Sequence[tuple[str, str]]) -> None:
    now = _begin(db)
    text = json.dumps(dict(rows))  # an object's keys and values come out of json_each without a second parse
    jobs = f"""INSERT INTO treadle_jobs ({_JOB})
        SELECT key, 'noop', 'default', '', '', value, 0, 5, ? FROM json_each(?)"""
    ready = f"""INSERT INTO treadle_ready ({_READY})
        SELECT key, 'default', 'noop', '', 0, ?, 0, 0, 0, ? FROM json_each(?)"""
    db.execute(jobs, (now, text))
    db.execute(ready, (now, now, text))
    _inserted(db, now, len(rows))


def move_many(db: sqlite3.Connection, limit: int) -> int:
    now = _begin(db)
    due = f"SELECT r.id, r.run_at, j.payload FROM ({_DUE}) r JOIN treadle_jobs j ON j.id = r.id"
    rows = db.execute(due, (now, limit)).fetchall()
    n, ids = len(rows), [(row[0],) for row in rows]
    last = db.execute(_NUMBERS, (n,)).fetchone()[0]
    leases = [(id, last - i, run_at, now) for i, (id, run_at, _) in enumerate(rows)]
    lease = f"INSERT INTO treadle_leases ({_LEASE}) VALUES (?, ?, 1, 'default', 'noop', '', 1, 0, 0, 'raw', ?, ?)"
    db.executemany(lease, leases)
    db.executemany("DELETE FROM treadle_ready WHERE id = ?", ids)
    _claimed(db, now)
    then = _begin(db)
    ended = f"""INSERT INTO treadle_finished ({_ENDED})
        VALUES (?, ?, 1, 'completed', 'default', 'noop', '', 1, 'raw', ?, ?, ?)"""
    db.executemany(ended, [(*row, then) for row in leases])
    db.executemany("DELETE FROM treadle_leases WHERE id = ?", ids)
    _settled(db, then, n, then - now)
    return n


def move_json(db: sqlite3.Connection, limit: int) -> int:
    now = _begin(db)
    ids = db.execute(f"SELECT json_group_array(id) FROM ({_DUE})", (now, limit)).fetchone()[0]
    last = db.execute(_NUMBERS, (limit,)).fetchone()[0]
    lease = f"""INSERT INTO treadle_leases ({_LEASE})
        SELECT r.id, ? + e.key, 1, r.queue, r.type, r.tenant, r.attempts + 1, r.snoozes, r.suspicion, 'raw', r.run_at, ?
          FROM json_each(?) e JOIN treadle_ready r ON r.id = e.value"""
    n = db.execute(lease, (last - limit + 1, now, ids)).rowcount
    db.execute("DELETE FROM treadle_ready WHERE id IN (SELECT value FROM json_each(?))", (ids,))
    payloads = "SELECT json_group_array(payload) FROM treadle_jobs WHERE id IN (SELECT value FROM json_each(?))"
    json.loads(db.execute(payloads, (ids,)).fetchone()[0])
    _claimed(db, now)
    then = _begin(db)
    ended = f"""INSERT INTO treadle_finished ({_ENDED})
        SELECT l.id, l.lease, l.token, 'completed', l.queue, l.type, l.tenant, l.attempt, l.worker, l.run_at,
               l.started_at, ?
          FROM json_each(?) e JOIN treadle_leases l ON l.id = e.value"""
    db.execute(ended, (then, ids))
    db.execute("DELETE FROM treadle_leases WHERE id IN (SELECT value FROM json_each(?))", (ids,))
    _settled(db, then, n, then - now)
    return n


def _begin(db: sqlite3.Connection) -> int:
    db.execute("BEGIN IMMEDIATE")
    return time.time_ns() // 1000


def _inserted(db: sqlite3.Connection, now: int, n: int) -> None:
    db.execute(_TALLY, ("all", n))
    db.execute(_CLOCK, (now,))
    db.execute("COMMIT")


def _claimed(db: sqlite3.Connection, now: int) -> None:
    db.execute(_CLOCK, (now,))
    db.execute("COMMIT")


def _settled(db: sqlite3.Connection, now: int, n: int, busy: int) -> None:
    db.execute(_TALLY, ("completed", n))
    db.execute(_USE, (now // 60_000_000 * 60, n, busy * n))
    db.execute("COMMIT")
