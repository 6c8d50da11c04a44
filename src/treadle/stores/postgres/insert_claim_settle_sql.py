"""PostgreSQL's SQL of insert, claim and settle, in the order in which a job meets it."""

from treadle.stores.statements import Statements
from treadle.stores.statements.parts import LEASE_COLUMNS, MOST, MOST_ATTEMPTS, THESE

_DELETE_ORPHANED_LEASES = Statements.DELETE_ORPHANED_LEASES
# The attempts before this one.
_ATTEMPTS = f"least(greatest(attempt, 1), {MOST_ATTEMPTS}) - 1"

# ---- enqueue

# What was asked for, and that it waits.
# [[id, type, queue, tenant, subject, priority, max_attempts, dedupe, dedupe_rule, traceparent, schedule, fired_at,
#   origin, batch, run_at, delay, start_within, fair, [parent, …]], …]
# The payloads come beside them, [payload, …]: as texts in the rows, large ones would be copied and parsed three times.
NEW_JOBS = """
WITH e AS MATERIALIZED (
    SELECT *, at + within AS start_by,
           CASE WHEN waits THEN 'wait' WHEN fair <> '' AND at <= created_at THEN 'fair' ELSE '' END AS parked
      FROM (SELECT *, coalesce(run_at, created_at + coalesce(delay, 0)) AS at FROM (
          SELECT (v ->> 0)::uuid AS id, v ->> 1 AS type, v ->> 2 AS queue, v ->> 3 AS tenant, v ->> 4 AS subject,
                 (v ->> 5)::integer AS priority, (v ->> 6)::integer AS max_attempts, v ->> 7 AS dedupe,
                 v ->> 8 AS dedupe_rule, v ->> 9 AS traceparent, v ->> 10 AS schedule, (v ->> 11)::bigint AS fired_at,
                 (v ->> 12)::uuid AS origin, v ->> 13 AS batch, (v ->> 14)::bigint AS run_at,
                 (v ->> 15)::bigint AS delay, (v ->> 16)::bigint AS within, v ->> 17 AS fair, v -> 18 <> '[]' AS waits,
                 payload, CAST(:now AS bigint) AS created_at
            FROM ROWS FROM (jsonb_array_elements(CAST(:rows AS text)::jsonb),
                            json_array_elements(CAST(:payloads AS text)::json)) j (v, payload)) j) j),
job AS (
    INSERT INTO treadle.jobs
           (id, type, queue, tenant, subject, payload, priority, max_attempts, dedupe, dedupe_rule, traceparent,
            schedule, fired_at, origin, batch, created_at)
    SELECT id, type, queue, tenant, subject, payload, priority, max_attempts, dedupe, dedupe_rule, traceparent,
           schedule, fired_at, origin, batch, created_at FROM e),
tally AS (
    INSERT INTO treadle.tallies (status, type, queue, count)
    SELECT 'all', type, queue, count(*) FROM e GROUP BY type, queue)"""
_NEW_BLOCKED = """,
blocked AS (
    INSERT INTO treadle.tallies (status, type, queue, count)
    SELECT 'blocked', type, queue, count(*) FROM e WHERE parked = 'wait' GROUP BY type, queue)"""
NEW_READY = """
INSERT INTO treadle.ready
       (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at, start_by, parked)
SELECT id, queue, type, tenant, priority, at, 0, 0, 0, created_at, start_by, parked FROM e
"""
INSERT_JOBS = NEW_JOBS + _NEW_BLOCKED + NEW_READY

# ---- claim

# Which limits are in force, whether one of their keys may have a free place again, and when something happens next that
# may let waiting jobs go. A claim also has to know whether its worker may claim.
_LIMITS_VERSION, _IS_ALIVE, _ARRIVAL = Statements.LIMITS_VERSION, Statements.IS_ALIVE, Statements.NEXT_ARRIVAL
OPENED = "EXISTS (SELECT 1 FROM treadle.openings WHERE at <= :now)"
_STATE = f"({_LIMITS_VERSION}), {OPENED}, ({_ARRIVAL})"

# Every (queue, type) in which jobs wait, with its highest priority, and where that begins: a jump over the index per
# pair. Whether the type is fair, and whether its jobs wait by turns: those have rows of their own. The last row has no
# pair, but the pauses, [[tenant, queue, type, until], …], and what CLAIM_STATE finds.
_READY_RANGES = f"""
WITH RECURSIVE pair (queue, type, priority, run_at, id) AS (
    (SELECT queue, type, priority, run_at, id FROM treadle.ready WHERE parked = ''
      ORDER BY queue, type, priority DESC, run_at, id LIMIT 1)
    UNION ALL
    SELECT n.queue, n.type, n.priority, n.run_at, n.id FROM pair CROSS JOIN LATERAL (
        SELECT r.queue, r.type, r.priority, r.run_at, r.id FROM treadle.ready r
         WHERE (r.queue, r.type) > (pair.queue, pair.type) AND r.parked = ''
         ORDER BY r.queue, r.type, r.priority DESC, r.run_at, r.id LIMIT 1) n),
fair (queue, type, priority) AS (
    (SELECT queue, type, priority FROM treadle.ready WHERE parked = 'fair'
      ORDER BY queue, type, priority DESC LIMIT 1)
    UNION ALL
    SELECT n.queue, n.type, n.priority FROM fair CROSS JOIN LATERAL (
        SELECT r.queue, r.type, r.priority FROM treadle.ready r
         WHERE (r.queue, r.type) > (fair.queue, fair.type) AND r.parked = 'fair'
         ORDER BY r.queue, r.type, r.priority DESC LIMIT 1) n)
SELECT queue, type, priority, run_at, id::text,
       EXISTS (SELECT 1 FROM treadle.types t WHERE t.type = pair.type AND t.fair <> ''), by_turns,
       NULL, NULL, NULL, NULL, NULL
  FROM (SELECT *, false AS by_turns FROM pair UNION ALL SELECT *, NULL, NULL, true FROM fair) pair
 UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       (SELECT json_agg(json_build_array(tenant, queue, type, until))::text FROM treadle.pauses), {{is_alive}}, {_STATE}
"""
READY_RANGES, CLAIM_RANGES = (_READY_RANGES.format(is_alive=one) for one in ("NULL::integer", f"({_IS_ALIVE})"))

# The next :limit due jobs of ranges and, where there are fewer, the next lower priority: [[[[run_at, id], …], priority
# or null], …], as one text, because a row for each range costs more.
# [[queue, type, priority, run_at, id], …]: after this run_at and id.
READ_RANGES = """
SELECT json_agg(json_build_array(due.jobs, CASE WHEN due.n < :limit THEN (
           SELECT r.priority FROM treadle.ready r
            WHERE r.queue = e.queue AND r.type = e.type AND r.priority < e.priority AND r.parked = ''
            ORDER BY r.priority DESC LIMIT 1) END) ORDER BY e.ordinality)::text
  FROM (SELECT ordinality, v ->> 0 AS queue, v ->> 1 AS type, (v ->> 2)::integer AS priority,
               (v ->> 3)::bigint AS run_at, (v ->> 4)::uuid AS id
          FROM jsonb_array_elements(CAST(:ranges AS text)::jsonb) WITH ORDINALITY a (v, ordinality)) e
 CROSS JOIN LATERAL (
       SELECT coalesce(json_agg(json_build_array(d.run_at, d.id)), '[]') AS jobs, count(*) AS n FROM (
           SELECT r.run_at, r.id FROM treadle.ready r
            WHERE r.queue = e.queue AND r.type = e.type AND r.priority = e.priority AND r.run_at <= :now
              AND (r.run_at, r.id) > (e.run_at, e.id) AND r.parked = ''
            ORDER BY r.run_at, r.id LIMIT :limit) d) due
"""

# The priority below this one.
LOWER_PRIORITY = """
SELECT priority FROM treadle.ready
 WHERE queue = :queue AND type = :type AND priority < :priority AND parked = '' ORDER BY priority DESC LIMIT 1
"""

# The next jobs that will be due, of any type. (Those that were due when they were put here are not in the index.)
NEXT_DUE = """
SELECT run_at, queue, type FROM treadle.ready
 WHERE run_at > updated_at AND run_at > :now AND parked NOT IN ('key', 'wait') ORDER BY run_at LIMIT :limit
"""

# What a claim has to know, if it need not look at the ranges.
CLAIM_STATE = f"SELECT ({_IS_ALIVE}), {_STATE}"

# Lock keys of limits until we commit, so that nobody else starts a job of theirs; or those that no other transaction
# has locked. Sorted, so that no two transactions deadlock. [[name, key], …]
_KEYS = Statements.KEYS
_LOCK_LIMITS = f"""
SELECT k.name, k.key, {{lock}}(k.number)
  FROM (SELECT e.name, e.key, hashtextextended('treadle ' || e.name || chr(31) || e.key, 0) AS number
          FROM ({_KEYS}) e ORDER BY 3 OFFSET 0) k
"""
LOCK_LIMITS = _LOCK_LIMITS.format(lock="pg_advisory_xact_lock")
LOCK_FREE_LIMITS = _LOCK_LIMITS.format(lock="pg_try_advisory_xact_lock")

# Lock waiting jobs that no other transaction has: their ids, tenants, subjects, and as JSON what their payloads have at
# :paths; their run_at, whether they are paused, and their rows. :by_tenant: the jobs themselves are not read.
_LIMIT_VALUES = """
WITH paused AS MATERIALIZED (
    SELECT tenant, queue, type FROM treadle.pauses WHERE until IS NULL OR until > :now)
SELECT r.id::text, r.tenant, coalesce(j.subject, ''), CASE WHEN NOT :by_tenant THEN (
           SELECT json_agg(j.payload #> ARRAY(SELECT jsonb_array_elements_text(p.v)) ORDER BY p.n)::text
             FROM jsonb_array_elements(CAST(:paths AS text)::jsonb) WITH ORDINALITY p (v, n)) END, r.run_at,
       r.queue = ANY(ARRAY(SELECT queue FROM paused)) OR r.type = ANY(ARRAY(SELECT type FROM paused))
       OR r.tenant = ANY(ARRAY(SELECT tenant FROM paused WHERE tenant <> '')), r.ctid::text
  FROM ({rows} FOR UPDATE SKIP LOCKED) r
  LEFT JOIN LATERAL (SELECT subject, payload FROM treadle.jobs q
                      WHERE NOT :by_tenant AND q.id = r.id AND q.tenant = r.tenant LIMIT 1) j ON true
"""
LIMIT_VALUES = _LIMIT_VALUES.format(
    rows=f"SELECT ctid, * FROM treadle.ready q WHERE q.id = {THESE} AND q.parked IN ('', 'fair')"
)
# ... the next due jobs of one range.
LIMIT_VALUES_OF_RANGE = _LIMIT_VALUES.format(
    rows="""
        SELECT ctid, * FROM treadle.ready q
         WHERE q.queue = :queue AND q.type = :type AND q.priority = :priority AND q.run_at <= :now
           AND (q.run_at, q.id) > (:run_at, CAST(:id AS uuid)) AND q.parked = ''
         ORDER BY q.run_at, q.id LIMIT :limit"""
)

_RANGES = """SELECT v ->> 0 AS queue, v ->> 1 AS type, (v ->> 2)::integer AS priority, (v ->> 3)::integer AS n,
                       (v ->> 4)::bigint AS run_at, (v ->> 5)::uuid AS id
                  FROM jsonb_array_elements(CAST(:ranges AS text)::jsonb) v"""

# Park what paused tenants have among the next due jobs of ranges, unless another transaction has it.
# [[queue, type, priority, limit, run_at, id], …]: after this run_at and id.
PARK = f"""
UPDATE treadle.ready SET parked = 'tenant:' || tenant WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM treadle.ready WHERE ctid = ANY(ARRAY(
        SELECT p.ctid FROM ({_RANGES}) e
         CROSS JOIN LATERAL (
               SELECT r.ctid, r.tenant FROM treadle.ready r
                WHERE r.queue = e.queue AND r.type = e.type AND r.priority = e.priority AND r.run_at <= :now
                  AND (r.run_at, r.id) > (e.run_at, e.id) AND r.parked = ''
                ORDER BY r.run_at, r.id LIMIT :most) p
         WHERE p.tenant = ANY(ARRAY(SELECT tenant FROM treadle.pauses
                                     WHERE tenant <> '' AND (until IS NULL OR until > :now)))
         LIMIT :most)) AND parked = '' FOR UPDATE SKIP LOCKED))
"""

# Lease jobs: of each range the next due ones that no other transaction takes. The answer has ClaimedJob's columns, and
# those that were not started in time: [[id, start_by], …], the same in each row; NULL: all are in time. A suspect may
# have to wait for a process of its own: its time runs from then on. What is paused is not taken, even if the look at
# the ranges was before the pause: of a paused tenant, jobs count as found and stay.
# [[queue, type, priority, limit, run_at, id], …]: after this run_at and id.
_IN_RANGES = f"""
        SELECT p.ctid
          FROM ({_RANGES}) e
         CROSS JOIN LATERAL (
               SELECT r.ctid FROM treadle.ready r
                WHERE r.queue = e.queue AND r.type = e.type AND r.priority = e.priority AND r.run_at <= :now
                  AND (r.run_at, r.id) > (e.run_at, e.id) AND r.parked = ''
                ORDER BY r.run_at, r.id LIMIT e.n FOR UPDATE SKIP LOCKED) p
         WHERE e.queue <> ALL(ARRAY(SELECT queue FROM paused)) AND e.type <> ALL(ARRAY(SELECT type FROM paused))"""
_MOVE_TO_LEASES = f"""
WITH RECURSIVE {{look}} paused AS MATERIALIZED (
    SELECT tenant, queue, type FROM treadle.pauses WHERE until IS NULL OR until > :now),
gone AS (
    DELETE FROM treadle.ready {{which}}
       AND tenant <> ALL(ARRAY(SELECT tenant FROM paused WHERE tenant <> ''))
    RETURNING id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, start_by, forgiven,
              {{limit}}),
l AS (
    INSERT INTO treadle.leases
           (id, lease, token, queue, type, tenant, attempt, snoozes, suspicion, worker, run_at, started_at, start_by,
            forgiven, limit_name, limit_key, deadline)
    SELECT id, nextval('treadle.lease'), :token, queue, type, tenant,
           least(greatest(attempts, 0), {MOST_ATTEMPTS}) + 1, snoozes, suspicion, :worker, run_at, :now, start_by,
           forgiven, limit_name, limit_key,
           CASE WHEN suspicion = 0 OR :worker = ''
                THEN :now + ((SELECT CAST(:timeouts AS text)::jsonb) ->> type)::bigint END  -- it is parsed once
      FROM gone ORDER BY priority DESC, run_at, id
    RETURNING id, lease, token, queue, type, tenant, attempt, snoozes, suspicion, run_at, started_at, deadline,
              forgiven)
"""
_NO_KEY = "CAST(NULL AS text) AS limit_name, CAST(NULL AS text) AS limit_key"


def move_to_leases(rows: str, look: str = "") -> str:
    return _MOVE_TO_LEASES.format(look=look, which=f"WHERE ctid = ANY(ARRAY({rows}))", limit=_NO_KEY)


_LEASED = f"""
SELECT {LEASE_COLUMNS},
       (SELECT json_agg(json_build_array(id, start_by))::text FROM gone WHERE start_by <= :now)
  FROM l LEFT JOIN treadle.jobs j ON j.id = l.id AND j.tenant = l.tenant
 ORDER BY j.priority DESC, l.run_at, l.id
"""
INSERT_LEASES = move_to_leases(_IN_RANGES) + _LEASED
# ... or these jobs, if no other transaction has them. They were read some time ago: a job may have run since then, and
# wait for its next attempt, or for workers of another queue. [id, …]
_AS_FOUND = f"""
        SELECT r.ctid FROM treadle.ready r
         WHERE r.id = {THESE} AND r.parked IN ('', 'fair') AND r.run_at <= :now
           AND coalesce((SELECT CAST(:queues AS text)::jsonb) ? r.queue, true)
           AND r.queue <> ALL(ARRAY(SELECT queue FROM paused)) AND r.type <> ALL(ARRAY(SELECT type FROM paused))
           FOR UPDATE SKIP LOCKED"""
INSERT_LEASES_OF = move_to_leases(_AS_FOUND) + _LEASED
# ... or these rows, which we have locked, each with the first key under which it runs.
# In columns: {row, …}, [name, …], [key, …]
_WITH_KEYS = """USING (
        SELECT place, name, key
          FROM ROWS FROM (unnest(CAST(CAST(:places AS text) AS tid[])),
                          json_array_elements_text(CAST(:names AS text)::json),
                          json_array_elements_text(CAST(:keys AS text)::json)) e (place, name, key) OFFSET 0) k
     WHERE ready.ctid = k.place"""
_KEY = "k.name AS limit_name, k.key AS limit_key"
INSERT_KEYED_LEASES = _MOVE_TO_LEASES.format(look="", which=_WITH_KEYS, limit=_KEY) + _LEASED

# Leases of jobs that were deleted by hand: there is nothing left to run.
DROP_ORPHANED_LEASES = f"""
WITH gone AS ({_DELETE_ORPHANED_LEASES})
INSERT INTO treadle.tallies (status, type, queue, count)
SELECT 'all', type, queue, -count(*) FROM gone GROUP BY type, queue
"""

# ---- settle

# Of jobs `e` that have ended, those that others wait for.
_WAITED_FOR = """e
     CROSS JOIN LATERAL (SELECT 1 FROM treadle.waits w WHERE w.what = e.id::text AND w.met = 0 LIMIT 1) w"""
_ARRIVAL_OF = "CAST(:now AS bigint), 'ended', e.tenant, json_agg(e.id)::text"

# Whether a place that becomes free under limits without keys is for other workers than {owners}: they claim jobs of
# these types that the owners do not claim. [type, …]
_WAITS = """EXISTS (SELECT 1 FROM treadle.ready r WHERE r.type = t.type AND r.parked = ''
                               AND r.queue = ANY(ARRAY(SELECT jsonb_array_elements_text(w.queues::jsonb))))"""
_WAITS_BY_TURNS = _WAITS.replace("''", "'fair'")
IS_FOR_OTHERS = f"""EXISTS (
    SELECT 1 FROM treadle.workers w
     CROSS JOIN jsonb_array_elements_text(CAST(:types AS text)::jsonb) t (type)
     WHERE w.quiet_at IS NULL AND w.types::jsonb ? t.type
       AND NOT EXISTS (SELECT 1 FROM treadle.workers o
                        WHERE o.id IN ({{owners}}) AND o.quiet_at IS NULL AND o.types::jsonb ? t.type
                          AND o.queues IN ('[]', w.queues))
       AND (w.queues = '[]' OR {_WAITS} OR {_WAITS_BY_TURNS}))"""
# ... the owners of these leases.
_OWNERS = f"SELECT l.worker FROM treadle.leases l WHERE l.id = {THESE}"
PLACES_ARE_FOR_OTHERS = "SELECT " + IS_FOR_OTHERS.format(owners=_OWNERS)

# Completed without a result, as most jobs are, and counted. Where no job has ever waited for another, nothing is looked
# for. The answer: the numbers and tokens of those that were held, when, and 0 if no job waits for them.
COMPLETIONS = f"""
WITH gone AS (
    DELETE FROM treadle.leases
     WHERE id = ANY((SELECT CAST(CAST(:ids AS text) AS uuid[]))::uuid[])
       AND coalesce((lease, token) IN (SELECT unnest(CAST(CAST(:numbers AS text) AS bigint[])),
                                              unnest(CAST(CAST(:tokens AS text) AS bigint[]))), false)
    RETURNING id, lease, token, queue, type, tenant, attempt, snoozes, worker, run_at, started_at, limit_name,
              limit_key),
done AS (
    INSERT INTO treadle.finished
           (id, lease, token, status, queue, type, tenant, attempts, snoozes, worker, run_at, started_at, completed_at)
    SELECT id, lease, token, 'completed', queue, type, tenant, attempt, snoozes, worker, run_at, started_at,
           CAST(:now AS bigint)
      FROM gone),
tally AS (
    INSERT INTO treadle.tallies (status, type, queue, count)
    SELECT 'completed', type, queue, count(*) FROM gone GROUP BY type, queue),
usage AS (
    INSERT INTO treadle.usage (minute, type, queue, tenant, runs, completed, failures, busy, waiting)
    SELECT CAST(:now AS bigint) / 60000000 * 60, type, queue, tenant, count(*), count(*), 0,
           greatest(0, least({MOST}, sum(CAST(:now AS bigint) - greatest(started_at, 0)))),
           greatest(0, least({MOST}, sum(greatest(started_at, 0) - greatest(run_at, 0))))
      FROM gone GROUP BY type, queue, tenant),
arrived AS (
    INSERT INTO treadle.arrivals (at, kind, tenant, what)
    SELECT {_ARRIVAL_OF} FROM gone {_WAITED_FOR}
     WHERE EXISTS (SELECT 1 FROM treadle.waits) GROUP BY e.tenant RETURNING 1)"""
COMPLETE = f"{COMPLETIONS} SELECT lease, token, CAST(:now AS bigint), (SELECT count(*) FROM arrived) FROM gone"

# Ended in any way, or waiting again; what was cancelled does not wait again. The answer: the numbers of those that were
# held with their tokens, whether they were cancelled, and 0 if no job waits for them.
# [[id, number, token, status or null, charged, result, error, run_at or null for as it was, 1 if snoozed,
#   suspicion or null for as it was, outcome if it was a failure, traceback, 1 if it was started, why it is parked,
#   1 if it has freed a place under the key in its row], …]
SETTLE = f"""
WITH e AS MATERIALIZED (
    SELECT (v ->> 0)::uuid AS id, (v ->> 1)::bigint AS lease, (v ->> 2)::bigint AS token, v ->> 3 AS status,
           (v ->> 4)::integer AS charged, (v ->> 5)::json AS result, v ->> 6 AS error, (v ->> 7)::bigint AS run_at,
           (v ->> 8)::integer AS snoozed, (v ->> 9)::integer AS suspicion, v ->> 10 AS outcome, v ->> 11 AS traceback,
           (v ->> 12)::integer AS started, v ->> 13 AS parked, (v ->> 14)::integer AS frees
      FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) v),
gone AS (
    DELETE FROM treadle.leases
     WHERE id = ANY(ARRAY(SELECT id FROM e)) AND coalesce((lease, token) IN (SELECT lease, token FROM e), false)
    RETURNING *),
ended AS (
    SELECT l.*, e.status, e.charged, e.result, e.error, e.run_at AS next_at, e.snoozed, e.suspicion AS suspected,
           e.outcome, e.traceback, e.started, e.parked, e.frees, e.status IS NULL AND l.cancel <> 0 AS cancelled
      FROM gone l JOIN e ON e.lease = l.lease AND e.token = l.token),
done AS (
    INSERT INTO treadle.finished
           (id, lease, token, status, queue, type, tenant, attempts, snoozes, worker, run_at, started_at, completed_at,
            result, error)
    SELECT id, lease, token, CASE WHEN cancelled THEN 'cancelled' ELSE status END, queue, type, tenant,
           {_ATTEMPTS} + CASE WHEN cancelled THEN 0 ELSE charged END, snoozes, worker, run_at, started_at, :now, result,
           CASE WHEN cancelled THEN coalesce(error, 'cancelled') ELSE error END
      FROM ended WHERE status IS NOT NULL OR cancelled),
back AS (
    INSERT INTO treadle.ready
           (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at, start_by, forgiven,
            parked)
    SELECT l.id, l.queue, l.type, l.tenant, coalesce((SELECT j.priority FROM treadle.jobs j
                                                      WHERE j.id = l.id AND j.tenant = l.tenant), 0),
           coalesce(l.next_at, least(l.run_at, :now)), {_ATTEMPTS} + l.charged,
           least(l.snoozes, {MOST_ATTEMPTS}) + l.snoozed,
           coalesce(l.suspected, l.suspicion), :now, CASE WHEN l.started = 0 THEN l.start_by END, l.forgiven,
           l.parked
      FROM ended l WHERE status IS NULL AND NOT cancelled),
failure AS (
    INSERT INTO treadle.attempts (id, tenant, lease, attempt, worker, started_at, ended_at, outcome, error, traceback)
    SELECT id, tenant, lease, attempt, worker, started_at, :now, outcome, error, traceback
      FROM ended WHERE outcome IS NOT NULL AND NOT cancelled),
opened AS (
    INSERT INTO treadle.openings (name, key, keys, at, held)
    SELECT limit_name, '', json_agg(DISTINCT limit_key), CAST(:now AS bigint), 0 FROM ended
     WHERE limit_name IS NOT NULL AND limit_key IS NOT NULL AND frees = 1 GROUP BY limit_name),
arrived AS (
    INSERT INTO treadle.arrivals (at, kind, tenant, what)
    SELECT {_ARRIVAL_OF} FROM ended {_WAITED_FOR}
     WHERE e.status IS NOT NULL OR e.cancelled GROUP BY e.tenant RETURNING 1)
SELECT coalesce(json_agg(json_build_array(json_build_array(lease, token), cancel)), '[]')::text,
       (SELECT count(*) FROM arrived)
  FROM gone
"""

# Release the keys of jobs that have ended. A successor takes it, and waits for its parents only. A key that another
# transaction has locked stays as it is, and so does a throttled one. A rule that was broken by hand must not fail this.
# The answer: a row with a 1 for each that was released, and one with its queue for each successor.
RELEASE_KEYS = f"""
WITH mine AS MATERIALIZED (
    SELECT d.place, d.successor, d.expires_at
      FROM (SELECT id, tenant, dedupe FROM treadle.jobs WHERE id = {THESE} OFFSET 0) j
     CROSS JOIN LATERAL (SELECT ctid AS place, successor, expires_at FROM treadle.dedupe p
                          WHERE p.tenant = j.tenant AND p.key = j.dedupe AND p.id = j.id
                          LIMIT 1 FOR UPDATE SKIP LOCKED) d),
gone AS (
    DELETE FROM treadle.dedupe WHERE ctid = ANY(ARRAY(
        SELECT place FROM mine WHERE successor IS NULL AND coalesce(expires_at, 0) <= CAST(:now AS bigint)))
    RETURNING id),
passed AS (
    UPDATE treadle.dedupe d
       SET id = d.successor, successor = NULL, expires_at = NULL, until_started = coalesce((
           SELECT (substring(j.dedupe_rule FROM '"until":"([a-z]+)"') = 'started')::integer
             FROM treadle.jobs j WHERE j.id = d.successor AND j.tenant = d.tenant), 0)
     WHERE ctid = ANY(ARRAY(SELECT place FROM mine WHERE successor IS NOT NULL))
    RETURNING id),
woken AS (
    UPDATE treadle.ready SET parked = '', updated_at = CAST(:now AS bigint)
     WHERE id = ANY(ARRAY(SELECT id FROM passed)) AND parked = 'key'
    RETURNING queue)
SELECT 1, NULL FROM gone UNION ALL SELECT 1, NULL FROM passed UNION ALL SELECT 0, queue FROM woken
"""

# Of jobs that have ended, those that still hold their keys, though they are not throttled.
UNRELEASED_KEYS = f"""
SELECT d.id::text
  FROM (SELECT id, tenant, dedupe FROM treadle.jobs WHERE id = {THESE} OFFSET 0) j
 CROSS JOIN LATERAL (SELECT p.id FROM treadle.dedupe p
                      WHERE p.tenant = j.tenant AND p.key = j.dedupe AND p.id = j.id
                        AND (p.successor IS NOT NULL OR coalesce(p.expires_at, 0) <= CAST(:now AS bigint)) LIMIT 1) d
"""
