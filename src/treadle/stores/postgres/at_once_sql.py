"""PostgreSQL's SQL of the verbs that take one round trip, where nothing has to be decided in between."""

from treadle.stores.postgres.insert_claim_settle_sql import (
    MOVE_TO_LEASES,
    NEW_JOBS,
    NEW_READY,
    NEXT_DUE,
    OPENED,
)
from treadle.stores.postgres.sql import PostgresStatements
from treadle.stores.statements.parts import LEASE_COLUMNS

_BEAT, _BEATS, _FLAGS = PostgresStatements.BEAT, PostgresStatements.BEATS, PostgresStatements.FLAGS_OF_WORKER
_LIMITS_VERSION, _IS_ALIVE = PostgresStatements.LIMITS_VERSION, PostgresStatements.IS_ALIVE
_ARRIVAL = PostgresStatements.NEXT_ARRIVAL
_NEXT_DUE = NEXT_DUE.replace(":limit", ":looked_at")

# Store jobs that wait for nothing. The answer: when.
INSERT = f"""
{NEW_JOBS},
waiting AS ({NEW_READY})
SELECT CAST(:now AS bigint)"""
# ... and notify the workers of [queue, …]. (Most enqueues of a fast producer need not.)
_NOTIFY = """(SELECT count(pg_notify('treadle', queue))
                FROM jsonb_array_elements_text(CAST(:notices AS text)::jsonb) queue)"""
INSERT_AND_NOTIFY = f"{INSERT}, {_NOTIFY}"

MOST_RANGES = 100
"""(queue, type, priority) that a claim looks at."""
MOST_READ = 2_000
"""Jobs that it reads, if several ranges have due jobs: up to its limit of each."""

# Look for ranges, and lease the most urgent jobs of the wanted ones, if nothing is in the way: limits, pauses, turns,
# jobs that were not started in time, too many ranges, or something that may let waiting jobs go. Then nothing is
# leased. The answer has ClaimedJob's columns and a state, the same in each row: whether none of the others was in the
# way, whether that last one was, how long the look took, whether other claims were faster, when it was, and if there
# are fewer jobs than asked for, when to claim again, as `next_due` finds it. Without jobs, one row has the state.
_IS_WANTED = """coalesce((SELECT CAST(:timeouts AS text)::jsonb) ? type, true)
       AND coalesce((SELECT CAST(:queues AS text)::jsonb) ? queue, true)"""
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
wanted AS MATERIALIZED (
    SELECT queue, type, priority, count(*) OVER () AS ranges FROM seen WHERE run_at <= :now AND {_IS_WANTED}),
guard AS MATERIALIZED (
    SELECT (SELECT count(*) FROM seen) <= {MOST_RANGES}
           AND NOT EXISTS (SELECT 1 FROM wanted WHERE ranges > 1 AND ranges * :limit > {MOST_READ})
           AND (:worker = '' OR coalesce(({_IS_ALIVE}), 0) = 1)
           AND ({_LIMITS_VERSION}) = :unlimited AND NOT {OPENED}
           AND NOT EXISTS (SELECT 1 FROM treadle.pauses)
           AND NOT EXISTS (SELECT 1 FROM treadle.ready WHERE parked = 'fair')
           AND NOT EXISTS (SELECT 1 FROM wanted w CROSS JOIN LATERAL (
                               SELECT 1 FROM treadle.types t WHERE t.type = w.type AND t.fair <> '' LIMIT 1) t)
           AND NOT EXISTS (SELECT 1 FROM treadle.ready WHERE start_by <= :now AND parked <> 'key') AS ok,
           extract(epoch FROM clock_timestamp() - statement_timestamp()) AS seconds, arrival,
           coalesce(arrival <= :now, false) AS arrived
      FROM (SELECT ({_ARRIVAL}) AS arrival) a),
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
      FROM wanted w WHERE (SELECT ok AND NOT arrived FROM guard)),"""
_OF_RANGES = """
        SELECT p.ctid
          FROM start e
         CROSS JOIN LATERAL (
               SELECT r.ctid FROM treadle.ready r
                WHERE r.queue = e.queue AND r.type = e.type AND r.priority = e.priority AND r.run_at <= :now
                  AND r.parked = '' AND (r.start_by <= :now) IS NOT TRUE
                ORDER BY r.run_at, r.id LIMIT e.n FOR UPDATE SKIP LOCKED) p"""
_STATE = f"""
SELECT {LEASE_COLUMNS},
       (SELECT json_build_array(ok, arrived, seconds, g.n < s.n, :now, CASE WHEN ok AND g.n < :limit THEN
            least(arrival, (SELECT coalesce(min(run_at) FILTER (WHERE {_IS_WANTED}),
                                            CASE WHEN count(*) = :looked_at THEN max(run_at) END)
                              FROM ({_NEXT_DUE}) d)) END)::text
          FROM guard, (SELECT count(*) AS n FROM gone) g, (
               SELECT coalesce(sum(n) FILTER (WHERE ranges > 1), 0) AS n FROM start) s)
  FROM (VALUES (1)) one LEFT JOIN l ON true LEFT JOIN treadle.jobs j ON j.id = l.id AND j.tenant = l.tenant
 ORDER BY j.priority DESC, l.run_at, l.id
"""
CLAIM = MOVE_TO_LEASES.format(look=_LOOK, rows=_OF_RANGES) + _STATE

# Count up, and read the leases of this worker and the counts of the others: when, [[number, cancel, deadline], …],
# [[id, beats, quiet_at], …]. No row: the worker was declared dead.
BEAT = f"""
WITH counted AS ({_BEAT} RETURNING id, beats, quiet_at)
SELECT CAST(:now AS bigint),
       (SELECT coalesce(json_agg(json_build_array(lease, cancel, deadline)), '[]')::text
          FROM ({_FLAGS}) l),
       (SELECT json_agg(json_build_array(id, beats, quiet_at))::text
          FROM (SELECT * FROM counted UNION ALL
                SELECT * FROM ({_BEATS}) others WHERE id <> :worker) w)
  FROM counted
"""
