"""PostgreSQL's SQL of the verbs that take one round trip, where nothing has to be decided in between."""

from treadle.stores.postgres.insert_claim_settle_sql import (
    COMPLETIONS,
    IS_FOR_OTHERS,
    NEW_JOBS,
    NEW_READY,
    NEXT_DUE,
    OPENED,
    move_to_leases,
)
from treadle.stores.postgres.sql import PostgresStatements
from treadle.stores.statements.parts import LEASE_COLUMNS

_BEAT, _BEATS, _FLAGS = PostgresStatements.BEAT, PostgresStatements.BEATS, PostgresStatements.FLAGS_OF_WORKER
_LIMITS_VERSION, _IS_ALIVE = PostgresStatements.LIMITS_VERSION, PostgresStatements.IS_ALIVE
_NEXT_OPENING = PostgresStatements.NEXT_OPENING
_ARRIVAL = PostgresStatements.NEXT_ARRIVAL.replace("SELECT at", "SELECT at AS arrival, kind = 'signal' AS signalled")
_NEXT_DUE = NEXT_DUE.replace(":limit", ":looked_at")

# Store jobs that wait for nothing. The answer: when.
INSERT = f"""
{NEW_JOBS},
waiting AS ({NEW_READY})
SELECT CAST(:now AS bigint)"""
# ... and the same of one job alone, which is due at once: to read JSON costs more than a row.
INSERT_ONE = """
WITH job AS (
    INSERT INTO treadle.jobs
           (id, type, queue, tenant, subject, payload, priority, max_attempts, traceparent, schedule, fired_at, origin,
            created_at)
    VALUES (:id, :type, :queue, :tenant, :subject, :payload, :priority, :max_attempts, :traceparent, :schedule,
            :fired_at, :origin, :now)),
tally AS (
    INSERT INTO treadle.tallies (status, type, queue, count) VALUES ('all', :type, :queue, 1)),
waiting AS (
    INSERT INTO treadle.ready
           (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at, parked)
    VALUES (:id, :queue, :type, :tenant, :priority, :now, 0, 0, 0, :now, :parked))
SELECT CAST(:now AS bigint)"""
# ... and notify the workers of [queue, …]. (Most enqueues of a fast producer need not.)
_NOTIFY = """(SELECT count(pg_notify('treadle', queue))
                FROM jsonb_array_elements_text(CAST(:notices AS text)::jsonb) queue)"""
INSERT_AND_NOTIFY, INSERT_ONE_AND_NOTIFY = f"{INSERT}, {_NOTIFY}", f"{INSERT_ONE}, {_NOTIFY}"

MOST_RANGES = 100
"""(queue, type, priority) that a claim looks at."""
MOST_READ = 2_000
"""Jobs that it reads, if several ranges have due jobs: up to its limit of each."""

# Look for ranges, and lease the most urgent jobs of the wanted ones, if nothing is in the way: due jobs of the types
# :limited in the version :limits, jobs of a paused tenant among the most urgent ones, or the end of its pause, wanted
# jobs by turns, jobs that were not started in time, or too many ranges. Then nothing is leased.
# The answer has ClaimedJob's columns and in its first row a state: whether nothing was in the way, whether something
# has arrived that may let waiting jobs go, whether that is a signal, how long the look took, whether other claims were
# faster, when it was, and if there are fewer jobs than asked for, when to claim again, as `next_due` finds it. Without
# jobs, one row has the state.
_IS_WANTED = """coalesce((SELECT CAST(:timeouts AS text)::jsonb) ? type, true)
       AND coalesce((SELECT CAST(:queues AS text)::jsonb) ? queue, true)"""
_MAY_START = f"""{_IS_WANTED}
       AND queue <> ALL(ARRAY(SELECT queue FROM paused)) AND type <> ALL(ARRAY(SELECT type FROM paused))"""
_LOOK = f"""
range (queue, type, priority, run_at) AS (
    (SELECT queue, type, priority, run_at FROM treadle.ready WHERE parked = ''
      ORDER BY queue, type, priority DESC, run_at LIMIT 1)
    UNION ALL
    SELECT n.queue, n.type, n.priority, n.run_at FROM range CROSS JOIN LATERAL (
        (SELECT r.queue, r.type, r.priority, r.run_at FROM treadle.ready r
          WHERE r.queue = range.queue AND r.type = range.type AND r.priority < range.priority AND r.parked = ''
          ORDER BY r.priority DESC, r.run_at LIMIT 1)
        UNION ALL
        (SELECT r.queue, r.type, r.priority, r.run_at FROM treadle.ready r
          WHERE (r.queue, r.type) > (range.queue, range.type) AND r.parked = ''
          ORDER BY r.queue, r.type, r.priority DESC, r.run_at LIMIT 1)
        LIMIT 1) n),
seen AS MATERIALIZED (SELECT * FROM range LIMIT {MOST_RANGES} + 1),
turns (queue, type) AS (
    (SELECT queue, type FROM treadle.ready WHERE parked = 'fair' ORDER BY queue, type LIMIT 1)
    UNION ALL
    SELECT n.queue, n.type FROM turns CROSS JOIN LATERAL (
        SELECT r.queue, r.type FROM treadle.ready r
         WHERE (r.queue, r.type) > (turns.queue, turns.type) AND r.parked = 'fair'
         ORDER BY r.queue, r.type LIMIT 1) n),
by_turns AS MATERIALIZED (SELECT * FROM turns LIMIT {MOST_RANGES} + 1),
wanted AS MATERIALIZED (
    SELECT queue, type, priority, count(*) OVER () AS ranges FROM seen WHERE run_at <= :now AND {_MAY_START}),
guard AS MATERIALIZED (
    SELECT (SELECT count(*) FROM seen) <= {MOST_RANGES}
           AND NOT EXISTS (SELECT 1 FROM wanted WHERE ranges > 1 AND ranges * :limit > {MOST_READ})
           AND (:worker = '' OR coalesce(({_IS_ALIVE}), 0) = 1)
           AND ({_LIMITS_VERSION}) = :limits AND NOT {OPENED}
           AND NOT EXISTS (SELECT 1 FROM wanted WHERE (SELECT CAST(:limited AS text)::jsonb) ? type)
           AND NOT EXISTS (SELECT 1 FROM treadle.pauses WHERE until <= :now AND tenant <> '')
           AND (SELECT count(*) FROM by_turns) <= {MOST_RANGES}
           AND NOT EXISTS (SELECT 1 FROM by_turns WHERE {_IS_WANTED})
           AND NOT EXISTS (SELECT 1 FROM wanted w CROSS JOIN LATERAL (
                               SELECT 1 FROM treadle.types t WHERE t.type = w.type AND t.fair <> '' LIMIT 1) t)
           AND NOT EXISTS (SELECT 1 FROM treadle.ready WHERE start_by <= :now AND parked <> 'key') AS ok,
           extract(epoch FROM clock_timestamp() - statement_timestamp()) AS seconds, arrival,
           coalesce(arrival <= :now, false) AS arrived, coalesce(signalled, false) AS signalled
      FROM (VALUES (1)) one LEFT JOIN ({_ARRIVAL}) a ON true),
job AS MATERIALIZED (
    SELECT w.queue, w.type, w.priority
      FROM wanted w
     CROSS JOIN LATERAL (SELECT r.run_at, r.id FROM treadle.ready r
                          WHERE r.queue = w.queue AND r.type = w.type AND r.priority = w.priority
                            AND r.run_at <= :now AND r.parked = ''
                          ORDER BY r.run_at, r.id LIMIT :limit) j
     ORDER BY w.priority DESC, j.run_at, j.id LIMIT :limit),
start AS MATERIALIZED (
    SELECT w.queue, w.type, w.priority, w.ranges, CASE WHEN w.ranges = 1 THEN :limit ELSE (
           SELECT count(*) FROM job j
            WHERE j.queue = w.queue AND j.type = w.type AND j.priority = w.priority) END AS n
      FROM wanted w WHERE (SELECT ok FROM guard)),
met AS MATERIALIZED (
    SELECT p.ctid AS place, p.tenant
      FROM start e
     CROSS JOIN LATERAL (
           SELECT r.ctid, r.tenant FROM treadle.ready r
            WHERE r.queue = e.queue AND r.type = e.type AND r.priority = e.priority AND r.run_at <= :now
              AND r.parked = '' AND (r.start_by <= :now) IS NOT TRUE
            ORDER BY r.run_at, r.id LIMIT e.n FOR UPDATE SKIP LOCKED) p),
may_lease AS MATERIALIZED (
    SELECT NOT EXISTS (SELECT 1 FROM met
                        WHERE tenant = ANY(ARRAY(SELECT tenant FROM paused WHERE tenant <> ''))) AS ok),"""
_STATE = f"""
SELECT {LEASE_COLUMNS},
       CASE WHEN l.lease > (SELECT min(lease) FROM l) THEN NULL ELSE (
        SELECT json_build_array(guard.ok AND m.ok, arrived, signalled, seconds, g.n < s.n, :now,
            CASE WHEN guard.ok AND g.n < :limit THEN
            least(arrival, ({_NEXT_OPENING}), (SELECT min(until) FROM treadle.pauses WHERE until > :now),
                  (SELECT coalesce(min(run_at) FILTER (WHERE {_MAY_START}),
                                   CASE WHEN count(*) = :looked_at THEN max(run_at) END)
                     FROM ({_NEXT_DUE}) d)) END)::text
          FROM guard, (SELECT count(*) AS n FROM gone) g, may_lease m, (
               SELECT coalesce(sum(n) FILTER (WHERE ranges > 1), 0) AS n FROM start) s) END
  FROM (VALUES (1)) one LEFT JOIN l ON true LEFT JOIN treadle.jobs j ON j.id = l.id AND j.tenant = l.tenant
 ORDER BY l.lease
"""
CLAIM = move_to_leases(look=_LOOK, rows="SELECT place FROM met WHERE (SELECT ok FROM may_lease)") + _STATE

# Completions. The answer: how many were held, when, and whether other workers have to look for jobs. They are notified.
_COMPLETED = """
SELECT count(*), CAST(:now AS bigint), EXISTS (SELECT 1 FROM {woken}), (
       SELECT count(pg_notify('treadle', n.text))
         FROM {woken}, jsonb_array_elements_text(CAST(:notices AS text)::jsonb) n (text))
  FROM gone"""
COMPLETE_ALL = COMPLETIONS + _COMPLETED.format(woken="arrived")
# ... of which some ran under limits: their keys have free places, those of :keyed (NULL: all) also keys for which jobs
# may be parked, as RELEASE_LIMITS does it. (What a claim parks at this moment cannot be seen here.)
_IS_FOR_OTHERS = IS_FOR_OTHERS.format(owners="SELECT worker FROM gone")
_LIMITED_COMPLETED = _COMPLETED.format(woken="woken")
COMPLETE_LIMITED = f"""{COMPLETIONS}, others AS (
    DELETE FROM treadle.lease_keys WHERE id = ANY(ARRAY(SELECT id FROM gone)) RETURNING id, name, key),
opened AS (
    INSERT INTO treadle.openings (name, key, keys, at, held)
    SELECT name, '', json_agg(DISTINCT key), CAST(:now AS bigint), 0 FROM (
           SELECT id, limit_name AS name, limit_key AS key FROM gone
            WHERE limit_name IS NOT NULL AND limit_key IS NOT NULL
            UNION ALL SELECT id, name, key FROM others) f
     WHERE CAST(:keyed AS text) IS NULL
        OR id IN (SELECT value::uuid FROM jsonb_array_elements_text(CAST(:keyed AS text)::jsonb))
     GROUP BY name),
woken AS MATERIALIZED (
    SELECT 1 WHERE EXISTS (SELECT 1 FROM arrived) OR {_IS_FOR_OTHERS})
{_LIMITED_COMPLETED}"""

# Store steps, each if the lease of its run is still held: nobody can settle it until this is committed. The answer: the
# numbers and tokens of those leases. :rows and :ids as ADD_STEPS and FORGIVE take them, but each step has the token of
# its lease, too; :leases as LOCK_LEASES takes them.
_IF_HELD = "WHERE ((e ->> 7)::bigint, (e ->> 10)::bigint) IN (SELECT lease, token FROM held)"
_LOCK_LEASES = PostgresStatements.LOCK_LEASES.replace(":rows", ":leases")
_FORGIVE = PostgresStatements.FORGIVE
_ADD_STEPS = PostgresStatements.ADD_STEPS.replace("WHERE true", _IF_HELD)
SAVE_STEPS = f"""
WITH held AS MATERIALIZED ({_LOCK_LEASES}),
forgiven AS ({_FORGIVE} AND (lease, token) IN (SELECT lease, token FROM held)),
added AS ({_ADD_STEPS})
SELECT lease, token FROM held
"""

# Store a signal, and notify the workers: the signal of that name that counts. None if another one is stored just now.
_SIGNAL = PostgresStatements.SIGNAL
_ADD_SIGNAL = PostgresStatements.ADD_SIGNAL.replace("RETURNING 1", "RETURNING name, value::text, tenant, who, at")
SIGNAL = f"""
WITH added AS ({_ADD_SIGNAL}),
arrived AS (INSERT INTO treadle.arrivals (at, kind, tenant, what) SELECT at, 'signal', tenant, name FROM added)
SELECT *, {_NOTIFY} FROM added
 UNION ALL
SELECT *, 0 FROM ({_SIGNAL}) s WHERE NOT EXISTS (SELECT 1 FROM added)
"""

# Let jobs go that wait for signals that have arrived, as MEET, ADD_STEPS and LET_GO do it: those that wait for nothing
# else. (If such a wait ends before its job is locked, the job no longer waits, which is seen. Their handlers have run:
# none of them has to wait for its dedupe key.) Notify the workers of those that this one does not claim. The answer:
# how many arrivals and jobs. If a crash loses this, it is done again, and the claim that follows waits for the disk: so
# this does not.
MATCH_SIGNALS = f"""
WITH taken AS MATERIALIZED (
    SELECT ctid AS place, tenant, what, kind FROM treadle.arrivals WHERE at <= :now
     ORDER BY at, seq LIMIT :most FOR UPDATE SKIP LOCKED),
met AS MATERIALIZED (
    SELECT w.place, w.id, t.tenant, w.step, s.value FROM taken t
     CROSS JOIN LATERAL (SELECT value FROM treadle.signals q WHERE q.tenant = t.tenant AND q.name = t.what LIMIT 1) s
     CROSS JOIN LATERAL (SELECT q.ctid AS place, q.id, q.step FROM treadle.waits q
                          WHERE q.what = t.what AND q.tenant = t.tenant AND q.kind = 'signal' AND q.met = 0 OFFSET 0) w
     WHERE t.kind = 'signal' AND (SELECT count(*) FROM (
               SELECT 1 FROM treadle.waits q WHERE q.id = w.id AND q.tenant = t.tenant AND q.met = 0 LIMIT 2) q) = 1
     LIMIT :most),
gone AS (
    UPDATE treadle.ready SET parked = '', updated_at = :now WHERE id = ANY(ARRAY(
           SELECT id FROM treadle.ready WHERE id = ANY(ARRAY(SELECT id FROM met)) AND parked = 'wait'
            ORDER BY id FOR UPDATE SKIP LOCKED)) AND parked = 'wait'
    RETURNING id, type, queue),
over AS MATERIALIZED (SELECT * FROM met WHERE id IN (SELECT id FROM gone)),
meet AS (UPDATE treadle.waits SET met = 1 WHERE ctid = ANY(ARRAY(SELECT place FROM over))),
step AS (
    INSERT INTO treadle.steps
           (id, tenant, name, position, kind, value, arguments, lease, attempt, started_at, ended_at)
    SELECT id, tenant, step, (SELECT coalesce(max(position), 0) + 1 FROM treadle.steps p
                               WHERE p.id = o.id AND p.tenant = o.tenant), 'signal', value, '', 0, 0, :now, :now
      FROM over o
        ON CONFLICT (id, tenant, name) DO UPDATE SET kind = excluded.kind, value = excluded.value,
           lease = excluded.lease, attempt = excluded.attempt, ended_at = excluded.ended_at),
tally AS (
    INSERT INTO treadle.tallies (status, type, queue, count)
    SELECT 'blocked', type, queue, -count(*) FROM gone GROUP BY type, queue),
done AS (
    DELETE FROM treadle.arrivals WHERE ctid = ANY(ARRAY(
        SELECT t.place FROM taken t WHERE t.kind = 'signal' AND NOT EXISTS (
               SELECT 1 FROM treadle.waits q
                WHERE q.what = t.what AND q.tenant = t.tenant AND q.kind = 'signal' AND q.met = 0
                  AND q.ctid <> ALL(ARRAY(SELECT place FROM over)))))
    RETURNING 1)
SELECT (SELECT count(*) FROM done), (SELECT count(*) FROM gone), set_config('synchronous_commit', 'off', true), (
       SELECT count(pg_notify('treadle', queue)) FROM (
           SELECT DISTINCT queue FROM gone WHERE NOT ({_IS_WANTED}) OR (SELECT count(*) FROM gone) > :free) g)
"""

# Count up, write the deadlines that differ from what the worker's clock says, and read the leases of this worker and
# the counts of the others: [[number, cancel, deadline], …], [[id, beats, quiet_at], …]. No row: the worker was declared
# dead. A rescue sees the beat and its deadlines together, or neither. :left: [[id, number, token, time], …]
BEAT = f"""
WITH counted AS ({_BEAT} RETURNING id, beats, quiet_at),
vouched AS (
    UPDATE treadle.leases l SET deadline = w.at
      FROM (SELECT q.ctid AS place, e.at
              FROM (SELECT (v ->> 0)::uuid AS id, (v ->> 1)::bigint AS lease, (v ->> 2)::bigint AS token,
                           CAST(:now AS bigint) + (v ->> 3)::bigint AS at
                      FROM jsonb_array_elements(CAST(:left AS text)::jsonb) v) e
              JOIN treadle.leases q ON q.id = e.id AND q.lease = e.lease AND q.token = e.token
             WHERE abs(e.at - coalesce(q.deadline, 0)) > :drift
               FOR UPDATE OF q SKIP LOCKED) w  -- who has locked one ends it: a beat does not wait for that
     WHERE l.ctid = w.place)
SELECT (SELECT coalesce(json_agg(json_build_array(lease, cancel, deadline)), '[]')::text
          FROM ({_FLAGS}) l),
       (SELECT json_agg(json_build_array(id, beats, quiet_at))::text
          FROM (SELECT * FROM counted UNION ALL
                SELECT * FROM ({_BEATS}) others WHERE id <> :worker) w)
  FROM counted
"""
