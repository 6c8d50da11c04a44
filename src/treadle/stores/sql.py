"""The SQL of the verbs that is the same in every database. The rest is in the `sql.py` of each database."""

from __future__ import annotations

from collections.abc import Callable

from treadle.filters import MOST_SEARCHED
from treadle.job import Status
from treadle.stores.rows import ScheduleRow

MOST_ATTEMPTS = 10**9
MOST = 10**15
"""No job has more attempts or snoozes, and no count or time in microseconds is larger, unless it was broken by hand.
Then it must not overflow: that would stop the whole batch."""

_COUNT = f"sum(least(greatest(count, -{MOST}), {MOST}))"
_BY_STATUS = ", ".join(f"coalesce({_COUNT} FILTER (WHERE status = '{status}'), 0)::bigint" for status in Status)
SUMS_OF_USAGE = ", ".join(
    f"sum(least(greatest({column}, 0), {MOST}))::bigint"
    for column in ("runs", "completed", "failures", "busy", "waiting")
)

# The one condition for a lease `l` that is stuck: it is not counted against limits, and anyone may reclaim it. Its
# owner goes first. A step of the clock takes nothing from a living owner: at its next beat it moves the deadline, and
# until then its last beat is not later than the deadline.
STUCK = """
    CASE WHEN l.deadline < :now - CASE WHEN l.worker = '' THEN 0 ELSE :grace END
         THEN l.worker = '' OR NOT EXISTS (SELECT 1 FROM treadle.workers w
                                            WHERE w.id = l.worker AND w.seen_at <= l.deadline + :grace)
         ELSE false END
"""

# A schedule has a column per field of ScheduleRow.
_NUMBERS = ("every", "anchor", "revision", "next_at", "paused_at", "paused_until", "last_moment", "skipped_at")
_TYPES = dict.fromkeys(ScheduleRow.__struct_fields__, "text")
_TYPES |= dict.fromkeys((*_NUMBERS, "created_at", "updated_at"), "bigint")
_TYPES |= dict.fromkeys(("priority", "max_attempts"), "integer")
_OF_SCHEDULE = ", ".join(_TYPES)
_S_OF_SCHEDULE = ", ".join(f"s.{column}" for column in _TYPES)
_NEW_SCHEDULE = ", ".join(f"CAST(:{column} AS {type})" for column, type in _TYPES.items())
_SET_SCHEDULE = ", ".join(f"{column} = CAST(:{column} AS {type})" for column, type in _TYPES.items())
# The rows that a JSON array of ids names.
THESE = "ANY(ARRAY(SELECT value::uuid FROM jsonb_array_elements_text(CAST(:ids AS text)::jsonb)))"

# The fields of ClaimedJob, of a lease `l` and its job `j`.
LEASE_COLUMNS = """
       l.id::text, l.lease, l.token, l.type, l.queue, l.tenant, j.subject, j.payload::text, l.attempt, j.max_attempts,
       l.snoozes, l.suspicion, l.run_at, l.started_at, l.deadline, (j.dedupe IS NOT NULL)::integer, j.traceparent,
       j.fired_at"""

# The dedupe rule of a job `j`: NULL without a key, '' for a key alone.
DEDUPE_RULE = "CASE WHEN j.dedupe IS NOT NULL THEN coalesce(j.dedupe_rule, '') END"

# A finished job `f` that no throttled key needs: while the key is held, the job is what an enqueue returns.
UNTHROTTLED = """
    (NOT EXISTS (SELECT 1 FROM treadle.dedupe WHERE expires_at > :now) OR coalesce((
        SELECT d.expires_at FROM treadle.jobs j JOIN treadle.dedupe d ON d.tenant = j.tenant AND d.key = j.dedupe
         WHERE j.id = f.id AND j.tenant = f.tenant AND d.id = f.id), 0) <= :now)
"""

# The tenants of a range by turns: from the one after :last on, and around to :last; a jump over the index for each.
_OF_RANGE = "r.queue = :queue AND r.type = :type AND r.priority = :priority"
_NEXT_TENANT = f"SELECT r.tenant FROM treadle.ready r WHERE {_OF_RANGE} AND r.parked = 'fair'"
_WALK = f"""
walk (tenant, lap, n) AS (
    SELECT CAST(:last AS text) COLLATE "C", 0, 0
    UNION ALL
    SELECT CASE WHEN w.tenant IS NULL THEN ({_NEXT_TENANT} ORDER BY r.tenant LIMIT 1)
                ELSE ({_NEXT_TENANT} AND r.tenant > w.tenant ORDER BY r.tenant LIMIT 1) END,
           CASE WHEN w.tenant IS NULL THEN 1 ELSE lap END, n + 1
      FROM walk w WHERE n <= :tenants AND (lap = 0 OR w.tenant <= :last)
),
turn AS MATERIALIZED (
    SELECT tenant, n FROM walk WHERE n > 0 AND tenant IS NOT NULL AND (lap = 0 OR tenant <= :last))
"""
_LOWER = "SELECT r.priority FROM treadle.ready r WHERE r.queue = :queue AND r.type = :type AND r.priority < :priority"


class Statements:
    """The statements that all databases have, written as PostgreSQL has them. A subclass per database adds its own."""

    def __init__(self, translate: Callable[[str], str] = str) -> None:
        for name, sql in vars(Statements).items():
            if name.isupper():
                setattr(self, name, translate(sql))

    # ---- enqueue

    # The ids that an earlier try has stored already.
    EXISTING_IDS = f"SELECT id::text FROM treadle.jobs WHERE id = {THESE}"
    # Let no other transaction change who holds a key, nor count on the one who does.
    _KEY = "SELECT 1 FROM treadle.dedupe WHERE tenant = CAST(:tenant AS text) AND key = CAST(:key AS text)"
    LOCK_KEY = f"{_KEY} FOR UPDATE"
    # ... of which the holder has let go. Others may count on that holder still: they find out that it has started.
    LOCK_FREE_KEY = f"{_KEY} FOR NO KEY UPDATE"
    # A key as KeyState has it: its holder, and where that is. A statement of its own, after the lock: in one with it,
    # what it sees would be older than the lock.
    KEY_STATE = """
        SELECT id::text, until_started, since, expires_at, successor::text,
               CASE WHEN EXISTS (SELECT 1 FROM treadle.jobs p WHERE p.id = d.id AND p.tenant = d.tenant)
                    THEN coalesce(
                        (SELECT CASE WHEN attempts = 0 AND snoozes = 0 AND suspicion = 0 THEN 'fresh' ELSE 'waiting' END
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
    LOCK_READY = "SELECT type, queue FROM treadle.ready WHERE id = CAST(CAST(:id AS text) AS uuid) FOR UPDATE"
    # A successor is parked until the holder of its key has ended. Then it waits for its time only.
    PARK_SUCCESSOR = "UPDATE treadle.ready SET parked = 'key' WHERE id = CAST(CAST(:id AS text) AS uuid)"
    WAKE_SUCCESSOR = """
        UPDATE treadle.ready SET parked = '', updated_at = CAST(:now AS bigint)
         WHERE id = CAST(CAST(:successor AS text) AS uuid) AND parked = 'key' RETURNING queue
    """
    IS_STORED = "SELECT 1 FROM treadle.jobs WHERE id = CAST(CAST(:id AS text) AS uuid)"
    # Say how a type is run.
    PUBLISH = """
        INSERT INTO treadle.types
               (type, queue, priority, max_attempts, concurrency, timeout, redact, limits, fair, arguments,
                updated_at)
        VALUES (:type, :queue, :priority, :max_attempts, :concurrency, :timeout, :redact, :limits, :fair, :arguments,
                :now)
            ON CONFLICT (type) DO UPDATE SET queue = excluded.queue, priority = excluded.priority,
               max_attempts = excluded.max_attempts, concurrency = excluded.concurrency, timeout = excluded.timeout,
               redact = excluded.redact, limits = excluded.limits, fair = excluded.fair,
               arguments = excluded.arguments, updated_at = excluded.updated_at
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
                                2 * (EXISTS (SELECT 1 FROM treadle.lease_keys k WHERE k.id = l.id))::integer)::text
          FROM treadle.leases l JOIN treadle.jobs j ON j.id = l.id AND j.tenant = l.tenant
        """
    LEASES_OF_WORKER = f"{_LEASES} WHERE l.worker = :worker"
    LEASE_OF_JOB = f"{_LEASES} WHERE l.id = CAST(:id AS uuid)"
    STUCK_LEASES = f"{_LEASES} WHERE {STUCK} FOR UPDATE OF l SKIP LOCKED"
    DEAD_LEASEHOLDERS = """
        SELECT DISTINCT worker FROM treadle.leases l
         WHERE worker <> '' AND NOT EXISTS (SELECT 1 FROM treadle.workers w WHERE w.id = l.worker)
    """

    # A range by turns: of each tenant so many due jobs that they are :wanted in all, and at least :each. The next lower
    # priority, in order and by turns; and whether jobs of a fair type are due that do not wait by turns yet.
    READ_TURNS = f"""
        WITH RECURSIVE {_WALK}
        SELECT (SELECT coalesce(json_agg(json_build_array(t.tenant, to_json((
                    SELECT coalesce(json_agg(json_build_array(d.run_at, d.id)), '[]') FROM (
                        SELECT r.run_at, r.id FROM treadle.ready r
                         WHERE {_OF_RANGE} AND r.tenant = t.tenant AND r.run_at <= :now AND r.parked = 'fair'
                         ORDER BY r.run_at, r.id
                         LIMIT greatest(:each, (SELECT (:wanted + count(*) - 1) / greatest(count(*), 1) FROM turn))
                        ) d)))), '[]')::text FROM (SELECT tenant FROM turn ORDER BY n) t),
               ({_LOWER} AND r.parked = '' ORDER BY r.priority DESC LIMIT 1),
               ({_LOWER} AND r.parked = 'fair' ORDER BY r.priority DESC LIMIT 1),
               EXISTS (SELECT 1 FROM treadle.types t WHERE t.type = :type AND t.fair <> '')
               AND EXISTS (SELECT 1 FROM treadle.ready r WHERE {_OF_RANGE} AND r.run_at <= :now AND r.parked = '')
    """

    # ---- settle

    # Which of [[id, number, token, status], …] ended this way, under this very lease: a repeated commit, not a loss.
    WRITTEN_BEFORE = """
        SELECT f.lease, f.token FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
          JOIN treadle.finished f ON f.id = (e ->> 0)::uuid AND f.lease = (e ->> 1)::bigint
                                 AND f.token = (e ->> 2)::bigint AND f.status = e ->> 3
        """
    # Leases of jobs that were deleted by hand: there is nothing left to run.
    DELETE_ORPHANED_LEASES = """
        DELETE FROM treadle.leases AS l
         WHERE NOT EXISTS (SELECT 1 FROM treadle.jobs j WHERE j.id = l.id AND j.tenant = l.tenant)
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
               stalled_at = CAST(:stalled_at AS bigint)
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
    WORKERS = """
        SELECT id, name, concurrency, queues, types, host, version, beats, started_at, seen_at, stalled_at, quiet_at,
               schedules
          FROM treadle.workers ORDER BY started_at, id
    """

    # ---- manage

    ATTEMPTS = """
        SELECT attempt, lease, worker, started_at, ended_at, outcome, error, traceback
          FROM treadle.attempts WHERE id = CAST(:id AS uuid) ORDER BY lease
    """
    FLAG_CANCEL = "UPDATE treadle.leases SET cancel = 1 WHERE id = CAST(:id AS uuid)"
    # End a job that waits.
    FINISH_READY = """
        INSERT INTO treadle.finished
               (id, lease, token, status, queue, type, tenant, attempts, snoozes, worker, run_at, completed_at, error)
        SELECT id, 0, 0, CAST(:status AS text), queue, type, tenant, attempts, snoozes, '', run_at,
               CAST(:now AS bigint), CAST(:error AS text)
          FROM treadle.ready WHERE id = CAST(CAST(:id AS text) AS uuid)
    """
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
        INSERT INTO treadle.ready (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at)
        SELECT id, queue, type, tenant, priority, :now, 0, 0, 0, :now FROM treadle.jobs WHERE id = CAST(:id AS uuid)
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
    # Everything there is to know of some jobs; `to_job` in read.py has the names.
    _LAST_ERROR = """CASE WHEN r.attempts > 0 OR r.suspicion > 0 THEN
                (SELECT error FROM treadle.attempts a WHERE a.id = j.id AND a.tenant = j.tenant
                  ORDER BY lease DESC LIMIT 1) END"""
    _JOB = f"""
        SELECT j.id::text, j.type, j.queue, j.tenant, j.subject, j.payload::text, j.priority, j.max_attempts,
               j.created_at, r.run_at, r.attempts, r.snoozes, r.updated_at, r.start_by, r.parked = 'key',
               l.lease, l.run_at, l.attempt, l.snoozes, l.worker, l.started_at, l.fraction, l.message,
               f.status, f.run_at, f.attempts, f.snoozes, f.worker, f.started_at, f.completed_at, f.error,
               f.result::text, {_LAST_ERROR}, {DEDUPE_RULE}, j.schedule, j.fired_at
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
    DELETE_JOBS = f"DELETE FROM treadle.jobs WHERE id = {THESE}"
    DELETE_FINISHED = f"DELETE FROM treadle.finished WHERE id = {THESE}"
    DELETE_ATTEMPTS = f"DELETE FROM treadle.attempts WHERE id = {THESE}"
    # Where there is no tally: every job, counted one by one.
    COUNT_EACH = """
        SELECT coalesce(f.status, CASE WHEN l.id IS NULL THEN 'pending' ELSE 'processing' END),
               j.type, j.queue, j.tenant, j.subject, count(*)
          FROM treadle.jobs j LEFT JOIN treadle.leases l ON l.id = j.id AND l.tenant = j.tenant
          LEFT JOIN treadle.finished f ON f.id = j.id AND f.tenant = j.tenant
         GROUP BY 1, 2, 3, 4, 5
    """

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
            SELECT 'count', type FROM treadle.tallies GROUP BY status, type, queue HAVING sum(count) < 0) d
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

    # ---- limits

    # [[name, key, …], …]
    KEYS = "SELECT e ->> 0 AS name, e ->> 1 AS key FROM jsonb_array_elements(CAST(:keys AS text)::jsonb) e"
    # What the types declare, the newest declaration first; also those that declare nothing, and that somebody limits.
    LIMITED_TYPES = """
        SELECT type, concurrency, limits FROM treadle.types t
         WHERE concurrency IS NOT NULL OR limits <> '[]'
            OR EXISTS (SELECT 1 FROM treadle.limits c WHERE c.name = 'type:' || t.type AND c.key = '')
         ORDER BY updated_at DESC, type
    """
    LIMIT_CHANGES = """
        SELECT name, key, concurrency, rate, who, at FROM treadle.limits WHERE name <> '' ORDER BY name, key
    """
    CHANGE_LIMIT = """
        INSERT INTO treadle.limits AS l (name, key, concurrency, rate, who, at)
        VALUES (:name, :key, CAST(:concurrency AS integer), CAST(:rate AS text), :who, :now)
            ON CONFLICT (name, key) DO UPDATE SET concurrency = coalesce(excluded.concurrency, l.concurrency),
               rate = coalesce(excluded.rate, l.rate), who = excluded.who, at = excluded.at
    """
    UNSET_LIMIT = "DELETE FROM treadle.limits WHERE name = :name AND key = :key"
    # Claims read the limits again when this has changed.
    LIMITS_VERSION = "SELECT coalesce(max(at), 0) FROM treadle.limits WHERE name = ''"
    LIMITS_CHANGED = """
        INSERT INTO treadle.limits AS l (name, key, who, at) VALUES ('', '', '', 1)
            ON CONFLICT (name, key) DO UPDATE SET at = l.at + 1
    """
    # How much of each key is used: jobs that run, its bucket, tokens given back since, and until when it is held back.
    # A stuck lease is not counted.
    _BUCKET = """FROM treadle.buckets b WHERE b.name = e.name AND b.key = e.key AND b.full_at IS NOT NULL
                  ORDER BY b.seq DESC LIMIT 1"""
    KEY_USES = f"""
        SELECT e.name, e.key,
               CASE WHEN substr(e.name, 1, 5) = 'type:'
                    THEN (SELECT count(*) FROM treadle.leases l WHERE l.type = substr(e.name, 6) AND NOT {STUCK})
                    ELSE (SELECT count(*) FROM treadle.lease_keys k
                            JOIN treadle.leases l ON l.id = k.id AND l.tenant = k.tenant AND l.lease = k.lease
                           WHERE k.name = e.name AND k.key = e.key AND NOT {STUCK}) END,
               (SELECT full_at {_BUCKET}),
               (SELECT count(*) FROM treadle.buckets r
                 WHERE r.name = e.name AND r.key = e.key AND r.full_at IS NULL AND r.seq > (SELECT seq {_BUCKET})),
               (SELECT max(o.at) FROM treadle.openings o WHERE o.name = e.name AND o.key = e.key AND o.held = 1),
               (SELECT 1 FROM treadle.ready r
                 WHERE r.parked = 'limit:' || e.name || {{unit}} || e.key AND r.parked > 'fair' LIMIT 1)
          FROM ({{keys}}) e
    """
    # [[name, key, id, lease, tenant], …]
    ADD_LEASE_KEYS = """
        INSERT INTO treadle.lease_keys (name, key, id, lease, tenant)
        SELECT e ->> 0, e ->> 1, (e ->> 2)::uuid, (e ->> 3)::bigint, e ->> 4
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e WHERE true
            ON CONFLICT (name, key, id, tenant) DO UPDATE SET lease = excluded.lease
    """
    # [[name, key, full_at], …]
    ADD_BUCKETS = """
        INSERT INTO treadle.buckets (name, key, full_at)
        SELECT e ->> 0, e ->> 1, (e ->> 2)::bigint FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
    """
    # Of keys for which rows are parked, unless there is one to come. [[name, key, at, what for], …]
    ADD_OPENINGS = """
        INSERT INTO treadle.openings (name, key, at, held)
        SELECT n.name, n.key, n.at, 0
          FROM (SELECT e ->> 0 AS name, e ->> 1 AS key, (e ->> 2)::bigint AS at, e ->> 3 AS parked
                  FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e) n
         WHERE (SELECT 1 FROM treadle.ready r WHERE r.parked = n.parked AND r.parked > 'fair' LIMIT 1) = 1
           AND NOT (n.at > :now AND coalesce((SELECT max(o.at) FROM treadle.openings o
                                               WHERE o.name = n.name AND o.key = n.key), 0) > :now)
    """
    RUNNING_BY_LIMIT = "SELECT name, count(*) FROM treadle.lease_keys GROUP BY name"
    # Buckets that are full say nothing, and so do tokens that were given back to them.
    PRUNE_BUCKETS = """
        DELETE FROM treadle.buckets AS b WHERE coalesce(full_at, (
            SELECT max(n.full_at) FROM treadle.buckets n WHERE n.name = b.name AND n.key = b.key), 0) < :now
    """
    # Whether there is anything to prune, or to come to.
    HAS_LIMITS = """
        SELECT EXISTS (SELECT 1 FROM treadle.lease_keys) OR EXISTS (SELECT 1 FROM treadle.buckets)
            OR EXISTS (SELECT 1 FROM treadle.ready WHERE parked > 'limit:' AND parked < 'limit;' AND parked > 'fair')
    """
    # Keys of leases that were deleted by hand.
    PRUNE_LEASE_KEYS = """
        DELETE FROM treadle.lease_keys AS k
         WHERE NOT EXISTS (SELECT 1 FROM treadle.leases l
                            WHERE l.id = k.id AND l.tenant = k.tenant AND l.lease = k.lease)
    """
    DELETE_OPENINGS = f"DELETE FROM treadle.openings WHERE seq = {THESE}".replace("::uuid", "::bigint")
    NEXT_OPENING = "SELECT min(at) FROM treadle.openings"
    # Nothing of this key starts before.
    HOLD_KEY = """
        INSERT INTO treadle.openings (name, key, at, held)
        VALUES (CAST(:name AS text), CAST(:key AS text), CAST(:at AS bigint), 1)
    """
    # A claim of this key was not started.
    GIVE_BACK_TOKEN = """
        INSERT INTO treadle.buckets (name, key, full_at) VALUES (CAST(:name AS text), CAST(:key AS text), NULL)
    """
    LEASE_KEYS_OF = "SELECT name, key FROM treadle.lease_keys WHERE id = CAST(CAST(:id AS text) AS uuid)"

    # ---- rows broken by hand: a job is in one place

    DROP_READY_OF_LEASED = """
        DELETE FROM treadle.ready WHERE (id, tenant) IN (SELECT id, tenant FROM treadle.leases) RETURNING id::text
        """
    DROP_LEASES_OF_FINISHED = """
        DELETE FROM treadle.leases AS l
         WHERE EXISTS (SELECT 1 FROM treadle.finished f WHERE f.id = l.id AND f.tenant = l.tenant)
        RETURNING id::text, type, queue
        """

    # ---- pauses

    # One that has ended keeps nothing of itself.
    PAUSE = """
        INSERT INTO treadle.pauses AS p (tenant, queue, type, who, reason, since, until, draining)
        VALUES (:tenant, :queue, :type, :who, :reason, :now, CAST(:until AS bigint), :draining)
            ON CONFLICT (tenant, queue, type) DO UPDATE SET who = excluded.who, reason = excluded.reason,
               since = CASE WHEN p.until <= excluded.since THEN excluded.since ELSE p.since END,
               until = excluded.until, draining = excluded.draining
    """
    PAUSES = "SELECT tenant, queue, type, who, reason, since, until, draining FROM treadle.pauses ORDER BY 6, 1, 2, 3"
    # It ends now. What is parked for a tenant is put back in chunks, and then its row is deleted.
    END_PAUSE = """
        UPDATE treadle.pauses SET until = :now WHERE tenant = :tenant AND queue = :queue AND type = :type
    """
    # Pauses that have ended and for which nothing is parked. A claim does it, which may hold locks: it does not wait.
    DROP_PAUSES = """
        DELETE FROM treadle.pauses WHERE (tenant, queue, type) IN (
            SELECT tenant, queue, type FROM treadle.pauses p
             WHERE until <= :now AND NOT EXISTS (
                   SELECT 1 FROM treadle.ready r WHERE r.parked = 'tenant:' || p.tenant AND r.parked > 'fair')
               FOR UPDATE SKIP LOCKED)
    """
    # What rows are parked for, after this and before that: a jump over the index for each.
    PARKED_FOR = """
        WITH RECURSIVE held (parked) AS (
            SELECT (SELECT parked FROM treadle.ready
                     WHERE parked > 'fair' AND parked > CAST(:after AS text) ORDER BY parked LIMIT 1)
            UNION ALL
            SELECT (SELECT r.parked FROM treadle.ready r WHERE r.parked > 'fair' AND r.parked > held.parked
                     ORDER BY r.parked LIMIT 1) FROM held WHERE parked IS NOT NULL
        )
        SELECT parked FROM held WHERE parked < CAST(:before AS text) LIMIT :most
    """
    # How many jobs of what is paused still run.
    RUNNING_OF = """
        SELECT count(*) FROM treadle.leases
         WHERE tenant = CAST(:tenant AS text) OR queue = CAST(:queue AS text) OR type = CAST(:type AS text)
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
    # The workers that have jobs leased of a type, or under a key of a limit: how many, and one or two of them.
    HOLDERS_OF_TYPE = f"""
        SELECT worker, count(*), min(l.id::text), max(l.id::text) FROM treadle.leases l
         WHERE type = :type AND NOT {STUCK} GROUP BY worker
    """
    HOLDERS_OF_KEY = f"""
        SELECT worker, count(*), min(l.id::text), max(l.id::text) FROM treadle.lease_keys k
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
    # If a job waits by turns: how many tenants take turns with it, and how many jobs of its own come before it.
    TURNS = f"""
        WITH RECURSIVE {_WALK}
        SELECT (SELECT count(*) FROM turn), (SELECT count(*) FROM (SELECT 1 FROM treadle.ready r
            WHERE {_OF_RANGE} AND r.tenant = :tenant AND r.parked = 'fair'
              AND (r.run_at, r.id) < (:run_at, CAST(:id AS uuid)) LIMIT :limit) a)
         WHERE EXISTS (SELECT 1 FROM treadle.ready WHERE id = CAST(:id AS uuid) AND parked = 'fair')
    """

    # ---- stats

    # Counts from the tallies. {which}: conditions. {by}: some columns, each with a comma behind it.
    TALLIED = "SELECT {by} sum(count)::bigint FROM treadle.tallies t WHERE {which} GROUP BY {group}"
    # How many queues and types there are, those with the most jobs, and how many of these have each status.
    LARGEST_QUEUES = f"""
        SELECT count(*) OVER (), queue, type, {_BY_STATUS} FROM treadle.tallies t WHERE {{which}}
         GROUP BY queue, type HAVING sum(count) <> 0 ORDER BY sum(count) DESC, queue, type LIMIT :queues
    """
    # A JSON list of pairs, as a table.
    PAIRS = "SELECT e ->> 0 AS queue, e ->> 1 AS type FROM jsonb_array_elements(CAST(:pairs AS text)::jsonb) e"
    # Of each (queue, type, priority) that waits: since when the oldest is due, when the next is, how many are later.
    # Parked jobs are due, but nobody could take them. {pairs}: the queues and types.
    _LEVELS = """
        WITH RECURSIVE level (queue, type, priority) AS (
            SELECT queue, type, (SELECT priority FROM treadle.ready r WHERE r.queue = t.queue AND r.type = t.type
                                    AND r.parked = '' ORDER BY priority DESC LIMIT 1)
              FROM ({pairs}) t
            UNION ALL
            SELECT queue, type, (SELECT priority FROM treadle.ready r WHERE r.queue = l.queue AND r.type = l.type
                                    AND r.priority < l.priority AND r.parked = '' ORDER BY priority DESC LIMIT 1)
              FROM level l WHERE priority IS NOT NULL
        )"""
    WAITING_BY_PRIORITY = f"""{_LEVELS}
        SELECT queue, type,
               (SELECT run_at FROM treadle.ready r WHERE r.queue = l.queue AND r.type = l.type
                   AND r.priority = l.priority AND run_at <= :now AND r.parked = '' ORDER BY run_at LIMIT 1),
               (SELECT run_at FROM treadle.ready r WHERE r.queue = l.queue AND r.type = l.type
                   AND r.priority = l.priority AND run_at > :now AND r.parked = '' ORDER BY run_at LIMIT 1),
               (SELECT count(*) FROM (SELECT 1 FROM treadle.ready r WHERE r.queue = l.queue AND r.type = l.type
                   AND r.priority = l.priority AND run_at > :now AND r.parked = '' LIMIT :most) a)
          FROM level l WHERE priority IS NOT NULL LIMIT :levels
    """
    # ... and of those that wait by turns: since when the oldest is due, of the first :most tenants.
    _LEVELS_BY_TURNS = _LEVELS.replace("parked = ''", "parked = 'fair'")
    _FAIR = (
        "treadle.ready r WHERE r.queue = w.queue AND r.type = w.type AND r.priority = w.priority AND parked = 'fair'"
    )
    OLDEST_BY_TURNS = f"""{_LEVELS_BY_TURNS},
        tenants (queue, type, priority, tenant) AS (
            SELECT queue, type, priority, (SELECT r.tenant FROM {_FAIR} ORDER BY r.tenant LIMIT 1)
              FROM level w WHERE priority IS NOT NULL
            UNION ALL
            SELECT queue, type, priority, (
                   SELECT r.tenant FROM {_FAIR} AND r.tenant > w.tenant ORDER BY r.tenant LIMIT 1)
              FROM tenants w WHERE tenant IS NOT NULL
        )
        SELECT queue, type, min((SELECT r.run_at FROM {_FAIR} AND r.tenant = w.tenant AND r.run_at <= :now
                                  ORDER BY r.run_at LIMIT 1))
          FROM (SELECT * FROM tenants WHERE tenant IS NOT NULL LIMIT :most) w GROUP BY queue, type
    """
    # The newest jobs that failed before: how many there are, and how many of them wait for their next attempt.
    RETRYING = """
        SELECT queue, type, count(*), count(*) FILTER (WHERE run_at > :now) FROM (
            SELECT queue, type, run_at FROM treadle.ready WHERE attempts > 0 ORDER BY id DESC LIMIT :most) a
         GROUP BY queue, type
    """
    # What each worker does.
    LEASES_BY_WORKER = """
        SELECT worker, type, count(*), min(started_at) FROM treadle.leases GROUP BY worker, type ORDER BY 1, 2
    """
    # Of the newest ended jobs those that ran: how long they waited, and how long they ran.
    LATENCY_SAMPLE = """
        SELECT type, queue, run_at, started_at, completed_at
          FROM (SELECT type, queue, run_at, started_at, completed_at FROM treadle.finished
                 ORDER BY id DESC LIMIT :looked_at) a
         WHERE started_at IS NOT NULL LIMIT :limit
    """
    # The newest failed jobs and the newest that wait for a retry, by type and by what was raised.
    FAILURES = """
        WITH newest AS (
            SELECT * FROM (SELECT type, coalesce(error, '') AS error, completed_at AS at, id, 1 AS failed
                             FROM treadle.finished WHERE status = 'failed' AND status <> 'completed'
                            ORDER BY id DESC LIMIT :limit) ended
             UNION ALL
            SELECT * FROM (SELECT type, coalesce((SELECT error FROM treadle.attempts a
                                                   WHERE a.id = r.id AND a.tenant = r.tenant
                                                   ORDER BY lease DESC LIMIT 1), ''), updated_at, id, 0
                             FROM treadle.ready r WHERE attempts > 0 AND run_at > :now
                            ORDER BY id DESC LIMIT :limit) waiting)
        SELECT type, raised, sum(failed), sum(1 - failed), min(at), max(at), max(id::text)
          FROM (SELECT *, substr(error, 1, strpos(error || ':', ':') - 1) AS raised FROM newest) n
         GROUP BY type, raised ORDER BY max(at) DESC
    """
    _DURING = """
        minute >= :since AND minute < :until AND (CAST(:tenant AS text) IS NULL OR tenant = CAST(:tenant AS text))
           AND (CAST(:type AS text) IS NULL OR type = CAST(:type AS text))
    """
    # {by}: some of type, queue, tenant, each with a comma behind it. {which}: a condition.
    USAGE = f"""
        SELECT minute / :step * :step, {{by}} {SUMS_OF_USAGE}
          FROM treadle.usage WHERE {_DURING} AND {{which}} GROUP BY {{group}} ORDER BY {{group}}
    """
    # The {names}, some of type, queue, tenant, with the most runs.
    MOST_USED = f"""
        SELECT {{names}} FROM treadle.usage WHERE {_DURING}
         GROUP BY {{names}} ORDER BY sum(runs) DESC, {{names}} LIMIT :most
    """

    # ---- backlog

    IS_SAMPLED = "SELECT 1 FROM treadle.backlog WHERE minute = :minute"
    SAMPLE = """
        INSERT INTO treadle.backlog (minute, queued, later, processing)
        VALUES (:minute, :queued, :later, :processing) ON CONFLICT DO NOTHING
    """
    # The most of each step.
    BACKLOG = """
        SELECT minute / :step * :step, max(queued), max(later), max(processing) FROM treadle.backlog
         WHERE minute >= :since AND minute < :until GROUP BY 1 ORDER BY 1
    """
    PRUNE_BACKLOG = "DELETE FROM treadle.backlog WHERE minute < :before"
    # ---- schedules

    SCHEDULE = f"""
        SELECT {_OF_SCHEDULE} FROM treadle.schedules
         WHERE tenant = CAST(:tenant AS text) AND name = CAST(:name AS text)
    """
    # ... which nobody fires or changes until we commit.
    LOCK_SCHEDULE = f"{SCHEDULE} FOR UPDATE"
    ADD_SCHEDULE = f"""
        INSERT INTO treadle.schedules ({_OF_SCHEDULE}) VALUES ({_NEW_SCHEDULE}) ON CONFLICT DO NOTHING RETURNING 1
    """
    SET_SCHEDULE = f"""
        UPDATE treadle.schedules SET {_SET_SCHEDULE}
         WHERE tenant = CAST(:tenant AS text) AND name = CAST(:name AS text)
    """
    DELETE_SCHEDULE = """
        DELETE FROM treadle.schedules WHERE tenant = CAST(:tenant AS text) AND name = CAST(:name AS text)
    """
    DROP_FIRED = """
        DELETE FROM treadle.fired WHERE tenant = CAST(:tenant AS text) AND schedule = CAST(:name AS text)
    """
    SCHEDULES = f"""
        SELECT {_OF_SCHEDULE} FROM treadle.schedules WHERE (tenant, name) > (:tenant, :name)
         ORDER BY tenant, name LIMIT :limit
    """
    SCHEDULES_OF_TENANT = f"""
        SELECT {_OF_SCHEDULE} FROM treadle.schedules WHERE tenant = :tenant AND name > :name ORDER BY name LIMIT :limit
    """
    OVERDUE_SCHEDULES = f"""
        SELECT {_OF_SCHEDULE} FROM treadle.schedules WHERE next_at < :before ORDER BY next_at LIMIT :limit
    """
    DECLARED_SCHEDULES = f"""
        SELECT {_OF_SCHEDULE} FROM treadle.schedules WHERE source = 'code' ORDER BY name LIMIT :limit
    """
    # When the next schedule is due: the first entry of an index.
    NEXT_FIRE = "SELECT next_at FROM treadle.schedules WHERE next_at IS NOT NULL ORDER BY next_at LIMIT 1"
    # Schedules with what their jobs get: of their own, or of their type.
    _TO_FIRE = f"""
        SELECT {_S_OF_SCHEDULE}, coalesce(s.queue, t.queue, 'default'), coalesce(s.priority, t.priority, 0),
               coalesce(s.max_attempts, t.max_attempts, 5), coalesce(t.fair, '')
          FROM treadle.schedules s LEFT JOIN treadle.types t ON t.type = s.type
    """
    # Those that are due. One that is locked is being fired or changed by another transaction.
    DUE_SCHEDULES = f"{_TO_FIRE} WHERE s.next_at <= :now ORDER BY s.next_at LIMIT :limit FOR UPDATE OF s SKIP LOCKED"
    LOCK_TO_FIRE = f"{_TO_FIRE} WHERE s.tenant = :tenant AND s.name = :name FOR UPDATE OF s"
    # Move schedules on, if they are as they were read. The answer: those that were.
    # [[tenant, name, next_at, revision, new next_at, last job, its moment, skipped moment, why], …]
    ADVANCE_SCHEDULES = """
        UPDATE treadle.schedules AS s SET next_at = (e ->> 4)::bigint, last_job = coalesce(e ->> 5, s.last_job),
               last_moment = coalesce((e ->> 6)::bigint, s.last_moment),
               skipped_at = coalesce((e ->> 7)::bigint, s.skipped_at), skipped_why = coalesce(e ->> 8, s.skipped_why),
               paused_at = NULL, paused_by = NULL, paused_reason = NULL, paused_until = NULL
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
         WHERE s.tenant = e ->> 0 AND s.name = e ->> 1 AND s.next_at = (e ->> 2)::bigint
           AND s.revision = (e ->> 3)::bigint
        RETURNING tenant, name
        """
    # [[tenant, schedule, id], …]
    ADD_FIRED = """
        INSERT INTO treadle.fired (tenant, schedule, id)
        SELECT e ->> 0, e ->> 1, (e ->> 2)::uuid FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
         WHERE true ON CONFLICT DO NOTHING
        """
    # Of [[tenant, schedule], …], the jobs that have not ended, each with whether it runs.
    UNENDED = """
        SELECT d.tenant, d.schedule, d.id::text,
               EXISTS (SELECT 1 FROM treadle.leases l WHERE l.id = d.id AND l.tenant = d.tenant)
          FROM jsonb_array_elements(CAST(:names AS text)::jsonb) e
          JOIN treadle.fired d ON d.tenant = e ->> 0 AND d.schedule = e ->> 1
         WHERE EXISTS (SELECT 1 FROM treadle.jobs j WHERE j.id = d.id AND j.tenant = d.tenant)
           AND NOT EXISTS (SELECT 1 FROM treadle.finished f WHERE f.id = d.id AND f.tenant = d.tenant)
         ORDER BY d.id
        """
    SET_LAST_JOB = "UPDATE treadle.schedules SET last_job = :id WHERE tenant = :tenant AND name = :name"

    # ---- the records of the HTTP API

    AUDIT = """
        INSERT INTO treadle.audit (id, at, who, action, what, count, tenant)
        VALUES (:id, :now, :who, :action, :what, :count, :tenant)
    """
    LIST_AUDIT = """
        SELECT who, action, what, count, tenant, id::text, at FROM treadle.audit a
         WHERE id < CAST(:before AS uuid) ORDER BY a.id DESC LIMIT :limit
    """
    PRUNE_AUDIT = "DELETE FROM treadle.audit WHERE id < CAST(:oldest AS uuid)"
    ADD_TOKEN = """
        INSERT INTO treadle.tokens (hash, name, scopes, bound_to, created_at, expires_at)
        VALUES (:hash, :name, :scopes, :tenant, :now, :expires_at) ON CONFLICT DO NOTHING
    """
    TOKEN = "SELECT hash, name, scopes, bound_to, expires_at, created_at FROM treadle.tokens WHERE hash = :hash"
    TOKENS = "SELECT hash, name, scopes, bound_to, expires_at, created_at FROM treadle.tokens ORDER BY name"
    DROP_TOKEN = "DELETE FROM treadle.tokens WHERE name = :name"
    START_OPERATION = """
        INSERT INTO treadle.operations
               (id, who, action, filter, changes, total, done, skipped, position, started_at, updated_at)
        VALUES (:id, :who, :action, :filter, :changes, :total, 0, 0, :position, :now, :now)
    """
    ADVANCE_OPERATION = """
        UPDATE treadle.operations SET done = done + :done, skipped = skipped + :skipped, position = :position,
               updated_at = :now, ended_at = CASE WHEN CAST(:position AS text) IS NULL THEN CAST(:now AS bigint) END
         WHERE id = CAST(:id AS uuid)
    """
    RESUME_OPERATION = """
        UPDATE treadle.operations SET updated_at = :now
         WHERE id = CAST(:id AS uuid) AND updated_at = :seen AND ended_at IS NULL
    """
    FAIL_OPERATION = """
        UPDATE treadle.operations SET ended_at = :now, error = :error WHERE id = CAST(:id AS uuid) AND ended_at IS NULL
    """
    LOCK_OPERATION = """
        SELECT position FROM treadle.operations WHERE id = CAST(:id AS uuid) AND ended_at IS NULL FOR UPDATE
        """
    _OPERATION = """
        SELECT id::text, who, action, filter, total, done, skipped, position, started_at, updated_at, ended_at, error,
               changes
          FROM treadle.operations o
    """
    OPERATION = f"{_OPERATION} WHERE id = CAST(:id AS uuid)"
    OPERATIONS = f"{_OPERATION} ORDER BY o.id DESC LIMIT :limit"  # by `id`, it would sort the texts
    PRUNE_OPERATIONS = "DELETE FROM treadle.operations WHERE id < CAST(:oldest AS uuid)"
    # Take the key of a request, or see by the row count that it was answered before.
    TAKE_REQUEST = """
        INSERT INTO treadle.requests (tenant, key, hash, ids, at) VALUES (:tenant, :key, :hash, :ids, :now)
            ON CONFLICT DO NOTHING
    """
    REQUEST = "SELECT hash, ids FROM treadle.requests WHERE tenant = :tenant AND key = :key"
    SET_REQUEST = "UPDATE treadle.requests SET ids = :ids WHERE tenant = :tenant AND key = :key"
    PRUNE_REQUESTS = "DELETE FROM treadle.requests WHERE at < :before"
