"""What a job is, where it is and why it waits; lists of jobs, and the workers."""

from treadle.filters import MOST_SEARCHED
from treadle.stores.statements.parts import OF_RANGE, STUCK, THESE, WALK

# The dedupe rule of a job `j`: NULL without a key, '' for a key alone.
DEDUPE_RULE = "CASE WHEN j.dedupe IS NOT NULL THEN coalesce(j.dedupe_rule, '') END"


class Reading:
    """What shows jobs and workers, and changes nothing."""

    # ---- jobs and workers

    # The ids that begin with the digits of both.
    IDS_BETWEEN = """
        SELECT j.id::text FROM treadle.jobs j
         WHERE j.id BETWEEN CAST(CAST(:first AS text) AS uuid) AND CAST(CAST(:last AS text) AS uuid)
         ORDER BY j.id DESC LIMIT :limit
    """
    ATTEMPTS = """
        SELECT attempt, lease, worker, started_at, ended_at, outcome, error, traceback
          FROM treadle.attempts WHERE id = CAST(:id AS uuid) ORDER BY lease
    """
    WORKERS = """
        SELECT id, name, concurrency, queues, types, host, version, beats, started_at, seen_at, stalled_at, quiet_at,
               schedules
          FROM treadle.workers ORDER BY started_at, id
    """
    # What each worker does.
    LEASES_BY_WORKER = """
        SELECT worker, type, count(*), min(started_at) FROM treadle.leases GROUP BY worker, type ORDER BY 1, 2
    """
    # Everything there is to know of some jobs; `to_job` in read.py has the names.
    _LAST_ERROR = """CASE WHEN r.attempts > 0 OR r.suspicion > 0 THEN
                (SELECT error FROM treadle.attempts a WHERE a.id = j.id AND a.tenant = j.tenant
                  ORDER BY lease DESC LIMIT 1) END"""
    _JOB = f"""
        SELECT j.id::text, j.type, j.queue, j.tenant, j.subject, j.payload::text, j.priority, j.max_attempts,
               j.created_at, r.run_at, r.attempts, r.snoozes, r.updated_at, r.start_by, r.parked,
               l.lease, l.run_at, l.attempt, l.snoozes, l.worker, l.started_at, l.fraction, l.message,
               f.status, f.run_at, f.attempts, f.snoozes, f.worker, f.started_at, f.completed_at, f.error,
               f.result::text, {_LAST_ERROR}, {DEDUPE_RULE}, j.schedule, j.fired_at,
               j.origin::text, j.batch
        """
    # Conditions of a filter: a text in an error, and in a payload.
    _ERROR = f"coalesce(f.error, {_LAST_ERROR})"
    _ERROR_HAS = f"strpos(lower({_ERROR}), lower(CAST(:{{text}} AS text))) > 0"
    # Not after a name that may be a secret's, if it has a value; not in a URL that may have a password; and only near
    # the start, because each of the names is looked for. (LIMIT: without it, `e` is computed again for each of them.)
    _ERROR_SHOWS = f"""EXISTS (
        SELECT 1 FROM (SELECT e, length(t) AS n, strpos(e, t) AS p
                         FROM (SELECT lower(substr({_ERROR}, 1, {MOST_SEARCHED})) AS e,
                                      lower(CAST(:{{text}} AS text)) AS t LIMIT 1) s LIMIT 1) s
         WHERE p > 0
           AND NOT (strpos(e, '://') BETWEEN 1 AND p - 1 AND strpos(substr(e, p), '@') > 0)
           AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements_text(CAST(:markers AS text)::jsonb) m
                            WHERE strpos(e, m.value) BETWEEN 1 AND p - 1
                              AND strpos(replace(substr(e, strpos(e, m.value), p + n - strpos(e, m.value)), '=', ':'),
                                         ':') > 0))"""
    _PAYLOAD_HAS = "strpos(j.payload::text, CAST(:{text} AS text)) > 0"
    # Where there is no tally: every job, counted one by one.
    COUNT_EACH = """
        SELECT coalesce(f.status, CASE WHEN l.id IS NOT NULL THEN 'processing'
                                       WHEN r.parked = 'wait' THEN 'blocked' ELSE 'pending' END),
               j.type, j.queue, j.tenant, j.subject, count(*)
          FROM treadle.jobs j LEFT JOIN treadle.leases l ON l.id = j.id AND l.tenant = j.tenant
          LEFT JOIN treadle.ready r ON r.id = j.id AND r.tenant = j.tenant
          LEFT JOIN treadle.finished f ON f.id = j.id AND f.tenant = j.tenant
         GROUP BY 1, 2, 3, 4, 5
    """

    # ---- lineage

    # The jobs that are related to one, the nearest first: at most :limit, and of each job at most that many each way.
    # (A join of `jobs` in the walk would be planned as if there were many at each step.)
    WALK_LINEAGE = """
        WITH RECURSIVE walk (id) AS (
            SELECT CAST(CAST(:id AS text) AS uuid)
             UNION
            SELECT (SELECT j.id FROM treadle.jobs j WHERE j.id = n.value::uuid
                       AND (CAST(:tenant AS text) IS NULL OR j.tenant = CAST(:tenant AS text)))
              FROM walk w CROSS JOIN jsonb_array_elements_text((SELECT json_agg(x) FROM (
                   SELECT o.origin::text AS x FROM treadle.jobs o WHERE o.id = w.id AND o.origin IS NOT NULL
                    UNION ALL
                   SELECT x FROM (SELECT p.what AS x FROM treadle.waits p
                                   WHERE p.id = w.id AND p.kind = 'parent' LIMIT :limit) p
                    UNION ALL
                   SELECT x FROM (SELECT s.id::text AS x FROM treadle.jobs s WHERE s.origin = w.id LIMIT :limit) s
                    UNION ALL
                   SELECT x FROM (SELECT c.id::text AS x FROM treadle.waits c
                                   WHERE c.what = w.id::text AND c.kind = 'parent' LIMIT :limit) c) n)::jsonb) n)
        SELECT id::text FROM walk WHERE id IS NOT NULL LIMIT :limit
    """
    LINEAGE_NODES = f"""
        SELECT j.id::text, j.type, j.queue, j.tenant, j.subject, {{state}}, j.created_at
          FROM treadle.jobs j LEFT JOIN treadle.ready r ON r.id = j.id AND r.tenant = j.tenant
          LEFT JOIN treadle.leases l ON l.id = j.id AND l.tenant = j.tenant
          LEFT JOIN treadle.finished f ON f.id = j.id AND f.tenant = j.tenant
         WHERE j.id = {THESE}
    """
    # (The ids are tables, which are hashed: looked for one by one, there would be a million pairs.)
    LINEAGE_EDGES = """
        WITH source (id) AS MATERIALIZED (SELECT value FROM jsonb_array_elements_text(CAST(:ids AS text)::jsonb)),
             target (id) AS MATERIALIZED (SELECT value FROM jsonb_array_elements_text(CAST(:ids AS text)::jsonb))
        SELECT s.id, t.id, 'origin' FROM target t JOIN treadle.jobs j ON j.id = t.id::uuid
          JOIN source s ON s.id = j.origin::text
         UNION ALL
        SELECT s.id, t.id, 'parent' FROM target t JOIN treadle.waits w ON w.id = t.id::uuid AND w.kind = 'parent'
          JOIN source s ON s.id = w.what
         LIMIT :limit
    """

    # ---- why

    # Whether a job waits, is leased, has ended: one of the three, unless its rows were broken by hand.
    PLACES = """
        SELECT EXISTS (SELECT 1 FROM treadle.ready r WHERE r.id = j.id AND r.tenant = j.tenant),
               EXISTS (SELECT 1 FROM treadle.leases l WHERE l.id = j.id AND l.tenant = j.tenant),
               EXISTS (SELECT 1 FROM treadle.finished f WHERE f.id = j.id AND f.tenant = j.tenant)
          FROM treadle.jobs j WHERE id = CAST(CAST(:id AS text) AS uuid)
    """
    # The holder of a dedupe key, whose successor the job is.
    KEY_BEFORE = """
        SELECT d.id::text FROM treadle.jobs j JOIN treadle.dedupe d ON d.tenant = j.tenant AND d.key = j.dedupe
         WHERE j.id = CAST(:id AS uuid) AND d.successor = j.id
    """
    # What a blocked job waits for, as WaitGroup has it: those that are not over first.
    WAIT_GROUPS = """
        SELECT kind, step, state, count(*), min(what), min(since), max(until) FROM (
            SELECT w.kind, w.step, w.what, w.since, w.until,
                   CASE WHEN w.met = 1 THEN 'over'
                        WHEN w.kind = 'signal' THEN CASE WHEN w.until <= :now OR EXISTS (
                             SELECT 1 FROM treadle.signals s WHERE s.tenant = w.tenant AND s.name = w.what)
                             THEN 'over' ELSE 'waits' END
                        WHEN j.id IS NULL THEN 'gone'
                        WHEN f.status IS NULL THEN 'waits'
                        WHEN f.status = 'completed' OR w.if_failed <> 'hold' THEN 'over' ELSE 'failed' END AS state
              FROM (SELECT * FROM treadle.waits WHERE id = CAST(:id AS uuid) ORDER BY met, what LIMIT :limit) w
              LEFT JOIN treadle.jobs j ON j.id = CASE WHEN w.kind <> 'signal' THEN w.what::uuid END
              LEFT JOIN treadle.finished f ON f.id = j.id AND f.tenant = j.tenant) w
         GROUP BY kind, step, state ORDER BY min(since), kind, step, state
    """
    # The step in which a job sleeps: it was stored together with the row that waits.
    SLEEPS_IN = """
        SELECT s.name FROM treadle.ready r JOIN treadle.steps s ON s.id = r.id AND s.tenant = r.tenant
         WHERE r.id = CAST(:id AS uuid) AND r.run_at > :now AND s.kind = 'sleep' AND s.ended_at = r.updated_at
         ORDER BY s.position DESC LIMIT 1
    """
    # Of the newest jobs that failed or were cancelled, those that hold others, and how many.
    HELD_BY_PARENTS = """
        SELECT f.id::text, (SELECT count(*) FROM (SELECT 1 FROM treadle.waits w
                WHERE w.what = f.id::text AND w.met = 0 AND w.kind = 'parent' AND w.if_failed = 'hold' LIMIT :limit) a)
          FROM (SELECT * FROM (SELECT id FROM treadle.finished WHERE status = 'failed' AND status <> 'completed'
                                ORDER BY id DESC LIMIT :limit) failed
                 UNION ALL
                SELECT * FROM (SELECT id FROM treadle.finished WHERE status = 'cancelled' AND status <> 'completed'
                                ORDER BY id DESC LIMIT :limit) cancelled) f
    """
    # Of the first :limit jobs that are blocked, those that wait for a job that is gone, or since before :before for a
    # subjob, or without a timeout for a signal: how many, and the first.
    LONG_WAITS = """
        SELECT kind, count(*), min(id) FROM (
            SELECT DISTINCT w.id::text AS id,
                   CASE WHEN w.kind <> 'signal' AND j.id IS NULL THEN 'gone' ELSE w.kind END AS kind
              FROM (SELECT w.*
                      FROM (SELECT id, tenant FROM treadle.ready WHERE parked = 'wait' ORDER BY id LIMIT :limit) r
                      JOIN treadle.waits w ON w.id = r.id AND w.tenant = r.tenant WHERE w.met = 0 LIMIT :waits) w
              LEFT JOIN treadle.jobs j ON j.id = CASE WHEN w.kind <> 'signal' THEN w.what::uuid END
             WHERE (w.kind <> 'signal' AND j.id IS NULL)
                OR (w.kind <> 'parent' AND w.until IS NULL AND w.since < :before)) a
         GROUP BY kind ORDER BY kind
    """
    # The workers that have jobs leased of a type, or under a key of a limit: how many, and one or two of them.
    HOLDERS_OF_TYPE = f"""
        SELECT worker, count(*), min(l.id::text), max(l.id::text) FROM treadle.leases l
         WHERE type = :type AND NOT {STUCK} GROUP BY worker
    """
    HOLDERS_OF_KEY = f"""
        SELECT worker, count(*), min(l.id::text), max(l.id::text) FROM treadle.limited_leases k
          JOIN treadle.leases l ON l.id = k.id AND l.tenant = k.tenant AND l.lease = k.lease
         WHERE k.name = :name AND k.key = :key AND NOT {STUCK} GROUP BY worker
    """
    LEASE_FLAGS = f"SELECT cancel, deadline, {STUCK} FROM treadle.leases l WHERE id = CAST(:id AS uuid)"
    # Due jobs of a (queue, type) with a higher priority, among the first :limit; and those of the same, but before it.
    AHEAD_ABOVE = """
        SELECT count(*) FROM (SELECT run_at FROM treadle.ready
            WHERE queue = :queue AND type = :type AND priority > :priority AND parked = ''
            ORDER BY priority DESC LIMIT :limit) a
         WHERE run_at <= :now
    """
    AHEAD_EQUAL = """
        SELECT count(*) FROM (SELECT 1 FROM treadle.ready
            WHERE queue = :queue AND type = :type AND priority = :priority AND run_at <= :now AND parked = ''
              AND (run_at, id) < (:run_at, CAST(:id AS uuid)) LIMIT :limit) a
    """
    # ... of those that wait by turns, where others than the oldest may go: among the first :limit.
    ABOVE_BY_TURNS = AHEAD_ABOVE.replace("parked = ''", "parked = 'fair'")
    EQUAL_BY_TURNS = """
        SELECT count(*) FROM (SELECT run_at, id FROM treadle.ready
            WHERE queue = :queue AND type = :type AND priority = :priority AND parked = 'fair' LIMIT :limit) a
         WHERE (run_at, id) < (:run_at, CAST(:id AS uuid))
    """
    # If a job waits by turns: the tenant of the job of its queue and type that was started last, if one runs.
    LAST_TURN = """
        SELECT (SELECT l.tenant FROM treadle.leases l WHERE l.queue = :queue AND l.type = :type
                 ORDER BY l.lease DESC LIMIT 1)
          FROM treadle.ready WHERE id = CAST(:id AS uuid) AND parked = 'fair'
    """
    # How many tenants take turns with it, how many jobs of its own come before it, and whose turn is next after :last.
    TURNS = f"""
        WITH RECURSIVE {WALK}
        SELECT (SELECT count(*) FROM turn), (SELECT count(*) FROM (SELECT 1 FROM treadle.ready r
            WHERE {OF_RANGE} AND r.tenant = :tenant AND r.parked = 'fair'
              AND (r.run_at, r.id) < (:run_at, CAST(:id AS uuid)) LIMIT :limit) a),
               (SELECT tenant FROM turn ORDER BY n LIMIT 1)
    """
