"""PostgreSQL's own SQL: the same names in the same order as SQLite's, where they do the same. What all databases
share is in `stores/statements`, and what a job meets on its way in `insert_claim_settle_sql.py`.

What several statements do there, one does here: each is a round trip. A row that is taken from one table
is locked by that, so that deciding and moving are one step too: `DELETE … RETURNING` feeds the INSERT.
Rows are named by `= ANY(ARRAY(…))`, or by a join of places, never by a join with what may be many: that keeps to the
index in any state of the statistics. Where each row of a page needs those that belong to it, a LATERAL with a LIMIT
does the same for a join.
"""

from collections.abc import Iterable
from typing import ClassVar

from treadle.stores.statements import Statements
from treadle.stores.statements.parts import BESIDE_TURNS, MOST, OF_RANGE, SUMS_OF_USAGE, THESE, UNNEEDED, UNTHROTTLED

# The id of no job.
NOBODY = "00000000-0000-0000-0000-000000000000"


class PostgresStatements(Statements):
    """The statements of the verbs, in PostgreSQL's form."""

    # ---- enqueue

    # Take a dedupe key, or see by the row count that it is held: by a job that is stored, once this does not wait.
    TAKE_KEY = """
    INSERT INTO treadle.dedupe (tenant, key, id)
    VALUES (CAST(:tenant AS text), CAST(:key AS text), CAST(CAST(:id AS text) AS uuid)) ON CONFLICT DO NOTHING
    RETURNING 1
    """
    # Lock the keys of jobs, held by them or not. Sorted, so that no two transactions deadlock.
    LOCK_KEYS = (
        f"""
        SELECT 1 FROM (SELECT tenant, dedupe FROM treadle.jobs WHERE id = {THESE} AND dedupe IS NOT NULL
                        ORDER BY tenant, dedupe OFFSET 0) j
         CROSS JOIN LATERAL (SELECT p.ctid FROM treadle.dedupe p WHERE p.tenant = j.tenant AND p.key = j.dedupe
                              LIMIT 1 FOR UPDATE) d
        """,
    )
    # ... and keys that nobody holds, of which [[tenant, key], …] are some more: each of these gets a row, in the same
    # order, and they are the answer. (A change of `key` locks as FOR UPDATE does, and none is made.)
    HOLD_KEYS = (
        f"""
        INSERT INTO treadle.dedupe AS d (tenant, key, id)
        SELECT tenant, key, CAST('{NOBODY}' AS uuid) FROM (
            SELECT tenant, dedupe AS key FROM treadle.jobs WHERE id = {THESE} AND dedupe IS NOT NULL
             UNION
            SELECT (v ->> 0) COLLATE "C", (v ->> 1) COLLATE "C" FROM jsonb_array_elements(CAST(:keys AS text)::jsonb) v
            ) k ORDER BY tenant, key
            ON CONFLICT (tenant, key) DO UPDATE SET key = d.key WHERE false
        RETURNING tenant, key
        """,
    )
    # Of these the ones that nobody has taken. [[tenant, key], …]
    DROP_HELD_KEYS = f"""
    DELETE FROM treadle.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.place FROM jsonb_array_elements(CAST(:keys AS text)::jsonb) e
         CROSS JOIN LATERAL (SELECT p.ctid AS place FROM treadle.dedupe p
                              WHERE p.tenant = e ->> 0 AND p.key = e ->> 1 AND p.id = CAST('{NOBODY}' AS uuid)
                              LIMIT 1) d))
    """
    # The rest of this transaction waits only briefly for locks: others wait for its commit.
    WAIT_BRIEFLY = ("SET LOCAL lock_timeout = '100ms'",)
    # Delete throttled keys whose period is over.
    PRUNE_KEYS = """
    DELETE FROM treadle.dedupe WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM treadle.dedupe WHERE expires_at <= CAST(:now AS bigint) AND successor IS NULL
         ORDER BY expires_at LIMIT :limit FOR UPDATE SKIP LOCKED))
    """
    # Count rows where they moved. [[status, type, queue, by how many], …]
    ADD_TALLIES = """
    INSERT INTO treadle.tallies (status, type, queue, count)
    SELECT v ->> 0, v ->> 1, v ->> 2, (v ->> 3)::bigint FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) v
    """

    # A range by turns: of each tenant so many due jobs that they are :wanted in all, and at least :each. The next lower
    # priority, in order and by turns; and whether jobs of a fair type are due that do not wait by turns yet. One look
    # finds a tenant and its first job: often one of each is enough.
    _FIRST = f"SELECT r.tenant, r.run_at, r.id FROM treadle.ready r WHERE {OF_RANGE} AND r.parked = 'fair'"
    _IN_ORDER = "ORDER BY r.tenant, r.run_at, r.id LIMIT 1"
    READ_TURNS = f"""
    WITH RECURSIVE walk (tenant, run_at, id, lap, n) AS (
        SELECT CAST(:last AS text) COLLATE "C", CAST(0 AS bigint), CAST(NULL AS uuid), 0, 0
        UNION ALL
        SELECT f.tenant, f.run_at, f.id, CASE WHEN w.tenant IS NULL THEN 1 ELSE lap END, n + 1
          FROM walk w LEFT JOIN LATERAL (
               ({_FIRST} AND r.tenant > w.tenant {_IN_ORDER})
               UNION ALL ({_FIRST} AND w.tenant IS NULL {_IN_ORDER}) LIMIT 1) f ON true
         WHERE n <= :tenants AND (lap = 0 OR w.tenant <= :last)),
    turn AS MATERIALIZED (
        SELECT tenant, run_at, id, n FROM walk
         WHERE n > 0 AND tenant IS NOT NULL AND (lap = 0 OR tenant <= :last)),
    share AS MATERIALIZED (
        SELECT greatest(:each, (:wanted + count(*) - 1) / greatest(count(*), 1)) AS each FROM turn)
    SELECT coalesce(CASE WHEN each = 1 THEN (
               SELECT json_agg(json_build_array(tenant, CASE WHEN run_at <= :now THEN
                          json_build_array(json_build_array(run_at, id)) ELSE '[]' END) ORDER BY n)
                 FROM turn)
           ELSE (
               SELECT json_agg(json_build_array(t.tenant, (
                          SELECT coalesce(json_agg(json_build_array(d.run_at, d.id)), '[]') FROM (
                              SELECT r.run_at, r.id FROM treadle.ready r
                               WHERE {OF_RANGE} AND r.tenant = t.tenant AND r.run_at <= :now AND r.parked = 'fair'
                               ORDER BY r.run_at, r.id LIMIT each) d)) ORDER BY t.n)
                 FROM turn t) END, '[]')::text, {BESIDE_TURNS}
      FROM share
    """
    # Let due jobs of a range wait by turns, which wait in order, unless another transaction has them.
    START_TURNS = """
    UPDATE treadle.ready SET parked = 'fair' WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM treadle.ready
         WHERE queue = :queue AND type = :type AND priority = :priority AND run_at <= :now AND parked = ''
         ORDER BY run_at, id LIMIT :most FOR UPDATE SKIP LOCKED))
    """

    # ---- jobs that were not started in time

    # Put jobs that were not started in time back, as if no claim had met them. [[id, start_by], …]
    UNLEASE = """
    WITH e AS MATERIALIZED (
        SELECT (v ->> 0)::uuid AS id, (v ->> 1)::bigint AS start_by
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) v),
    gone AS (DELETE FROM treadle.leases WHERE id = ANY(ARRAY(SELECT id FROM e)) AND token = :token RETURNING *),
    keys AS (DELETE FROM treadle.lease_keys WHERE id = ANY(ARRAY(SELECT id FROM gone)))
    INSERT INTO treadle.ready
           (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at, start_by, forgiven)
    SELECT l.id, l.queue, l.type, l.tenant, coalesce((SELECT j.priority FROM treadle.jobs j
                                                      WHERE j.id = l.id AND j.tenant = l.tenant), 0),
           l.run_at, l.attempt - 1, l.snoozes, l.suspicion, :now, e.start_by, l.forgiven
      FROM gone l JOIN e ON e.id = l.id
    """

    # The first of them: what each is, how long it had, and whether it has a dedupe key or comes next. One that another
    # transaction has locked is left alone.
    EXPIRED = """
    SELECT r.id::text, r.type, r.queue, r.parked, r.start_by - r.run_at,
           EXISTS (SELECT 1 FROM treadle.jobs j JOIN treadle.dedupe d ON d.tenant = j.tenant AND d.key = j.dedupe
                    WHERE j.id = r.id AND j.tenant = r.tenant AND r.id IN (d.id, d.successor))
      FROM treadle.ready r WHERE start_by <= :now AND parked <> 'key'
     ORDER BY start_by LIMIT :limit FOR UPDATE OF r SKIP LOCKED
    """
    # Lock their keys: those jobs whose key no other transaction has locked.
    LOCK_FREE_KEYS = f"""
    SELECT id::text FROM treadle.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.ctid
          FROM (SELECT id, tenant, dedupe FROM treadle.jobs WHERE id = {THESE} OFFSET 0) j
         CROSS JOIN LATERAL (SELECT p.ctid FROM treadle.dedupe p
                              WHERE p.tenant = j.tenant AND p.key = j.dedupe AND p.id = j.id LIMIT 1) d))
       FOR UPDATE SKIP LOCKED
    """
    # Lock the keys under which these come next. A row that nothing changes in is written all the same: RELEASE_KEYS may
    # have looked before this, and lock it after the commit. A new version tells it to look again.
    LOCK_SUCCESSORS = f"""
    UPDATE treadle.dedupe SET successor = successor WHERE ctid = ANY(ARRAY(
        SELECT d.place
          FROM (SELECT id, tenant, dedupe FROM treadle.jobs WHERE id = {THESE} OFFSET 0) j
         CROSS JOIN LATERAL (SELECT p.ctid AS place FROM treadle.dedupe p
                              WHERE p.tenant = j.tenant AND p.key = j.dedupe AND p.successor = j.id
                              LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) d))
    RETURNING successor::text
    """
    # End jobs that wait. [[id, status, error], …]
    FINISH_WAITING = """
    INSERT INTO treadle.finished
           (id, lease, token, status, queue, type, tenant, attempts, snoozes, worker, run_at, completed_at, error)
    SELECT r.id, 0, 0, e.value ->> 1, r.queue, r.type, r.tenant, r.attempts, r.snoozes, '', r.run_at, :now,
           e.value ->> 2
      FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e (value)
     CROSS JOIN LATERAL (SELECT * FROM treadle.ready p WHERE p.id = (e.value ->> 0)::uuid LIMIT 1) r
    """

    # ---- settle

    # [[minute, type, queue, tenant, runs, completed, failures, busy, waiting], …]
    ADD_USAGE = """
    INSERT INTO treadle.usage (minute, type, queue, tenant, runs, completed, failures, busy, waiting)
    SELECT (v ->> 0)::bigint, v ->> 1, v ->> 2, v ->> 3, (v ->> 4)::bigint, (v ->> 5)::bigint, (v ->> 6)::bigint,
           (v ->> 7)::bigint, (v ->> 8)::bigint
      FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) v
    """

    # ---- rows broken by hand

    DROP_REPEATED_ATTEMPTS = """
    DELETE FROM treadle.attempts WHERE (id, tenant, lease) IN (SELECT id, tenant, lease FROM treadle.leases)
    RETURNING id::text
    """
    # Of the jobs that wait or run.
    DEFECTIVE_PAYLOADS = """
    SELECT 'payload', count(*), min(j.id::text)
      FROM (SELECT id, tenant FROM treadle.ready UNION ALL SELECT id, tenant FROM treadle.leases) p
      JOIN treadle.jobs j ON j.id = p.id AND j.tenant = p.tenant
     WHERE json_typeof(j.payload) <> 'object'
    """

    # ---- limits

    UNIT, ONCE = "chr(31)", "OFFSET 0"
    # Those to come to now, if no other transaction does: of each limit up to :most keys in all, [key, …], and whether
    # they are locked by this. Then they are gone: for the other keys of an opening, there is another one.
    TAKE_OPENINGS = """
    WITH due AS MATERIALIZED (
        SELECT ctid AS place, name, at, coalesce(keys, json_build_array(key)) AS keys
          FROM treadle.openings WHERE at <= :now ORDER BY at LIMIT :most FOR UPDATE SKIP LOCKED),
    opening AS MATERIALIZED (
        SELECT * FROM (SELECT *, sum(json_array_length(keys)) OVER (ORDER BY at, place) AS n FROM due) d
         WHERE n - json_array_length(keys) < :most),
    met AS MATERIALIZED (
        SELECT place, name, at, key, nth <= :most AS is_tried, CASE WHEN nth <= :most THEN
               pg_try_advisory_xact_lock(hashtextextended('treadle ' || name || chr(31) || key, 0))
               ELSE false END AS is_locked
          FROM (SELECT place, name, at, k.key, row_number() OVER (ORDER BY at, place) AS nth
                  FROM opening CROSS JOIN LATERAL json_array_elements_text(keys) k (key) WHERE k.key IS NOT NULL) o),
    gone AS (DELETE FROM treadle.openings WHERE ctid = ANY(ARRAY(SELECT place FROM opening))),
    rest AS (
        INSERT INTO treadle.openings (name, key, keys, at, held)
        SELECT name, '', json_agg(key), at, 0 FROM met WHERE NOT is_locked GROUP BY place, name, at)
    SELECT name, json_agg(key)::text, is_locked FROM met WHERE is_tried GROUP BY name, is_locked
    """
    # Park rows, which we have locked. [[id, what for], …]
    PARK_FOR = """
    UPDATE treadle.ready r SET parked = m.parked
      FROM (SELECT p.ctid AS place, e.v ->> 1 AS parked FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e (v)
             CROSS JOIN LATERAL (SELECT ctid FROM treadle.ready WHERE id = (e.v ->> 0)::uuid LIMIT 1) p OFFSET 0) m
     WHERE r.ctid = m.place
    """
    # Put back the most urgent rows of each queue and type that are parked for a key, unless another transaction does.
    # [[what for, how many], …], at most :n of one. Those of paused tenants, and those that may no longer start, would
    # not use the place: they do not count, and the former are parked for the pause from now on. :beside: so many rows
    # more are looked at. The answer: their queues, what for, and whether they count.
    UNPARK_KEYS = """
    WITH RECURSIVE paused AS MATERIALIZED (
        SELECT tenant FROM treadle.pauses WHERE tenant <> '' AND (until IS NULL OR until > :now)),
    pair AS (
        SELECT e.parked, e.n, p.queue, p.type
          FROM (SELECT v ->> 0 AS parked, (v ->> 1)::integer AS n
                  FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) v) e
         CROSS JOIN LATERAL (SELECT r.queue, r.type FROM treadle.ready r WHERE r.parked = e.parked AND r.parked > 'fair'
                              ORDER BY r.queue, r.type LIMIT 1) p
        UNION ALL
        SELECT pair.parked, pair.n, p.queue, p.type FROM pair
         CROSS JOIN LATERAL (SELECT r.queue, r.type FROM treadle.ready r
                              WHERE r.parked = pair.parked AND r.parked > 'fair'
                                AND (r.queue, r.type) > (pair.queue, pair.type)
                              ORDER BY r.queue, r.type LIMIT 1) p
    )
    UPDATE treadle.ready r SET parked = CASE WHEN m.is_paused THEN 'tenant:' || r.tenant ELSE '' END
      FROM (SELECT p.place, p.is_paused, p.counts, pair.parked FROM pair
             CROSS JOIN LATERAL (
                   SELECT place, is_paused, counts, count(*) FILTER (WHERE counts)
                          OVER (ORDER BY priority DESC, run_at, id) AS n
                     FROM (SELECT *, NOT is_paused AND (start_by <= :now) IS NOT TRUE AS counts
                             FROM (SELECT ctid AS place, priority, run_at, id, start_by,
                                          tenant = ANY(ARRAY(SELECT tenant FROM paused)) AS is_paused
                                     FROM treadle.ready r
                                    WHERE r.parked = pair.parked AND r.parked > 'fair'
                                      AND r.queue = pair.queue AND r.type = pair.type
                                    ORDER BY r.priority DESC, r.run_at, r.id
                                    LIMIT least(pair.n, CAST(:n AS integer)) + CAST(:beside AS integer)
                                      FOR UPDATE SKIP LOCKED) r) r) p
             WHERE NOT p.counts OR p.n <= pair.n OFFSET 0) m
     WHERE r.ctid = m.place
    RETURNING r.queue, m.parked, m.counts
    """
    # Of older rows the index may have very many, deleted while another session holds an old snapshot.
    _ADD_BUCKETS = Statements.ADD_BUCKETS
    SET_BUCKETS = (
        f"""
        WITH gone AS (
            DELETE FROM treadle.buckets WHERE ctid = ANY(ARRAY(
                SELECT p.ctid FROM jsonb_array_elements(CAST(:keys AS text)::jsonb) e
                 CROSS JOIN LATERAL (SELECT ctid FROM treadle.buckets b
                                      WHERE b.name = e ->> 0 AND b.key = e ->> 1 AND b.seq >= (e ->> 3)::bigint
                                     OFFSET 0) p)))
        {_ADD_BUCKETS}
        """,
    )
    # Leases have ended: their keys have free places. (Whether rows are parked for them is not known here: a claim that
    # parks one may not be committed yet.)
    RELEASE_LIMITS = (
        f"""
        WITH gone AS (DELETE FROM treadle.lease_keys WHERE id = {THESE} RETURNING id, name, key)
        INSERT INTO treadle.openings (name, key, keys, at, held)
        SELECT name, '', json_agg(DISTINCT key), CAST(:now AS bigint), 0 FROM gone
         WHERE id IN (SELECT value::uuid FROM jsonb_array_elements_text(CAST(:keyed AS text)::jsonb)) GROUP BY name
        """,
    )

    # ---- pauses

    # Put back the most urgent rows that are parked for this, unless another transaction does.
    UNPARK = """
    UPDATE treadle.ready SET parked = '' WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM treadle.ready WHERE parked = CAST(:parked AS text) AND parked > 'fair'
         ORDER BY parked, queue, type, priority DESC, run_at, id LIMIT :most FOR UPDATE SKIP LOCKED))
    RETURNING queue
    """
    # Transactions that write leases: those that began before a pause may claim what it pauses.
    CLAIMING = """
    SELECT DISTINCT virtualtransaction FROM pg_locks
     WHERE relation = 'treadle.leases'::regclass AND database = (SELECT oid FROM pg_database
                                                                  WHERE datname = current_database())
       AND mode = 'RowExclusiveLock' AND granted
    """

    # ---- waits

    # Of jobs that have ended: those that wait for them, for how many of them each, and whether it takes more than to
    # see that they have ended. A parent that has failed may hold them on.
    _ENDED_WAITS = """
        SELECT w.place, w.id, f.status = 'completed' OR w.if_failed = 'run' AS is_met
          FROM jsonb_array_elements_text(CAST(:whats AS text)::jsonb) e
         CROSS JOIN LATERAL (SELECT q.ctid AS place, q.id, q.tenant, q.if_failed FROM treadle.waits q
                              WHERE q.what = e.value AND q.met = 0 AND q.kind <> 'signal' OFFSET 0) w
         CROSS JOIN LATERAL (SELECT q.status FROM treadle.finished q
                              WHERE q.id = e.value::uuid AND q.tenant = w.tenant LIMIT 1) f
         WHERE (f.status = 'completed' OR w.if_failed <> 'hold')"""
    WAITERS_OF_ENDED = f"""
    SELECT id::text, count(*), NOT bool_and(is_met) FROM ({_ENDED_WAITS} LIMIT :limit) w GROUP BY id
    """
    # ... of which these wait no longer for them.
    MEET_ENDED = f"""
    UPDATE treadle.waits SET met = 1 WHERE ctid = ANY(ARRAY(
        SELECT place FROM ({_ENDED_WAITS} AND w.id = {THESE} LIMIT :limit) w WHERE is_met))
    """

    # ---- batches

    # Lock the batches of jobs, sorted, so that no two transactions deadlock.
    LOCK_BATCHES = (
        f"""
        SELECT 1 FROM treadle.batches b
         WHERE (tenant, name) IN (SELECT tenant, batch FROM treadle.jobs WHERE id = {THESE} AND batch IS NOT NULL)
         ORDER BY tenant, name FOR UPDATE
        """,
    )
    # Take counts out of batches that we have locked, to put their sum back. [[tenant, name], …]
    TAKE_BATCH_COUNTS = """
    DELETE FROM treadle.batch_counts WHERE ctid = ANY(ARRAY(
        SELECT c.ctid FROM jsonb_array_elements(CAST(:names AS text)::jsonb) e
         CROSS JOIN LATERAL (SELECT p.ctid FROM treadle.batch_counts p WHERE p.batch = e ->> 1 AND p.tenant = e ->> 0
                              LIMIT :most) c
         LIMIT :most))
    RETURNING tenant, batch, added, completed, failed, cancelled
    """

    # ---- manage

    # Lock a job where it is, until we commit: in one of these places.
    LOCK_JOB = (
        "SELECT 1 FROM treadle.ready WHERE id = CAST(:id AS uuid) FOR UPDATE",
        "SELECT 1 FROM treadle.leases WHERE id = CAST(:id AS uuid) FOR UPDATE",
        "SELECT 1 FROM treadle.finished WHERE id = CAST(:id AS uuid) FOR UPDATE",
    )
    JOB = Statements._JOB
    # What it is read from: each list starts from its own rows.
    FROM_ALL = """FROM treadle.jobs j
      LEFT JOIN LATERAL (SELECT * FROM treadle.ready p WHERE p.id = j.id AND p.tenant = j.tenant LIMIT 1) r ON true
      LEFT JOIN LATERAL (SELECT * FROM treadle.leases p WHERE p.id = j.id AND p.tenant = j.tenant LIMIT 1) l ON true
      LEFT JOIN LATERAL (SELECT * FROM treadle.finished p WHERE p.id = j.id AND p.tenant = j.tenant LIMIT 1) f
             ON true"""
    FROM_PENDING = """FROM treadle.ready r
     CROSS JOIN LATERAL (SELECT * FROM treadle.jobs p WHERE p.id = r.id AND p.tenant = r.tenant LIMIT 1) j
      LEFT JOIN treadle.leases l ON false LEFT JOIN treadle.finished f ON false"""
    FROM_PROCESSING = """FROM treadle.leases l
     CROSS JOIN LATERAL (SELECT * FROM treadle.jobs p WHERE p.id = l.id AND p.tenant = l.tenant LIMIT 1) j
      LEFT JOIN treadle.ready r ON false LEFT JOIN treadle.finished f ON false"""
    FROM_FINISHED = """FROM treadle.finished f
     CROSS JOIN LATERAL (SELECT * FROM treadle.jobs p WHERE p.id = f.id AND p.tenant = f.tenant LIMIT 1) j
      LEFT JOIN treadle.ready r ON false LEFT JOIN treadle.leases l ON false"""
    GET = f"{JOB} {FROM_ALL} WHERE j.id = CAST(CAST(:id AS text) AS uuid)"
    # The tables, by their short names in a list.
    TABLES: ClassVar = {name[0]: f"treadle.{name}" for name in ("jobs", "ready", "leases", "finished", "workers")}
    ERROR_HAS = Statements._ERROR_HAS
    ERROR_SHOWS = Statements._ERROR_SHOWS
    PAYLOAD_HAS = Statements._PAYLOAD_HAS
    # Conditions of a filter: the value at a path of the payload, as JSON and as text. Where PostgreSQL cannot turn an
    # escape into a character (\u0000, half a surrogate pair: written by hand), a look at any path would raise.
    _BROKEN = r"""strpos(j.payload::text, '\u') > 0 AND regexp_replace(replace(j.payload::text, '\\', ''),
        '\\u[dD][89abAB][0-9a-fA-F]{{2}}\\u[dD][c-fC-F]', '', 'g') ~ '\\u(0000|[dD][89a-fA-F])'"""
    AT_PATH = (
        f"CASE WHEN {_BROKEN} THEN NULL ELSE (j.payload #> CAST(:{{path}} AS text[]))::text END",
        f"CASE WHEN {_BROKEN} THEN NULL ELSE j.payload #>> CAST(:{{path}} AS text[]) END",
    )

    def paths(self, parts: list[str]) -> list[list[str]]:
        """A path as PostgreSQL writes it; a number may be a name or an index."""
        return [parts]

    # Ended before :before. An id carries the time it was made, and nothing ends before it is made, so that only ids
    # before :oldest need to be looked at. What another transaction prunes is left to it. (`coalesce`, so that the
    # planner does not believe that few have such a status, and `f.id`, since `id` would be the text: it would sort all
    # of them. Most often no job waits for any of the first ones. One look finds that out; without completed jobs, those
    # to prune are not the first ones.)
    PRUNABLE = f"""
    WITH last AS MATERIALIZED (
             SELECT id FROM treadle.finished
              WHERE id < CAST(:oldest AS uuid) AND CAST(:statuses AS text)::jsonb ? 'completed'
              ORDER BY id OFFSET :limit LIMIT 1),
         first AS MATERIALIZED (
             SELECT id FROM treadle.finished WHERE EXISTS (SELECT 1 FROM last) ORDER BY id LIMIT 1),
         unneeded AS MATERIALIZED (
             SELECT id FROM last WHERE NOT EXISTS (
                    SELECT 1 FROM treadle.waits
                     WHERE what >= (SELECT id::text FROM first) AND what <= (SELECT id::text FROM last)))
    SELECT ctid FROM treadle.finished f
     WHERE id < CAST(:oldest AS uuid) AND completed_at < :before
       AND coalesce(status = ANY(ARRAY(SELECT jsonb_array_elements_text(CAST(:statuses AS text)::jsonb))), false)
       AND {UNTHROTTLED} AND (coalesce(f.id <= (SELECT id FROM unneeded), false) OR {UNNEEDED})
     ORDER BY f.id LIMIT :limit FOR UPDATE SKIP LOCKED
    """
    _FIRST_OLD, _LAST_OLD = "SELECT ids[1]::uuid FROM old_ids", "SELECT ids[cardinality(ids)]::uuid FROM old_ids"
    # All jobs from the first to the last, or one more than twice as many as are pruned.
    _JOBS_BETWEEN = (
        f"SELECT 1 FROM treadle.jobs WHERE id >= ({_FIRST_OLD}) AND id <= ({_LAST_OLD}) LIMIT 2 * :limit + 1"
    )
    # The ids to prune, if there are attempts of jobs between the first and last of them; and so on for other tables.
    _IN_ATTEMPTS = f"""(SELECT ids::uuid[] FROM old_ids WHERE (
             SELECT id FROM treadle.attempts WHERE id >= ({_FIRST_OLD}) ORDER BY id LIMIT 1)
             <= ({_LAST_OLD}))::uuid[]"""
    _IN_STEPS, _IN_LOGS = _IN_ATTEMPTS.replace("attempts", "steps"), _IN_ATTEMPTS.replace("attempts", "logs")
    _IN_WAITS = _IN_ATTEMPTS.replace("attempts", "waits")
    _IN_WHATS = _IN_WAITS.replace(" id ", " what ").replace("uuid", "text")

    # Delete jobs that ended long ago, with all of their rows: what they were, and how many. To find a place costs less
    # than to find an id; and so does it to read all jobs from the first id to the last, unless too many others are
    # between them. (`coalesce`, so that the ids are hashed once; from an array, which the planner believes to be short:
    # it would not hash as many as it may expect from a large table. Waits that another transaction has locked are left
    # to it: it deletes them, together with the other job, and both could wait for each other.)
    PRUNE = f"""
    WITH old AS (
             DELETE FROM treadle.finished WHERE ctid = ANY(ARRAY({PRUNABLE})) RETURNING id, status, type, queue),
         old_ids AS MATERIALIZED (SELECT array_agg(id ORDER BY id) AS ids FROM old),
         dense AS MATERIALIZED (SELECT count(*) <= 2 * :limit AS is_dense FROM ({_JOBS_BETWEEN}) j),
         of_jobs AS (
             DELETE FROM treadle.jobs WHERE id >= ({_FIRST_OLD}, dense WHERE is_dense) AND id <= ({_LAST_OLD})
                AND coalesce(id IN (SELECT unnest(ids::uuid[]) FROM old_ids), false)),
         of_scattered_jobs AS (
             DELETE FROM treadle.jobs WHERE id = ANY((SELECT ids FROM old_ids, dense WHERE NOT is_dense)::uuid[])),
         of_attempts AS (DELETE FROM treadle.attempts WHERE id = ANY({_IN_ATTEMPTS})),
         of_steps AS (DELETE FROM treadle.steps WHERE id = ANY({_IN_STEPS})),
         of_logs AS (DELETE FROM treadle.logs WHERE id = ANY({_IN_LOGS})),
         of_waits AS (
             DELETE FROM treadle.waits WHERE ctid = ANY(ARRAY(
                 SELECT ctid FROM treadle.waits WHERE id = ANY({_IN_WAITS}) FOR UPDATE SKIP LOCKED))),
         of_waits_for AS (
             DELETE FROM treadle.waits WHERE ctid = ANY(ARRAY(
                 SELECT ctid FROM treadle.waits WHERE what = ANY({_IN_WHATS}) AND kind <> 'signal'
                    FOR UPDATE SKIP LOCKED)))
    SELECT status, type, queue, count(*) FROM old GROUP BY 1, 2, 3
    """
    PRUNE_USAGE = """
    DELETE FROM treadle.usage WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM treadle.usage WHERE minute < :before ORDER BY minute LIMIT :limit FOR UPDATE SKIP LOCKED))
    """

    # ---- schedules

    _FIRED = """
      FROM jsonb_array_elements(CAST(:names AS text)::jsonb) e
      JOIN treadle.fired d ON d.tenant = e ->> 0 AND d.schedule = e ->> 1
    """
    # Of [[tenant, schedule], …], the jobs that have ended or were deleted. One that is being retried has its row still
    # when it waits again.
    DROP_ENDED = f"""
    DELETE FROM treadle.fired WHERE ctid = ANY(ARRAY(
        SELECT d.ctid {_FIRED} CROSS JOIN LATERAL (
               SELECT 1 FROM treadle.finished f WHERE f.id = d.id AND f.tenant = d.tenant
                LIMIT 1 FOR KEY SHARE SKIP LOCKED) f
         UNION ALL
        SELECT d.ctid {_FIRED}
         WHERE NOT EXISTS (SELECT 1 FROM treadle.jobs j WHERE j.id = d.id AND j.tenant = d.tenant)))
    """

    # ---- copying

    # The columns of a table, each with the type that a value is cast to.
    COLUMNS = """
    SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
     WHERE attrelid = CAST('treadle.' || CAST(:table AS text) AS regclass) AND attnum > 0 AND NOT attisdropped
     ORDER BY attnum
    """
    LEASES_GIVEN = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM treadle.lease"
    RAISE_LEASES = """
    SELECT setval('treadle.lease', CAST(:number AS bigint)) FROM treadle.lease
     WHERE CASE WHEN is_called THEN last_value ELSE 0 END < CAST(:number AS bigint)
    """

    def forbid(self, name: str, tables: Iterable[str], changes: Iterable[str], text: str, when: str) -> list[str]:
        """Let nobody change these tables in these ways while `when` is true: `text` says why."""
        text = text.replace("'", "''").replace("%", "%%%%")  # for RAISE, and for psycopg
        function = f"""CREATE OR REPLACE FUNCTION treadle.{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF {when} THEN RAISE EXCEPTION '{text}' USING ERRCODE = 'object_not_in_prerequisite_state'; END IF;
            IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
            RETURN NEW; END $$"""
        events = " OR ".join(changes)
        return [
            function,
            *(
                f"CREATE OR REPLACE TRIGGER {name} BEFORE {events} ON treadle.{table}"
                f" FOR EACH ROW EXECUTE FUNCTION treadle.{name}()"
                for table in tables
            ),
        ]

    def allow(self, name: str, tables: Iterable[str]) -> list[str]:
        """Undo `forbid`."""
        return [f"DROP TRIGGER IF EXISTS {name} ON treadle.{table}" for table in tables]


META = "SELECT key, value FROM treadle.meta"

# Whether treadle's tables exist. From the catalog, see HAS_SCHEMA.
HAS_META = """
SELECT EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = 'treadle' AND c.relname = 'meta')
"""

SET_SCHEMA = "UPDATE treadle.meta SET value = :number WHERE key = 'schema'"

# ---- sessions, schema, notifications, compaction: for which a file has other means

# What a transaction begins with: no statement waits forever, and the server's clock decides. A client that falls silent
# in the middle (stopped, suspended, cut off) loses its locks: that of a limited type would stop all other claims of it.
# Compiling (jit) would take longer than any statement here, and each is made for its index, whatever the statistics
# say. A statement that writes reads it in its order, not by a bitmap: so no two of them lock the same rows in different
# orders, and deadlock.
_SET_UP = """
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, set_config('lock_timeout', '10s', true),
       set_config('statement_timeout', '30s', true), set_config('idle_in_transaction_session_timeout', '15s', true),
       set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true)
"""
_SET_UP_TO_WRITE = f"{_SET_UP}, set_config('enable_bitmapscan', 'off', true)"
BEGIN = f"BEGIN; {_SET_UP_TO_WRITE}"
# ... or a session whose statements are transactions of their own. They are large: to plan one again for its values
# takes longer than to execute it.
SET_UP_SESSION = (
    _SET_UP_TO_WRITE.replace("true", "false") + ", set_config('plan_cache_mode', 'force_generic_plan', false)"
)
BEGIN_TO_READ = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_SET_UP}"
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# The same in all of a transaction. (A SELECT is evaluated once, not for each row.)
THIS_MOMENT = "(SELECT (extract(epoch FROM now()) * 1000000)::bigint)"

# ... and for a transaction that runs the user's own code, which has limits of its own.
NO_LIMITS = """
SET LOCAL lock_timeout = DEFAULT; SET LOCAL statement_timeout = DEFAULT;
SET LOCAL idle_in_transaction_session_timeout = DEFAULT; SET LOCAL jit = DEFAULT; SET LOCAL enable_seqscan = DEFAULT;
SET LOCAL enable_bitmapscan = DEFAULT
"""

# A snapshot for several reads: a page is read by its index, even if there seems to be little to sort.
PLAN_BY_INDEX = "SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off"
PLAN_FREELY = "SET LOCAL enable_sort = DEFAULT; SET LOCAL enable_bitmapscan = DEFAULT"

# From the catalog itself: to_regclass answers from the session's memory, though another session has just made them.
HAS_SCHEMA = "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = 'treadle')"
CREATE_SCHEMA = "CREATE SCHEMA treadle"
LOCK_UPGRADE = "SELECT pg_advisory_xact_lock(hashtext('treadle.upgrade'))"

# Size of our tables, the age of the oldest transaction, leases given so far, and dead rows where rows come and go.
STATUS = """
SELECT (SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
         WHERE c.relnamespace = to_regnamespace('treadle') AND c.relkind = 'r'),
       (SELECT coalesce(extract(epoch FROM max(now() - xact_start)), 0)::float8 FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()),
       (SELECT coalesce(pg_sequence_last_value(to_regclass('treadle.lease')), 0)),
       (SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_all_tables
         WHERE schemaname = 'treadle' AND relname IN ('ready', 'leases'))
"""

# A number that differs if there was a commit in between.
CHANGES = "SELECT hashtextextended(pg_current_snapshot()::text, 0)"

LISTEN = "LISTEN treadle"
BACKEND_PID = "SELECT pg_backend_pid()"

# The user's transaction cannot be committed any more.
FAIL = "DO $$BEGIN RAISE EXCEPTION 'treadle: the lease of the job was lost'; END$$"

# A hint to listeners, when this is committed.
NOTIFY = "SELECT pg_notify(:channel, :text)"

# Add up what was appended. Two at once would count twice, so only one may.
LOCK_COMPACTING = "SELECT pg_try_advisory_xact_lock(hashtext('treadle.compact'))"
COMPACT_TALLIES = f"""
WITH gone AS (DELETE FROM treadle.tallies RETURNING *)
INSERT INTO treadle.tallies (status, type, queue, count)
SELECT status, type, queue, greatest(least(sum(count), {MOST}), -{MOST}) FROM gone
 GROUP BY status, type, queue HAVING sum(count) <> 0
"""
COMPACT_USAGE = f"""
WITH gone AS (DELETE FROM treadle.usage WHERE minute >= :since RETURNING *)
INSERT INTO treadle.usage (minute, type, queue, tenant, runs, completed, failures, busy, waiting)
SELECT minute, type, queue, tenant, {SUMS_OF_USAGE}
  FROM gone GROUP BY minute, type, queue, tenant
"""
