"""A person changes jobs: cancel, retry, run now, reschedule, complete, delete; and repairs rows."""

from treadle.stores.statements.parts import MOST_ATTEMPTS, STUCK, TALLIES, THESE


class Manage:
    """What changes one job, or rows that were broken by hand."""

    # ---- jobs

    FLAG_CANCEL = "UPDATE treadle.leases SET cancel = 1 WHERE id = CAST(:id AS uuid)"
    # Whether a job was not started in time.
    HAS_EXPIRED = "SELECT EXISTS (SELECT 1 FROM treadle.ready WHERE start_by <= :now AND parked <> 'key')"
    # Turn what ended otherwise into a completed job.
    COMPLETE_FINISHED = """
        UPDATE treadle.finished SET status = 'completed', completed_at = :now, error = NULL WHERE id = CAST(:id AS uuid)
    """
    # ... which its leaseholder did not end: a later outcome under that number was never written.
    CLEAR_LEASE = "UPDATE treadle.finished SET lease = 0 WHERE id = CAST(:id AS uuid)"
    # Let an ended job wait again, with no attempt made.
    RETRY = """
        INSERT INTO treadle.ready
               (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at, forgiven)
        SELECT id, queue, type, tenant, priority, :now, 0, 0, 0, :now,
               CASE WHEN EXISTS (SELECT 1 FROM treadle.steps s WHERE s.id = j.id AND s.tenant = j.tenant) THEN 0 END
          FROM treadle.jobs j WHERE id = CAST(:id AS uuid)
            ON CONFLICT DO NOTHING
    """
    # Let a job that waits wait no longer, for its time or for its dedupe key. One that is due keeps its place.
    RUN_NOW = """
        UPDATE treadle.ready SET run_at = least(run_at, CAST(:now AS bigint)), updated_at = :now,
               start_by = start_by - run_at + least(run_at, CAST(:now AS bigint)),
               parked = CASE WHEN parked = 'key' THEN '' ELSE parked END
         WHERE id = CAST(:id AS uuid) AND (run_at > :now OR parked = 'key')
    """
    DEDUPE_KEY = """
        SELECT tenant, dedupe, dedupe_rule FROM treadle.jobs WHERE id = CAST(:id AS uuid) AND dedupe IS NOT NULL
    """
    # A job that ends is nobody's successor.
    DROP_SUCCESSOR = """
        UPDATE treadle.dedupe SET successor = NULL
         WHERE (tenant, key) IN (SELECT tenant, dedupe FROM treadle.jobs WHERE id = CAST(:id AS uuid))
           AND successor = CAST(:id AS uuid)
    """
    # Move a job that waits to another time, priority or queue. NULL: as before.
    RESCHEDULE = """
        UPDATE treadle.ready SET run_at = coalesce(CAST(:run_at AS bigint), run_at), updated_at = :now,
               priority = coalesce(CAST(:priority AS integer), priority), queue = coalesce(CAST(:queue AS text), queue),
               start_by = start_by - run_at + coalesce(CAST(:run_at AS bigint), run_at),
               parked = CASE WHEN parked = 'fair' OR substr(parked, 1, 6) = 'limit:' THEN '' ELSE parked END
         WHERE id = CAST(:id AS uuid)
    """
    # ... for good: whatever puts it back to wait reads its priority here. The only change of a row of `jobs`.
    RESCHEDULE_JOB = """
        UPDATE treadle.jobs SET priority = coalesce(CAST(:priority AS integer), priority),
               queue = coalesce(CAST(:queue AS text), queue)
         WHERE id = CAST(:id AS uuid)
    """
    DELETE_JOBS = f"DELETE FROM treadle.jobs WHERE id = {THESE}"
    DELETE_FINISHED = f"DELETE FROM treadle.finished WHERE id = {THESE}"
    DELETE_ATTEMPTS = f"DELETE FROM treadle.attempts WHERE id = {THESE}"

    # ---- rows broken by hand

    # What is wrong with rows: for each defect how many have it, and one of them. First what takes no look at every job.
    DEFECTS = f"""
        SELECT code, count(*), min(id) FROM (
            SELECT 'stuck' AS code, l.id::text AS id FROM treadle.leases l WHERE {STUCK}
             UNION ALL
            SELECT 'ownerless', l.id::text FROM treadle.leases l
             WHERE l.worker <> '' AND NOT EXISTS (SELECT 1 FROM treadle.workers w WHERE w.id = l.worker)
             UNION ALL
            SELECT 'several', l.id::text FROM treadle.leases l
             WHERE EXISTS (SELECT 1 FROM treadle.ready r WHERE r.id = l.id AND r.tenant = l.tenant)
                OR EXISTS (SELECT 1 FROM treadle.finished f WHERE f.id = l.id AND f.tenant = l.tenant)
             UNION ALL
            SELECT 'number', l.id::text FROM treadle.leases l
             WHERE attempt NOT BETWEEN 0 AND {MOST_ATTEMPTS} OR snoozes NOT BETWEEN 0 AND {MOST_ATTEMPTS}
             UNION ALL
            SELECT 'count', type FROM {TALLIES} t GROUP BY status, type, queue HAVING sum(count) < 0) d
         GROUP BY code ORDER BY code
    """
    DEFECTS_OF_ALL = f"""
        SELECT code, count(*), min(id) FROM (
            SELECT 'several' AS code, r.id::text AS id FROM treadle.ready r
             WHERE EXISTS (SELECT 1 FROM treadle.finished f WHERE f.id = r.id AND f.tenant = r.tenant)
             UNION ALL
            SELECT 'nowhere', j.id::text FROM treadle.jobs j
             WHERE NOT EXISTS (SELECT 1 FROM treadle.finished f WHERE f.id = j.id AND f.tenant = j.tenant)
               AND NOT EXISTS (SELECT 1 FROM treadle.ready r WHERE r.id = j.id AND r.tenant = j.tenant)
               AND NOT EXISTS (SELECT 1 FROM treadle.leases l WHERE l.id = j.id AND l.tenant = j.tenant)
             UNION ALL
            SELECT 'orphaned', r.id::text FROM treadle.ready r
             WHERE NOT EXISTS (SELECT 1 FROM treadle.jobs j WHERE j.id = r.id AND j.tenant = r.tenant)
             UNION ALL
            SELECT 'number', r.id::text FROM treadle.ready r
             WHERE attempts NOT BETWEEN 0 AND {MOST_ATTEMPTS} OR snoozes NOT BETWEEN 0 AND {MOST_ATTEMPTS}) d
         GROUP BY code ORDER BY code
    """
    # A job is in one place.
    DROP_READY_OF_LEASED = """
        DELETE FROM treadle.ready WHERE (id, tenant) IN (SELECT id, tenant FROM treadle.leases) RETURNING id::text
        """
    DROP_LEASES_OF_FINISHED = """
        DELETE FROM treadle.leases AS l
         WHERE EXISTS (SELECT 1 FROM treadle.finished f WHERE f.id = l.id AND f.tenant = l.tenant)
        RETURNING id::text
        """

    # ---- copying

    # Notes about the whole database.
    META_KEYS = "SELECT key FROM treadle.meta"
    ADD_META = """
        INSERT INTO treadle.meta (key, value) VALUES (CAST(:key AS text), CAST(:at AS bigint))
            ON CONFLICT (key) DO NOTHING
    """
    DROP_META = "DELETE FROM treadle.meta WHERE key = CAST(:key AS text)"
    NEGATE_META = "UPDATE treadle.meta SET value = -value WHERE key = CAST(:key AS text)"
    # Whether a copy fills this database, and is not the transaction that asks. (The key: see shared/moved.py.)
    IS_FILLED = "SELECT EXISTS (SELECT 1 FROM treadle.meta WHERE substr(key, 1, 12) = 'filled from ' AND value > 0)"
    SOME_JOB = "SELECT id::text FROM treadle.jobs LIMIT 1"
    # How many jobs there are.
    COUNT_JOBS = "SELECT coalesce(sum(count), 0)::bigint FROM treadle.tallies WHERE status = 'all'"
