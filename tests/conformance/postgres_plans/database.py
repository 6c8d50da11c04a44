"""A database with 200,000 waiting jobs, with and without statistics."""

from __future__ import annotations

WAITING = 200_000
RUNNING = 2_000
ENDED = 50_000
BATCH = 50
MOST = 3 * BATCH
"""Rows that a statement may read per job of a batch: the row itself, its job, and one other."""
BLOCKS = 30
"""Pages that may be touched for one job: three levels of an index, and a page of each table and index."""

FIRST = 1_790_000_000_000_000
"""When the first job was created, in microseconds."""
LATER = FIRST + 2 * WAITING * 1000
MIDDLE = FIRST + (ENDED + WAITING // 2) * 1000

OURS = ("ready", "leases", "jobs", "finished", "attempts", "dedupe", "lease_keys", "openings", "buckets", "waits")

# An id that contains its time, as treadle's ids do, and then its number.
ID = f"""
(lpad(to_hex(({FIRST} + n * 1000) / 1000), 12, '0') || '7000' || '8000' || lpad(to_hex(n), 12, '0'))::uuid
""".strip()

# Ten types in two queues with three priorities. One job in a hundred has a limited type.
FILL = f"""
CREATE TEMP TABLE made AS
SELECT n, {ID} AS id, CASE WHEN n % 100 = 0 THEN 'limited' ELSE 'type-' || n % 10 END AS type,
       'queue-' || n % 2 AS queue, CASE WHEN n % 50 = 0 THEN 'acme' ELSE '' END AS tenant,
       CASE WHEN n % 500 = 0 THEN 'call-' || n % 7 ELSE '' END AS subject, (n % 3)::integer AS priority,
       {FIRST} + n * 1000 AS at
  FROM generate_series(1, {WAITING + RUNNING + ENDED}) n;
INSERT INTO treadle.jobs
SELECT id, type, queue, tenant, subject, '{{}}', priority, 5, CASE WHEN n % 5 = 0 THEN 'key-' || n END, NULL, at
  FROM made;
INSERT INTO treadle.finished
SELECT id, n, 1, CASE WHEN n % 100 = 1 THEN 'failed' ELSE 'completed' END, queue, type, tenant, 1, 0, 'w', at,
       at, at + 1000
  FROM made WHERE n <= {ENDED};
INSERT INTO treadle.leases
       (id, lease, token, queue, type, tenant, attempt, snoozes, suspicion, worker, run_at, started_at, limit_name,
        limit_key)
SELECT id, n, 1, queue, type, tenant, 1, 0, 0, 'w' || n % 20, at, at, 'first', ''
  FROM made WHERE n > {ENDED} AND n <= {ENDED + RUNNING};
INSERT INTO treadle.ready
SELECT id, queue, type, tenant, priority, at, 0, 0, 0, at FROM made WHERE n > {ENDED + RUNNING};
INSERT INTO treadle.dedupe SELECT tenant, 'key-' || n, id FROM made WHERE n > {ENDED} AND n % 5 = 0;
INSERT INTO treadle.attempts
SELECT id, tenant, n, 1, 'w', at, at, 'retried', 'e', 't' FROM made WHERE n <= {ENDED};
INSERT INTO treadle.lease_keys
SELECT 'api', tenant, id, n, tenant FROM made WHERE n > {ENDED} AND n <= {ENDED + RUNNING};
INSERT INTO treadle.openings (name, key, at, held)
SELECT 'api', 'key-' || n, at, 0 FROM made WHERE n > {ENDED} AND n <= {ENDED + RUNNING};
INSERT INTO treadle.buckets (name, key, full_at)
SELECT 'api', 'key-' || n, at * 1000 FROM made WHERE n > {ENDED} AND n <= {ENDED + RUNNING};
INSERT INTO treadle.types VALUES ('limited', 'queue-0', 0, 5, NULL, NULL, 0);
"""

# A type by turns. One of its tenants has nearly all jobs, 200 others have 20 each.
BY_TURNS = 40_000
FILL_BY_TURNS = f"""
CREATE TEMP TABLE fair AS
SELECT n, {ID} AS id, CASE WHEN n % 10 = 0 THEN 'tenant-' || n / 10 % 200 ELSE 'big' END AS tenant,
       {FIRST} + n * 1000 AS at
  FROM generate_series({WAITING + RUNNING + ENDED + 1}, {WAITING + RUNNING + ENDED + BY_TURNS}) n;
INSERT INTO treadle.jobs SELECT id, 'fair', 'fair', tenant, '', '{{}}', 2, 5, NULL, NULL, at FROM fair;
INSERT INTO treadle.ready SELECT id, 'fair', 'fair', tenant, 2, at, 0, 0, 0, at, 'fair' FROM fair;
INSERT INTO treadle.types VALUES ('fair', 'fair', 2, 5, NULL, NULL, 0, '[]', '', '[]', 'tenant');
"""

# Statistics are rows of pg_statistic. The planner's idea of a table's size is in pg_class.
FORGET = """
DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'treadle'::regnamespace);
UPDATE pg_class SET reltuples = {tuples}, relpages = 0, relallvisible = 0
 WHERE relnamespace = 'treadle'::regnamespace AND relkind IN ('r', 'i')
"""
STATISTICS = {
    "fresh": "ANALYZE",
    "never analysed": FORGET.format(tuples=-1),
    "analysed when empty": FORGET.format(tuples=0),
}
