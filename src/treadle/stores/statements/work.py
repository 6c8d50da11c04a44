"""A job on its way: enqueue, claim, settle; and the workers that are alive."""

from treadle.stores.statements.parts import LEASE_COLUMNS, MOST, STUCK, THESE


class Work:
    """What workers and enqueuing programs say."""

    # ---- enqueue

    # The ids that an earlier try has stored already.
    EXISTING_IDS = f"SELECT id::text FROM treadle.jobs WHERE id = {THESE}"
    # Let no other transaction change who holds a key, nor count on the one who does.
    _KEY = "SELECT 1 FROM treadle.dedupe WHERE tenant = CAST(:tenant AS text) AND key = CAST(:key AS text)"
    LOCK_KEY = f"{_KEY} FOR UPDATE"
    # ... of which the holder has let go. Others may count on that holder still: they find out that it has started.
    LOCK_FREE_KEY = f"{_KEY} FOR NO KEY UPDATE"
    # A key as KeyState has it: its holder, and where that is. A statement of its own, after the lock: in one with it,
    # what it sees would be older than the lock. A job with steps is in the middle of its work, though it waits.
    KEY_STATE = """
        SELECT id::text, until_started, since, expires_at, successor::text,
               CASE WHEN EXISTS (SELECT 1 FROM treadle.jobs p WHERE p.id = d.id AND p.tenant = d.tenant)
                    THEN coalesce(
                        (SELECT CASE WHEN forgiven IS NOT NULL THEN 'running'
                                     WHEN attempts = 0 AND snoozes = 0 AND suspicion = 0 THEN 'fresh'
                                     ELSE 'waiting' END
                           FROM treadle.ready p WHERE p.id = d.id AND p.tenant = d.tenant),
                        (SELECT 'running' FROM treadle.leases p WHERE p.id = d.id AND p.tenant = d.tenant),
                        (SELECT 'ended' FROM treadle.finished p WHERE p.id = d.id AND p.tenant = d.tenant), 'nowhere')
                    ELSE 'gone' END
          FROM treadle.dedupe d WHERE tenant = CAST(:tenant AS text) AND key = CAST(:key AS text)
    """
    # Write who holds a key, and who comes next.
    SET_KEY = """
        UPDATE treadle.dedupe
           SET id = CAST(CAST(:id AS text) AS uuid), until_started = CAST(:until_started AS integer),
               since = CAST(:since AS bigint), expires_at = CAST(:expires_at AS bigint),
               successor = CAST(CAST(:successor AS text) AS uuid)
         WHERE tenant = CAST(:tenant AS text) AND key = CAST(:key AS text)
    """
    # A job that waits and holds its key. Nobody can claim it until we commit. First the key: who has locked it may wait
    # for the job, and must not wait for us.
    SHARE_READY = f"""
        WITH held AS MATERIALIZED ({_KEY} AND id = CAST(CAST(:id AS text) AS uuid) FOR KEY SHARE)
        SELECT type, queue FROM treadle.ready
         WHERE id = CAST(CAST(:id AS text) AS uuid) AND EXISTS (SELECT 1 FROM held) FOR SHARE
    """
    # A job that waits, which nobody else can claim or end.
    LOCK_READY = "SELECT type, queue, parked FROM treadle.ready WHERE id = CAST(CAST(:id AS text) AS uuid) FOR UPDATE"
    # A successor is parked until the holder of its key has ended. Then it waits for its time only. One that waits for
    # its parents stays blocked: if these end first, LET_GO_BEHIND parks it.
    PARK_SUCCESSOR = """
        UPDATE treadle.ready SET parked = 'key' WHERE id = CAST(CAST(:id AS text) AS uuid) AND parked <> 'wait'
    """
    WAKE_SUCCESSOR = """
        UPDATE treadle.ready SET parked = '', updated_at = CAST(:now AS bigint)
         WHERE id = CAST(CAST(:successor AS text) AS uuid) AND parked = 'key' RETURNING queue
    """
    IS_STORED = "SELECT 1 FROM treadle.jobs WHERE id = CAST(CAST(:id AS text) AS uuid)"
    # What is declared of types now, and what was before.
    DECLARED_TYPES = "SELECT type, spec, known FROM treadle.types"
    # ... which nobody else changes until we commit.
    LOCK_DECLARED_TYPES = f"""
        {DECLARED_TYPES} WHERE type IN (
            SELECT value FROM jsonb_array_elements_text(CAST(:types AS text)::jsonb))
         ORDER BY type FOR UPDATE
    """
    # Say how types are run.
    # [[type, queue, priority, max_attempts, concurrency, timeout, redact, limits, fair, arguments, spec, known], …]
    PUBLISH = """
        INSERT INTO treadle.types
               (type, queue, priority, max_attempts, concurrency, timeout, redact, limits, fair, arguments,
                spec, known, updated_at)
        SELECT e ->> 0, e ->> 1, (e ->> 2)::integer, (e ->> 3)::integer, (e ->> 4)::integer, (e ->> 5)::bigint,
               e ->> 6, e ->> 7, e ->> 8, e ->> 9, e ->> 10, e ->> 11,
               CAST(:now AS bigint)
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e WHERE true
            ON CONFLICT (type) DO UPDATE SET queue = excluded.queue, priority = excluded.priority,
               max_attempts = excluded.max_attempts, concurrency = excluded.concurrency, timeout = excluded.timeout,
               redact = excluded.redact, limits = excluded.limits, fair = excluded.fair,
               arguments = excluded.arguments, spec = excluded.spec, known = excluded.known,
               updated_at = excluded.updated_at
    """
    POLICIES = """
        SELECT type, queue, priority, max_attempts, concurrency, timeout, redact, limits, fair FROM treadle.types
    """

    ARGUMENTS = "SELECT arguments FROM treadle.types WHERE type = :type"

    # ---- claim

    # Who declares this worker dead has to wait until its claim is committed, and finds all of its leases.
    # 1 if it may claim, 0 if somebody wants it to be quiet.
    IS_ALIVE = "SELECT (quiet_at IS NULL)::integer FROM treadle.workers WHERE id = :worker FOR KEY SHARE"
    DELETE_READY = f"DELETE FROM treadle.ready WHERE id = {THESE}"
    # As ClaimedJob has it: a worker's leases, the lease of one job, and those that are stuck. These are locked, so that
    # their owner cannot move the deadline in between; one that it moves or settles just now is left to it.
    _LEASES = f"""
        SELECT json_build_array({LEASE_COLUMNS},
                                coalesce((SELECT 2 FROM treadle.limited_leases k WHERE k.id = l.id LIMIT 1), 0))::text
          FROM treadle.leases l JOIN treadle.jobs j ON j.id = l.id AND j.tenant = l.tenant
        """
    LEASES_OF_WORKER = f"{_LEASES} WHERE l.worker = :worker"
    LEASE_OF_JOB = f"{_LEASES} WHERE l.id = CAST(:id AS uuid)"
    STUCK_LEASES = f"{_LEASES} WHERE l.id = {THESE} AND {STUCK} FOR UPDATE OF l SKIP LOCKED"
    # Which those are. In one statement with the above, a planner that expects many of them would read all jobs.
    STUCK_IDS = f"SELECT l.id::text FROM treadle.leases l WHERE {STUCK}"
    DEAD_LEASEHOLDERS = """
        SELECT DISTINCT worker FROM treadle.leases l
         WHERE worker <> '' AND NOT EXISTS (SELECT 1 FROM treadle.workers w WHERE w.id = l.worker)
    """

    # ---- settle

    # Which of [[id, number, token, status], …] ended this way, under this very lease: a repeated commit, not a loss.
    WRITTEN_BEFORE = """
        SELECT f.lease, f.token FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
          JOIN treadle.finished f ON f.id = (e ->> 0)::uuid AND f.lease = (e ->> 1)::bigint
                                 AND f.token = (e ->> 2)::bigint AND f.status = e ->> 3
        """
    # Leases of jobs that were deleted by hand: there is nothing left to run. (No join, which might read all jobs.)
    DELETE_ORPHANED_LEASES = """
        DELETE FROM treadle.leases AS l
         WHERE (SELECT 1 FROM treadle.jobs j WHERE j.id = l.id AND j.tenant = l.tenant) IS NULL
        RETURNING type, queue
    """
    SAVE_PROGRESS = """
        UPDATE treadle.leases SET fraction = :fraction, message = :message
         WHERE id = CAST(:id AS uuid) AND lease = :number AND token = :token
    """
    EXTEND = """
        UPDATE treadle.leases SET deadline = :deadline
         WHERE id = CAST(:id AS uuid) AND lease = :number AND token = :token
    """

    # ---- liveness

    REGISTER = """
        INSERT INTO treadle.workers
               (id, name, beats, started_at, seen_at, concurrency, queues, types, host, version, schedules)
        VALUES (:id, :name, 0, :now, :now, :concurrency, :queues, :types, :host, :version, :schedules)
    """
    # A count that was broken by hand starts again: it must not stand still.
    BEAT = f"""
        UPDATE treadle.workers SET beats = CASE WHEN beats < {MOST} THEN beats + 1 ELSE 0 END, seen_at = :now,
               stalled_at = CAST(:now AS bigint) - CAST(:stalled_for AS bigint)
         WHERE id = :worker
    """
    BEATS = "SELECT id, beats, quiet_at FROM treadle.workers"
    SET_QUIET = "UPDATE treadle.workers SET quiet_at = CAST(:quiet_at AS bigint) WHERE id = :worker"
    FLAGS_OF_WORKER = "SELECT lease, cancel, deadline FROM treadle.leases WHERE worker = :worker"
    # [[id, number, token, deadline], …]
    MOVE_DEADLINES = """
        UPDATE treadle.leases AS l SET deadline = (e ->> 3)::bigint
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
         WHERE l.id = (e ->> 0)::uuid AND l.lease = (e ->> 1)::bigint AND l.token = (e ->> 2)::bigint
        """
    UNREGISTER = """
        DELETE FROM treadle.workers
         WHERE id = :worker AND (CAST(:beats AS bigint) IS NULL OR beats = CAST(:beats AS bigint))
    """
    UNREGISTER_SILENT = "DELETE FROM treadle.workers WHERE seen_at < :before"
