"""The simplest fast SQL for what treadle does to its tables, in three ways.

`insert` and `move` are what everything is compared with. A batch travels as arrays (`unnest`) and a transaction is as
few statements as it can be: to insert, rows into `jobs`, `ready` and `tallies`; to claim, `DELETE FROM ready` of the
first due rows that are not locked, which feeds the INSERT into `leases` and brings the payloads; to complete,
`DELETE FROM leases` by id, which feeds the INSERT into `finished`; tallies and usage with what comes and what
ends. One connection does one after the other and waits for every commit. There is no heartbeat, no limit, no cursor,
no other type.

`insert_text` and `move_text` send each batch as one text (JSON, or an array as PostgreSQL writes it), which costs
psycopg much less than a list. `insert_many` and `move_many` go row by row with `executemany`, which it sends as a
pipeline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Connection = Any
"""psycopg's, whose types require a literal statement."""

_JOB = "id, type, queue, tenant, subject, payload, priority, max_attempts, created_at"
_READY = "id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at"
_LEASE = "id, lease, token, queue, type, tenant, attempt, snoozes, suspicion, worker, run_at, started_at"
_ENDED = "id, lease, token, status, queue, type, tenant, attempts, worker, run_at, started_at, completed_at"
_TALLY = "INSERT INTO treadle.tallies (status, type, queue, count)"
_USE = "INSERT INTO treadle.usage (minute, type, queue, tenant, runs, failures, busy, waiting)"

INSERT_JOBS = f"""
INSERT INTO treadle.jobs ({_JOB})
SELECT id, 'noop', 'default', '', '', payload, 0, 5, %(now)s
  FROM unnest(%(ids)s::uuid[], %(payloads)s::json[]) e (id, payload)
"""
INSERT_READY = f"""
INSERT INTO treadle.ready ({_READY})
SELECT id, 'default', 'noop', '', 0, %(now)s, 0, 0, 0, %(now)s FROM unnest(%(ids)s::uuid[]) id
"""
INSERT_TEXT = f"""
WITH e AS MATERIALIZED (SELECT key::uuid AS id, value::json AS payload FROM json_each_text(%(rows)s::json)),
job AS (
    INSERT INTO treadle.jobs ({_JOB}) SELECT id, 'noop', 'default', '', '', payload, 0, 5, %(now)s FROM e)
INSERT INTO treadle.ready ({_READY}) SELECT id, 'default', 'noop', '', 0, %(now)s, 0, 0, 0, %(now)s FROM e
"""
TALLY = f"{_TALLY} VALUES ('all', 'noop', 'default', %(n)s)"
COMPLETED = f"{_TALLY} VALUES ('completed', 'noop', 'default', %(n)s)"
USE = f"{_USE} VALUES (%(minute)s, 'noop', 'default', '', %(n)s, 0, %(busy)s, 0)"

_DUE = """
DELETE FROM treadle.ready WHERE id = ANY(ARRAY(
    SELECT id FROM treadle.ready WHERE queue = 'default' AND type = 'noop' AND priority = 0 AND run_at <= %(now)s
     ORDER BY run_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
"""
CLAIM = f"""
WITH gone AS ({_DUE} RETURNING id, queue, type, tenant, run_at, attempts, snoozes, suspicion),
held AS (
    INSERT INTO treadle.leases ({_LEASE})
    SELECT id, nextval('treadle.lease'), 1, queue, type, tenant, attempts + 1, snoozes, suspicion, 'raw', run_at,
           %(now)s
      FROM gone RETURNING id, lease)
SELECT h.id::text, h.lease, j.payload::text FROM held h JOIN treadle.jobs j ON j.id = h.id
"""
_COMPLETE = f"""
    RETURNING id, lease, token, queue, type, tenant, attempt, worker, run_at, started_at)
INSERT INTO treadle.finished ({_ENDED})
SELECT id, lease, token, 'completed', queue, type, tenant, attempt, worker, run_at, started_at, %(now)s FROM gone
"""
COMPLETE = f"WITH gone AS (DELETE FROM treadle.leases WHERE id = ANY(%(ids)s::uuid[]) {_COMPLETE}"
# The SELECT makes PostgreSQL parse the text once, and not for each row.
COMPLETE_TEXT = f"""
WITH gone AS (
    DELETE FROM treadle.leases WHERE id = ANY((SELECT %(ids)s::text::uuid[])::uuid[]) {_COMPLETE}
"""


def insert(db: Connection, rows: Sequence[tuple[str, str]]) -> None:
    now = _now()
    with db.transaction():
        values = {"ids": [id for id, _ in rows], "payloads": [payload for _, payload in rows], "now": now}
        db.execute(INSERT_JOBS, values)
        db.execute(INSERT_READY, values)
        db.execute(TALLY, {"n": len(rows)})


def insert_many(db: Connection, rows: Sequence[tuple[str, str]]) -> None:
    now = _now()
    jobs = f"INSERT INTO treadle.jobs ({_JOB}) VALUES (%s, 'noop', 'default', '', '', %s, 0, 5, %s)"
    ready = f"INSERT INTO treadle.ready ({_READY}) VALUES (%s, 'default', 'noop', '', 0, %s, 0, 0, 0, %s)"
    with db.transaction(), db.cursor() as cursor:
        cursor.executemany(jobs, [(id, payload, now) for id, payload in rows])
        cursor.executemany(ready, [(id, now, now) for id, _ in rows])
        cursor.execute(TALLY, {"n": len(rows)})


def insert_text(db: Connection, rows: Sequence[tuple[str, str]]) -> None:
    now = _now()
    with db.transaction():
        db.execute(INSERT_TEXT, {"rows": json.dumps(dict(rows)), "now": now})
        db.execute(TALLY, {"n": len(rows)})


def move(db: Connection, limit: int) -> int:
    return _move(db, limit, COMPLETE, list)


def move_text(db: Connection, limit: int) -> int:
    return _move(db, limit, COMPLETE_TEXT, lambda ids: f"{{{','.join(ids)}}}")


def _move(db: Connection, limit: int, complete: str, send: Callable[[Iterable[str]], Any]) -> int:
    now = _now()
    with db.transaction():
        rows = db.execute(CLAIM, {"now": now, "limit": limit}).fetchall()
    then = _now()
    with db.transaction():
        db.execute(complete, {"ids": send(id for id, _, _ in rows), "now": then})
        _ended(db, then, len(rows), then - now)
    return len(rows)


def move_many(db: Connection, limit: int) -> int:
    now = _now()
    lease = f"""INSERT INTO treadle.leases ({_LEASE})
        VALUES (%s, nextval('treadle.lease'), 1, 'default', 'noop', '', 1, 0, 0, 'raw', %s, %s)"""
    ended = f"""INSERT INTO treadle.finished ({_ENDED})
        VALUES (%s, %s, 1, 'completed', 'default', 'noop', '', 1, 'raw', %s, %s, %s)"""
    with db.transaction(), db.cursor() as cursor:
        due = cursor.execute(f"{_DUE} RETURNING id, run_at", {"now": now, "limit": limit}).fetchall()
        cursor.executemany(lease, [(id, run_at, now) for id, run_at in due])
        ids = [id for id, _ in due]
        cursor.execute("SELECT id, payload::text FROM treadle.jobs WHERE id = ANY(%s)", (ids,)).fetchall()
    then = _now()
    with db.transaction(), db.cursor() as cursor:
        cursor.executemany("DELETE FROM treadle.leases WHERE id = %s", [(id,) for id in ids])
        cursor.executemany(ended, [(id, 0, run_at, now, then) for id, run_at in due])
        _ended(db, then, len(due), then - now)
    return len(due)


def _ended(db: Connection, now: int, n: int, busy: int) -> None:
    db.execute(COMPLETED, {"n": n})
    db.execute(USE, {"minute": now // 60_000_000 * 60, "n": n, "busy": busy * n})


def _now() -> int:
    return time.time_ns() // 1000
