"""Steps, signals, and what jobs wait for besides time."""

from treadle.stores.statements.parts import THESE

# The rows that a JSON array of texts names.
_THESE_TEXTS = THESE.replace("value::uuid", "value")
_THESE_WHATS = _THESE_TEXTS.replace(":ids", ":whats")


class Waiting:
    """What lets jobs go that wait for others, and what their handlers have stored."""

    # ---- steps

    # Which of [[id, number, token], …] are still held: nobody can settle those until we commit. By id, as a settle.
    LOCK_LEASES = """
        SELECT l.lease, l.token
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
          JOIN treadle.leases l ON l.id = (e ->> 0)::uuid AND l.lease = (e ->> 1)::bigint
                               AND l.token = (e ->> 2)::bigint
         ORDER BY l.id FOR NO KEY UPDATE OF l
    """
    # The attempts before this one no longer count: it has stored a step.
    FORGIVE = f"""
        UPDATE treadle.leases SET forgiven = attempt - 1
         WHERE id = {THESE} AND coalesce(forgiven, -1) <> attempt - 1
    """
    FORGIVE_SUSPENDED = f"UPDATE treadle.ready SET forgiven = attempts WHERE id = {THESE}"
    # A step of the same run may be stored again: its commit is repeated, or it gathers what it has started.
    # [[id, tenant, name, position or 0 for after the last, kind, value, arguments, lease, attempt, took], …]
    ADD_STEPS = """
        INSERT INTO treadle.steps AS s
               (id, tenant, name, position, kind, value, arguments, lease, attempt, started_at, ended_at)
        SELECT (e ->> 0)::uuid, e ->> 1, e ->> 2, coalesce(nullif((e ->> 3)::integer, 0), (
                   SELECT coalesce(max(position), 0) + 1 FROM treadle.steps p
                    WHERE p.id = (e ->> 0)::uuid AND p.tenant = e ->> 1)), e ->> 4, (e ->> 5)::json, e ->> 6,
               (e ->> 7)::bigint, (e ->> 8)::integer, :now - (e ->> 9)::bigint, :now
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e WHERE true
            ON CONFLICT (id, tenant, name) DO UPDATE SET kind = excluded.kind, value = excluded.value,
               lease = excluded.lease, attempt = excluded.attempt, ended_at = excluded.ended_at
    """
    STEPS = """
        SELECT name, kind, value::text, arguments, attempt, started_at, ended_at
          FROM treadle.steps WHERE id = CAST(CAST(:id AS text) AS uuid) ORDER BY position
    """
    # Forget a step and all later ones. Without a name: all.
    FORGET_STEPS = """
        DELETE FROM treadle.steps
         WHERE id = CAST(:id AS uuid) AND position >= CASE WHEN CAST(:name AS text) IS NULL THEN 0 ELSE (
               SELECT position FROM treadle.steps
                WHERE id = CAST(:id AS uuid) AND name = CAST(:name AS text)) END
    """
    # Look again at subjobs of which one had failed: it may have been retried.
    GATHER_AGAIN = """
        UPDATE treadle.steps SET kind = 'gather', value = value -> 'jobs'
         WHERE id = CAST(:id AS uuid) AND kind = 'gathered' AND value -> 'jobs' IS NOT NULL
    """
    DELETE_STEPS = f"DELETE FROM treadle.steps WHERE id = {THESE}"

    # ---- logs

    # A line may be stored again: its commit is repeated, or more lines were dropped.
    # [[id, tenant, lease, attempt, line, microseconds ago, level, message], …]
    ADD_LOGS = """
        INSERT INTO treadle.logs (id, tenant, lease, attempt, line, at, level, message)
        SELECT (e ->> 0)::uuid, e ->> 1, (e ->> 2)::bigint, (e ->> 3)::integer, (e ->> 4)::integer,
               :now - (e ->> 5)::bigint, e ->> 6, e ->> 7
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e WHERE true
            ON CONFLICT (id, tenant, lease, line) DO UPDATE SET message = excluded.message
    """
    _LOGS = "SELECT attempt, line, at, level, message FROM treadle.logs WHERE id = CAST(CAST(:id AS text) AS uuid)"
    LOGS = f"{_LOGS} ORDER BY lease, line LIMIT :limit OFFSET :after"
    LAST_LOGS = f"{_LOGS} ORDER BY lease DESC, line DESC LIMIT :limit"
    DELETE_LOGS = f"DELETE FROM treadle.logs WHERE id = {THESE}"

    # ---- waits

    # A handler waits again for the same, if its job was cancelled and retried.
    # [[id, tenant, kind, what, step, if_failed, microseconds], …]
    ADD_WAITS = """
        INSERT INTO treadle.waits (id, tenant, kind, what, step, if_failed, met, since, until)
        SELECT (e ->> 0)::uuid, e ->> 1, e ->> 2, e ->> 3, e ->> 4, e ->> 5, 0, :now, :now + (e ->> 6)::bigint
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e WHERE true
            ON CONFLICT (id, tenant, what, step) DO UPDATE SET met = 0, since = excluded.since, until = excluded.until
    """
    # What new jobs wait for. Those with the same parents travel together: neither a fan-in nor a fan-out repeats ids.
    # [[tenant, if_failed, [parent, …], [id, …]], …]
    ADD_PARENTS = """
        WITH g AS MATERIALIZED (
            SELECT e ->> 0 AS tenant, e ->> 1 AS if_failed, e -> 2 AS parents, e -> 3 AS ids
              FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e)
        INSERT INTO treadle.waits (id, tenant, kind, what, step, if_failed, met, since)
        SELECT c.value::uuid, g.tenant, 'parent', p.value, '', g.if_failed, 0, CAST(:now AS bigint)
          FROM g, jsonb_array_elements_text(g.ids) c, jsonb_array_elements_text(g.parents) p WHERE true
            ON CONFLICT DO NOTHING
    """
    # The jobs that exist of these, by tenant.
    PARENTS_OF_NEW = f"SELECT tenant, json_agg(id)::text FROM treadle.jobs WHERE id = {THESE} GROUP BY tenant"
    WAITS = """
        SELECT kind, what, step, if_failed, met, since, until,
               CASE WHEN kind = 'signal' THEN NULL ELSE (
                    SELECT coalesce(f.status, CASE WHEN l.id IS NOT NULL THEN 'processing'
                                                   WHEN r.parked = 'wait' THEN 'blocked' ELSE 'pending' END)
                      FROM treadle.jobs j LEFT JOIN treadle.finished f ON f.id = j.id AND f.tenant = j.tenant
                      LEFT JOIN treadle.leases l ON l.id = j.id AND l.tenant = j.tenant
                      LEFT JOIN treadle.ready r ON r.id = j.id AND r.tenant = j.tenant
                     WHERE j.id = CASE WHEN w.kind <> 'signal' THEN w.what::uuid END) END
          FROM treadle.waits w WHERE w.id = CAST(CAST(:id AS text) AS uuid) ORDER BY met, since, what LIMIT :limit
    """
    # How these jobs have ended, if they have.
    ENDS = f"""
        SELECT j.id::text, f.status, f.result::text, f.error
          FROM treadle.jobs j LEFT JOIN treadle.finished f ON f.id = j.id AND f.tenant = j.tenant WHERE j.id = {THESE}
    """
    # A job that another waits for, which has not ended.
    WAITS_FOR_IT = """
        SELECT w.id::text FROM treadle.waits w
         WHERE w.what = CAST(:id AS text) AND w.kind <> 'signal' AND NOT EXISTS (
               SELECT 1 FROM treadle.finished f WHERE f.id = w.id AND f.tenant = w.tenant) LIMIT 1
    """
    # The jobs that cannot go on before one of these has ended: they wait for it, or come next under its dedupe key.
    # (That as a value, not as a join: PostgreSQL might read all keys.) NULL: nobody comes next.
    BEHIND = f"""
        SELECT w.id::text FROM treadle.waits w WHERE w.what = {_THESE_TEXTS} AND w.met = 0 AND w.kind <> 'signal'
         UNION ALL
        SELECT (SELECT d.successor::text FROM treadle.dedupe d
                 WHERE d.tenant = j.tenant AND d.key = j.dedupe AND d.id = j.id)
          FROM treadle.jobs j WHERE j.id = {THESE}
    """
    DELETE_WAITS = f"DELETE FROM treadle.waits WHERE id = {THESE} OR (what = {_THESE_TEXTS} AND kind <> 'signal')"

    # ---- arrivals

    # Of these jobs, which have ended, those that others wait for.
    ARRIVE_ENDED = f"""
        INSERT INTO treadle.arrivals (at, kind, tenant, what)
        SELECT CAST(:now AS bigint), 'ended', tenant, json_agg(what)::text
          FROM (SELECT DISTINCT tenant, what FROM treadle.waits WHERE what = {_THESE_TEXTS} AND met = 0) w
         GROUP BY tenant RETURNING 1
    """
    # [[at, kind, tenant, what], …]
    ADD_ARRIVALS = """
        INSERT INTO treadle.arrivals (at, kind, tenant, what)
        SELECT (e ->> 0)::bigint, e ->> 1, e ->> 2, e ->> 3 FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
    """
    ARRIVALS = """
        SELECT seq, kind, tenant, what FROM treadle.arrivals WHERE at <= :now ORDER BY at, seq LIMIT :limit
           FOR UPDATE SKIP LOCKED
    """
    DELETE_ARRIVALS = f"DELETE FROM treadle.arrivals WHERE seq = {THESE}".replace("::uuid", "::bigint")
    NEXT_ARRIVAL = "SELECT at FROM treadle.arrivals ORDER BY at LIMIT 1"

    # ---- match

    # The jobs that wait for these jobs or signals, their tenants, and what each waits for: again, what may be over.
    WAITERS = f"""
        SELECT w.id::text, w.tenant, w.what FROM treadle.waits w
         WHERE w.what = {_THESE_TEXTS} AND w.met = 0 AND (w.kind = 'signal' OR EXISTS (
               SELECT 1 FROM treadle.finished f
                WHERE f.id = CASE WHEN w.kind <> 'signal' THEN w.what::uuid END AND f.tenant = w.tenant
                  AND (f.status = 'completed' OR w.if_failed <> 'hold')))
         LIMIT :limit
    """
    # What of these jobs or signals some jobs wait for.
    WHATS_OF_WAITERS = f"""
        SELECT DISTINCT what FROM treadle.waits
         WHERE what = {_THESE_WHATS} AND id = {THESE} AND met = 0
    """
    # Those that still wait; and the ones that no other transaction has locked, with what each is, and whether it holds
    # its dedupe key, or comes next and was never started. (That as a value, as in BEHIND.)
    WAITING = f"SELECT id::text FROM treadle.ready WHERE id = {THESE} AND parked = 'wait'"
    LOCK_WAITING = f"""
        SELECT id::text, type, queue, (
               SELECT (SELECT CASE WHEN d.id = j.id THEN 'holder' WHEN r.forgiven IS NULL THEN 'successor' END
                         FROM treadle.dedupe d
                        WHERE d.tenant = j.tenant AND d.key = j.dedupe AND j.id IN (d.id, d.successor))
                 FROM treadle.jobs j WHERE j.id = r.id AND j.tenant = r.tenant)
          FROM treadle.ready r WHERE id = {THESE} AND parked = 'wait' ORDER BY id FOR UPDATE OF r SKIP LOCKED
    """
    # As WaitState has it: these waits, or those of these jobs that may be over.
    _WAIT_STATE = """
        SELECT w.id::text, w.tenant, w.kind, w.what, w.step, w.if_failed, w.until,
               CASE WHEN w.kind <> 'signal' THEN (
                    SELECT f.status FROM treadle.finished f
                     WHERE f.id = CASE WHEN w.kind <> 'signal' THEN w.what::uuid END AND f.tenant = w.tenant) END,
               CASE WHEN w.kind = 'signal' THEN (
                    SELECT s.value::text FROM treadle.signals s WHERE s.tenant = w.tenant AND s.name = w.what) END
    """
    # [[id, tenant, what], …]
    STATES_OF_WAITS = f"""{_WAIT_STATE}
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
          JOIN treadle.waits w ON w.id = (e ->> 0)::uuid AND w.tenant = e ->> 1 AND w.what = e ->> 2
         WHERE w.met = 0
    """
    # Of a job with many parents, only those waits that are over: it may have thousands that are not.
    STATES_OF_JOBS = f"""{_WAIT_STATE}
          FROM treadle.waits w
         WHERE w.id = {THESE} AND w.met = 0 AND CASE WHEN w.kind = 'signal' THEN w.until <= :now OR EXISTS (
                   SELECT 1 FROM treadle.signals s WHERE s.tenant = w.tenant AND s.name = w.what)
               ELSE EXISTS (
                   SELECT 1 FROM treadle.finished f
                    WHERE f.id = CASE WHEN w.kind <> 'signal' THEN w.what::uuid END AND f.tenant = w.tenant
                      AND (f.status = 'completed' OR w.if_failed <> 'hold')) END
         ORDER BY w.id LIMIT :limit
    """
    # [[id, tenant, what, step], …]
    MEET = """
        UPDATE treadle.waits AS w SET met = 1 FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
         WHERE w.id = (e ->> 0)::uuid AND w.tenant = e ->> 1 AND w.what = e ->> 2 AND w.step = e ->> 3
    """
    # Jobs that have ended wait for nothing.
    STOP_WAITING = f"UPDATE treadle.waits SET met = 1 WHERE id = {THESE} AND met = 0"
    # Let those go that wait for nothing else. (The newest of many parents ends last, as a rule: it is looked at first.)
    LET_GO = f"""
        UPDATE treadle.ready AS r SET parked = '', updated_at = :now
         WHERE id = {THESE} AND parked = 'wait' AND (
               SELECT 1 FROM treadle.waits w WHERE w.id = r.id AND w.tenant = r.tenant AND w.met = 0
                ORDER BY w.what DESC LIMIT 1) IS NULL
        RETURNING type, queue
    """
    # ... and have to wait until the holders of their dedupe keys have ended.
    LET_GO_BEHIND = LET_GO.replace("parked = ''", "parked = 'key'")
    # The jobs of these that come next under their dedupe keys. (As in BEHIND.)
    SUCCESSORS = f"""
        SELECT j.id::text FROM treadle.jobs j
         WHERE j.id = {THESE} AND j.id = (
               SELECT d.successor FROM treadle.dedupe d WHERE d.tenant = j.tenant AND d.key = j.dedupe)
    """

    # ---- signals

    ADD_SIGNAL = """
        INSERT INTO treadle.signals (tenant, name, value, who, at)
        VALUES (CAST(:tenant AS text), CAST(:name AS text), CAST(CAST(:value AS text) AS json), CAST(:by AS text),
                CAST(:now AS bigint))
            ON CONFLICT DO NOTHING RETURNING 1
    """
    SIGNAL = """
        SELECT name, value::text, tenant, who, at FROM treadle.signals
         WHERE tenant = CAST(:tenant AS text) AND name = CAST(:name AS text)
    """
    # Old ones that nobody waits for.
    PRUNE_SIGNALS = """
        DELETE FROM treadle.signals WHERE (tenant, name) IN (
            SELECT tenant, name FROM treadle.signals s
             WHERE at < :before AND NOT EXISTS (
                   SELECT 1 FROM treadle.waits w WHERE w.what = s.name AND w.met = 0 AND w.tenant = s.tenant)
             ORDER BY at LIMIT :limit)
    """
