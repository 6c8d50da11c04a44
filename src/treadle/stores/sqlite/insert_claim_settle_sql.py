"""SQLite's SQL of insert, claim and settle, in the order in which a job meets it."""

from treadle.stores.sqlite.sql import CLAIMED_COLUMNS, SQLiteStatements, from_postgres
from treadle.stores.statements.parts import MOST, MOST_ATTEMPTS, UNNEEDED

# The attempts before this one.
_ATTEMPTS = f"min(max(l.attempt, 1), {MOST_ATTEMPTS}) - 1"

# ---- enqueue

# The newest time that was written: a claim at an earlier time shows that the clock stepped back. Within a tenth of a
# second it is not written again, which saves a page in nearly every commit.
ADVANCE_CLOCK = "UPDATE treadle_meta SET value = :now WHERE key = 'clock' AND value < :now - 100000"

# What was asked for: jobs that differ in their ids and payloads only. {id: payload}
INSERT_JOBS = """
INSERT INTO treadle_jobs
       (id, type, queue, tenant, subject, payload, priority, max_attempts, dedupe, dedupe_rule, traceparent, schedule,
        fired_at, origin, batch, created_at)
SELECT e.key, :type, :queue, :tenant, :subject, e.value, :priority, :max_attempts, :dedupe, :dedupe_rule, :traceparent,
       :schedule, :fired_at, :origin, :batch, :now
  FROM json_each(:rows) e
"""

# ... and that they wait. [id, …]
INSERT_READY = """
INSERT INTO treadle_ready
       (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at, start_by, parked)
SELECT e.value, :queue, :type, :tenant, :priority, :run_at, 0, 0, 0, :now, :run_at + :start_within, :parked
  FROM json_each(:ids) e
"""

# ... and the same of one job alone, which also counts it: json_each costs more than a row.
INSERT_ONE = (
    """
    INSERT INTO treadle_jobs
           (id, type, queue, tenant, subject, payload, priority, max_attempts, dedupe, dedupe_rule, traceparent,
            schedule, fired_at, origin, batch, created_at)
    VALUES (:id, :type, :queue, :tenant, :subject, :payload, :priority, :max_attempts, :dedupe, :dedupe_rule,
            :traceparent, :schedule, :fired_at, :origin, :batch, :now)
    """,
    """
    INSERT INTO treadle_ready
           (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at, start_by, parked)
    VALUES (:id, :queue, :type, :tenant, :priority, :run_at, 0, 0, 0, :now, :run_at + :start_within, :parked)
    """,
    f"""
    INSERT INTO treadle_tallies (status, type, queue, count) VALUES ('all', :type, :queue, 1)
        ON CONFLICT DO UPDATE SET count = max(min(count, {MOST}), -{MOST}) + 1
    """,
    ADVANCE_CLOCK,
)

# ---- claim

# Every (queue, type) in which jobs wait, with its highest priority and its first job: a jump over the index per pair.
# (Not by `(queue, type) > (?, ?)`: SQLite would step over every row of the pair that it is to leave.)
# Then the same of jobs by turns, and the types whose tenants take turns.
READY_RANGES = """
WITH RECURSIVE pair (queue, type, priority, run_at, id) AS (
    SELECT * FROM (SELECT queue, type, priority, run_at, id FROM treadle_ready WHERE parked = ''
                    ORDER BY queue, type, priority DESC, run_at, id LIMIT 1)
    UNION ALL
    SELECT r.queue, r.type, r.priority, r.run_at, r.id FROM pair JOIN treadle_ready r ON r.id = coalesce(
        (SELECT id FROM treadle_ready n WHERE n.queue = pair.queue AND n.type > pair.type AND n.parked = ''
          ORDER BY n.type, n.priority DESC, n.run_at, n.id LIMIT 1),
        (SELECT id FROM treadle_ready n WHERE n.queue > pair.queue AND n.parked = ''
          ORDER BY n.queue, n.type, n.priority DESC, n.run_at, n.id LIMIT 1))
),
fair (queue, type, priority) AS (
    SELECT * FROM (SELECT queue, type, priority FROM treadle_ready WHERE parked = 'fair'
                    ORDER BY queue, type, priority DESC LIMIT 1)
    UNION ALL
    SELECT r.queue, r.type, r.priority FROM fair JOIN treadle_ready r ON r.id = coalesce(
        (SELECT id FROM treadle_ready n WHERE n.queue = fair.queue AND n.type > fair.type AND n.parked = 'fair'
          ORDER BY n.type, n.priority DESC LIMIT 1),
        (SELECT id FROM treadle_ready n WHERE n.queue > fair.queue AND n.parked = 'fair'
          ORDER BY n.queue, n.type, n.priority DESC LIMIT 1))
)
SELECT (SELECT json_group_array(json_array(json_array(queue, type, priority), json_array(run_at, id))) FROM pair),
       (SELECT json_group_array(json_array(queue, type, priority)) FROM fair),
       (SELECT json_group_array(type) FROM treadle_types WHERE fair <> '')
"""

# The next :limit due jobs of ranges and, where there are fewer, the next lower priority: [[[[run_at, id], …], priority
# or null], …], as one text, because a row for each range costs more.
# [[queue, type, priority, run_at, id], …]: after this run_at and id.
READ_RANGES = """
WITH e AS MATERIALIZED (
    SELECT value ->> 0 AS queue, value ->> 1 AS type, value ->> 2 AS priority, value ->> 3 AS run_at, value ->> 4 AS id
      FROM json_each(:ranges)),
found AS MATERIALIZED (
    SELECT queue, type, priority, (
               SELECT json_group_array(json_array(d.run_at, d.id)) FROM (
                   SELECT r.run_at, r.id FROM treadle_ready r
                    WHERE r.queue = e.queue AND r.type = e.type AND r.priority = e.priority AND r.run_at <= :now
                      AND r.run_at >= e.run_at AND (r.run_at > e.run_at OR r.id > e.id) AND r.parked = ''
                    ORDER BY r.run_at, r.id LIMIT :limit) d) AS due
      FROM e)
SELECT '[' || group_concat('[' || due || ',' || coalesce(CASE WHEN json_array_length(due) < :limit THEN (
           SELECT r.priority FROM treadle_ready r
            WHERE r.queue = f.queue AND r.type = f.type AND r.priority < f.priority AND r.parked = ''
            ORDER BY r.priority DESC LIMIT 1) END, 'null') || ']') || ']'
  FROM found f
"""

# The next jobs that will be due, of any type. (Those that were due when they were put here are not in the index.)
NEXT_DUE = """
SELECT run_at, queue, type FROM treadle_ready
 WHERE run_at > updated_at AND run_at > :now AND parked NOT IN ('key', 'wait') ORDER BY run_at LIMIT :limit
"""

CLOCK = "SELECT value FROM treadle_meta WHERE key = 'clock'"
LAST_NUMBER = "SELECT coalesce(max(value), -1) FROM treadle_meta WHERE key = 'lease'"

# All that a claim has to know first.
_IS_ALIVE = from_postgres(SQLiteStatements.IS_ALIVE)
PAUSED = "SELECT json_group_array(json_array(tenant, queue, type, until)) FROM treadle_pauses"
_LIMITS_VERSION = from_postgres(SQLiteStatements.LIMITS_VERSION)
_OPENED = "EXISTS (SELECT 1 FROM treadle_openings WHERE at <= :now)"
_ARRIVAL = from_postgres(SQLiteStatements.NEXT_ARRIVAL)
CLAIM_STATE = (
    f"SELECT ({_IS_ALIVE}), ({CLOCK}), ({LAST_NUMBER}), ({PAUSED}), ({_LIMITS_VERSION}), {_OPENED}, ({_ARRIVAL})"
)

# What the keys of jobs are made of: their ids, tenants, subjects and, as JSON, what their payloads have at :paths.
LIMIT_VALUES = """
SELECT j.id, j.tenant, j.subject, CASE WHEN :paths <> '[]' AND json_valid(j.payload) THEN (
           SELECT json_group_array(j.payload -> p.value) FROM json_each(:paths) p) END
  FROM json_each(:ids) e CROSS JOIN treadle_jobs j ON j.id = e.value
"""

# Which of these jobs belong to a tenant of [tenant, …].
OF_TENANTS = """
SELECT json_group_array(r.id) FROM json_each(:ids) e CROSS JOIN treadle_ready r ON r.id = e.value
 WHERE r.tenant IN (SELECT value FROM json_each(:tenants))
"""

# Park what these tenants have among the first due jobs of one (queue, type, priority).
PARK = """
UPDATE treadle_ready SET parked = 'tenant:' || tenant WHERE id IN (
    SELECT id FROM (
        SELECT id, tenant FROM treadle_ready
         WHERE queue = :queue AND type = :type AND priority = :priority AND run_at <= :now AND parked = ''
         ORDER BY run_at, id LIMIT :most)
     WHERE tenant IN (SELECT value FROM json_each(:tenants)))
"""

# They were deleted or broken by hand.
RESTORE_META = "INSERT OR REPLACE INTO treadle_meta VALUES ('clock', :clock), ('lease', :number)"

# The clock stepped back: what was due when it was put here is due now, in the same order, and not when the clock gets
# there again.
MAKE_DUE = """
UPDATE treadle_ready SET run_at = min(:now, run_at - :step), start_by = start_by - run_at + min(:now, run_at - :step)
 WHERE run_at > :now AND run_at <= updated_at
"""

# ... and what waits for limits waits no longer than it would have.
MOVE_LIMITS = (
    "UPDATE treadle_openings SET at = max(:now, at - :step) WHERE at > :now",
    "UPDATE treadle_buckets SET full_at = full_at - 1000 * :step WHERE full_at > 1000 * :now",
)

SET_CLOCK = "UPDATE treadle_meta SET value = :now WHERE key = 'clock'"

# Lease jobs, but for those that were not started in time. [id, …], with the next numbers of the fence in that order. A
# suspect may have to wait for a process of its own: its time runs from then on.
INSERT_LEASES = f"""
INSERT INTO treadle_leases
       (id, lease, token, queue, type, tenant, attempt, snoozes, suspicion, worker, run_at, started_at, deadline,
        start_by, forgiven)
SELECT r.id, m.value + 1 + e.key, :token, r.queue, r.type, r.tenant,
       min(max(r.attempts, 0), {MOST_ATTEMPTS}) + 1, r.snoozes, r.suspicion, :worker, r.run_at, :now,
       CASE WHEN r.suspicion = 0 OR :worker = '' THEN :now + :timeout END, r.start_by, r.forgiven
  FROM treadle_meta m CROSS JOIN json_each(:rows) e CROSS JOIN treadle_ready r ON r.id = e.value
 WHERE m.key = 'lease' AND (r.start_by IS NULL OR r.start_by > :now)
"""

# ... but those of tenants that are paused: [tenant, …].
INSERT_LEASES_OF_OTHERS = f"{INSERT_LEASES} AND r.tenant NOT IN (SELECT value FROM json_each(:tenants))"

# ... but those that may no longer start. An earlier claim has found them: a job may have run since then, and wait for
# its next attempt, or for workers of another queue. [queue, …]; NULL: of all queues
INSERT_LEASES_AS_FOUND = f"""{INSERT_LEASES} AND +r.parked IN ('', 'fair') AND +r.run_at <= :now
   AND (:queues IS NULL OR r.queue IN (SELECT value FROM json_each(:queues)))"""

# A claim that met some of either begins again.
TAKE_BACK_LEASES = "DELETE FROM treadle_leases WHERE id IN (SELECT value FROM json_each(:ids)) AND token = :token"

# ... which are taken.
ADVANCE_LEASE_NUMBER = "UPDATE treadle_meta SET value = value + :n WHERE key = 'lease'"

# ... and they no longer wait.
DELETE_LEASED = """
DELETE FROM treadle_ready
 WHERE id IN (SELECT value FROM json_each(:ids)) AND (start_by IS NULL OR start_by > :now)
"""

# How many of them were not started in time.
COUNT_EXPIRED = """
SELECT count(*) FROM json_each(:ids) e JOIN treadle_ready r ON r.id = e.value WHERE r.start_by <= :now
"""

# What was claimed, as ClaimedJob has it and in the order of the ids: SQLite does not reorder a CROSS JOIN.
CLAIMED = f"""
SELECT json_group_array({CLAIMED_COLUMNS})
  FROM json_each(:ids) e CROSS JOIN treadle_leases l ON l.id = e.value AND l.token = :token
 CROSS JOIN treadle_jobs j ON j.id = e.value
"""

# Rows whose job was deleted by hand, or whose id cannot be read: a claim would find them again and again.
DROP_UNUSABLE_READY = """
DELETE FROM treadle_ready
 WHERE NOT EXISTS (SELECT 1 FROM treadle_jobs j WHERE j.id = treadle_ready.id)
    OR id GLOB '*[^ -~]*' OR instr(CAST(id AS BLOB), x'00') > 0
RETURNING type, queue
"""

# ---- settle

# Of these jobs, which have ended, those that others wait for. (The first table of the join ends it at once if nobody
# waits for anything.)
TELL_WAITING = """
INSERT INTO treadle_arrivals (at, kind, tenant, what)
SELECT :now, 'ended', tenant, json_group_array(what)
  FROM (SELECT DISTINCT w.tenant, w.what FROM (SELECT 1 FROM treadle_waits LIMIT 1) one
         CROSS JOIN json_each(:ids) e CROSS JOIN treadle_waits w ON w.what = e.value AND w.met = 0)
 GROUP BY tenant
"""

# Which of [[id, number, token], …] are still held, and whether they were cancelled.
HELD = """
SELECT json_group_array(json_array(json_array(l.lease, l.token), l.cancel))
  FROM json_each(:rows) e
  JOIN treadle_leases l ON l.id = e.value ->> 0 AND l.lease = e.value ->> 1 AND l.token = e.value ->> 2
"""

# Completed without a result, as most jobs are. {token: {id: number}}: most of a batch have the same token.
COMPLETE = """
INSERT INTO treadle_finished
       (id, lease, token, status, queue, type, tenant, attempts, snoozes, worker, run_at, started_at, completed_at)
SELECT l.id, l.lease, l.token, 'completed', l.queue, l.type, l.tenant, l.attempt, l.snoozes, l.worker, l.run_at,
       l.started_at, :now
  FROM json_each(:rows) t CROSS JOIN json_each(t.value) e
 CROSS JOIN treadle_leases l ON l.id = e.key AND l.lease = e.value AND l.token = t.key
"""

# Ended in any other way. [[id, number, token, status, charged, result, error], …]
FINISH = f"""
INSERT INTO treadle_finished
       (id, lease, token, status, queue, type, tenant, attempts, snoozes, worker, run_at, started_at, completed_at,
        result, error)
SELECT l.id, l.lease, l.token, e.value ->> 3, l.queue, l.type, l.tenant, {_ATTEMPTS} + (e.value ->> 4),
       l.snoozes, l.worker, l.run_at, l.started_at, :now, e.value ->> 5, e.value ->> 6
  FROM json_each(:rows) e
  JOIN treadle_leases l ON l.id = e.value ->> 0 AND l.lease = e.value ->> 1 AND l.token = e.value ->> 2
"""

# [[id, run_at or null for as it was, charged, 1 if snoozed, suspicion or null for as it was, 1 if it was started,
#   why it is parked], …]
REQUEUE = f"""
INSERT INTO treadle_ready
       (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at, start_by, forgiven, parked)
SELECT l.id, l.queue, l.type, l.tenant, coalesce(j.priority, 0), coalesce(e.value ->> 1, min(l.run_at, :now)),
       {_ATTEMPTS} + (e.value ->> 2), min(l.snoozes, {MOST_ATTEMPTS}) + (e.value ->> 3),
       coalesce(e.value ->> 4, l.suspicion), :now, CASE WHEN e.value ->> 5 = 0 THEN l.start_by END, l.forgiven,
       e.value ->> 6
  FROM json_each(:rows) e JOIN treadle_leases l ON l.id = e.value ->> 0 LEFT JOIN treadle_jobs j ON j.id = l.id
"""

# [[id, outcome, error, traceback], …]
INSERT_ATTEMPTS = """
INSERT INTO treadle_attempts (id, lease, attempt, worker, started_at, ended_at, outcome, error, traceback)
SELECT l.id, l.lease, l.attempt, l.worker, l.started_at, :now, e.value ->> 1, e.value ->> 2, e.value ->> 3
  FROM json_each(:rows) e JOIN treadle_leases l ON l.id = e.value ->> 0
"""

DELETE_LEASES = "DELETE FROM treadle_leases WHERE id IN (SELECT value FROM json_each(:ids))"

# Release the keys of jobs that have ended: a successor takes the key, and waits for its parents only. A throttled key
# stays. A rule that was broken by hand is the plain one, as in dedupe.py.
_OF_THESE = "successor IS NOT NULL AND id IN (SELECT value FROM json_each(:ids))"
RELEASE_KEYS = (
    f"""
    UPDATE treadle_ready SET parked = '', updated_at = :now
     WHERE id IN (SELECT successor FROM treadle_dedupe WHERE {_OF_THESE}) AND parked = 'key'
    """,
    f"""
    UPDATE treadle_dedupe
       SET id = successor, successor = NULL, expires_at = NULL, until_started = coalesce((
           SELECT CASE WHEN json_valid(j.dedupe_rule) THEN j.dedupe_rule ->> 'until' = 'started' END
             FROM treadle_jobs j WHERE j.id = treadle_dedupe.successor), 0)
     WHERE {_OF_THESE}
    """,
    """
    DELETE FROM treadle_dedupe WHERE (tenant, key, id) IN (
        SELECT j.tenant, j.dedupe, j.id FROM json_each(:ids) e JOIN treadle_jobs j ON j.id = e.value
         WHERE j.dedupe IS NOT NULL) AND coalesce(expires_at, 0) <= :now
    """,
)

# ---- a snapshot for several reads

# Several reads of one moment, in a transaction or not.
SAVEPOINT = "SAVEPOINT treadle"
RELEASE = "RELEASE treadle"

# ---- prune

_PRUNABLE, _UNNEEDED = SQLiteStatements.PRUNABLE, from_postgres(UNNEEDED)
# Jobs that ended long ago, by what they were: how many, their ids, and the first and the last of those.
PRUNABLE_IDS = f"""
SELECT status, type, queue, count(*), json_group_array(id), min(id), max(id) FROM ({_PRUNABLE}) GROUP BY 1, 2, 3
"""
DELETE_OLD = "DELETE FROM treadle_finished WHERE id IN (SELECT value FROM json_each(:ids)) AND completed_at < :before"
# ... of which no other job has come to need one since they were found. All of them are looked at before one is deleted.
DELETE_UNNEEDED = f"""
DELETE FROM treadle_finished WHERE id IN (
    SELECT f.id FROM json_each(:ids) e CROSS JOIN treadle_finished f ON f.id = e.value
     WHERE f.completed_at < :before AND {_UNNEEDED})
"""
# Where the next of them begin and end, if none may be needed, and what there is between: to delete from one id to
# another takes a third of the time that it takes to look for each id.
_OLD = "completed_at < :before AND status IN (SELECT value FROM json_each(:statuses))"
_NEXT = f"SELECT id FROM treadle_finished WHERE id < :oldest AND {_OLD} ORDER BY id LIMIT 1"
OLD_BETWEEN = f"""
SELECT ({_NEXT}), ({_NEXT} OFFSET :limit - 1) WHERE NOT EXISTS (SELECT 1 FROM treadle_dedupe WHERE expires_at > :now)
"""
_BETWEEN = "id BETWEEN :first AND :last"
KINDS_BETWEEN = (
    f"SELECT status, type, queue, count(*) FROM treadle_finished WHERE {_BETWEEN} AND {_OLD} GROUP BY 1, 2, 3"
)
JOBS_BETWEEN = f"SELECT count(*) FROM treadle_jobs WHERE {_BETWEEN}"
DELETE_OLD_BETWEEN = f"DELETE FROM treadle_finished WHERE {_BETWEEN} AND {_OLD}"
# ... and then the jobs that are nowhere any more, and the attempts, steps and logs of jobs that are gone.
DELETE_JOBS_BETWEEN = f"""
DELETE FROM treadle_jobs WHERE {_BETWEEN} AND id NOT IN (
    SELECT id FROM treadle_finished WHERE {_BETWEEN} UNION ALL SELECT id FROM treadle_ready WHERE {_BETWEEN}
     UNION ALL SELECT id FROM treadle_leases WHERE {_BETWEEN})
"""
_GONE = f"{_BETWEEN} AND id NOT IN (SELECT id FROM treadle_jobs WHERE {_BETWEEN})"
DELETE_HISTORY_BETWEEN = (
    f"DELETE FROM treadle_attempts WHERE {_GONE}",
    f"DELETE FROM treadle_steps WHERE {_GONE}",
    f"DELETE FROM treadle_logs WHERE {_GONE}",
)
# Whether there are attempts, steps, logs and waits of jobs between two ids: a look at each costs less than to delete.
HAS_HISTORY = """
SELECT EXISTS (SELECT 1 FROM treadle_attempts WHERE id BETWEEN :first AND :last),
       EXISTS (SELECT 1 FROM treadle_steps WHERE id BETWEEN :first AND :last),
       EXISTS (SELECT 1 FROM treadle_logs WHERE id BETWEEN :first AND :last),
       EXISTS (SELECT 1 FROM treadle_waits WHERE id BETWEEN :first AND :last)
       OR EXISTS (SELECT 1 FROM treadle_waits WHERE what BETWEEN :first AND :last)
"""
