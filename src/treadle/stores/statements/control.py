"""What holds jobs back: limits and pauses."""

from treadle.stores.statements.manage import Manage
from treadle.stores.statements.parts import STUCK

_HAS_EXPIRED = Manage.HAS_EXPIRED


class Control:
    """What declares, checks and changes limits and pauses."""

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
    # The keys that handlers hold back, and those that a person lets go.
    HELD_KEYS = """
        SELECT name, key, max(at) FROM treadle.openings WHERE held > 0 AND held = 1 AND at > :now GROUP BY name, key
         ORDER BY name, key LIMIT :most
    """
    END_HOLD = """
        DELETE FROM treadle.openings WHERE name = :name AND key = :key AND held > 0 AND held = 1 AND at > :now
    """
    # Claims read the limits again when this has changed.
    LIMITS_VERSION = "SELECT coalesce(max(at), 0) FROM treadle.limits WHERE name = ''"
    LIMITS_CHANGED = """
        INSERT INTO treadle.limits AS l (name, key, who, at) VALUES ('', '', '', 1)
            ON CONFLICT (name, key) DO UPDATE SET at = l.at + 1
    """
    # How much of each key is used: jobs that run, its bucket, tokens given back since, and until when it is held back.
    # Only keys of which something is: a claim asks for very many. A stuck lease is not counted. Each lease is looked up
    # by its job: a join may read all of them for each of them, if the planner believes that there are none. {once}:
    # what is below it is evaluated once. [[name, key, 1 if jobs that run are counted, 1 if it has a rate], …]
    COUNTED_KEYS = KEYS.replace("FROM", ", (e ->> 2)::integer AS counted, (e ->> 3)::integer AS rated FROM", 1)
    _BUCKET = """FROM treadle.buckets b WHERE b.name = e.name AND b.key = e.key AND b.full_at IS NOT NULL
                  ORDER BY b.seq DESC LIMIT 1"""
    KEY_USES = f"""
        SELECT * FROM (
            SELECT e.name, e.key,
                   CASE WHEN e.counted = 0 THEN 0
                        WHEN substr(e.name, 1, 5) = 'type:'
                        THEN (SELECT count(*) FROM treadle.leases l WHERE l.type = substr(e.name, 6) AND NOT {STUCK})
                        ELSE (SELECT count(*) FROM treadle.limited_leases k
                               WHERE k.name = e.name AND k.key = e.key
                                 AND (SELECT NOT {STUCK} FROM treadle.leases l
                                       WHERE l.id = k.id AND l.tenant = k.tenant AND l.lease = k.lease)) END AS running,
                   CASE WHEN e.rated = 1 THEN (SELECT json_build_array(full_at, seq)::text {_BUCKET}) END AS bucket,
                   CASE WHEN e.rated = 1 THEN (
                       SELECT count(*) FROM treadle.buckets r
                        WHERE r.name = e.name AND r.key = e.key AND r.full_at IS NULL
                          AND r.seq > (SELECT seq {_BUCKET})) END AS given_back,
                   (SELECT max(o.at) FROM treadle.openings o
                     WHERE o.name = e.name AND o.key = e.key AND o.held > 0 AND o.held = 1) AS held_until,
                   (SELECT 1 FROM treadle.ready r
                     WHERE r.parked = 'limit:' || e.name || {{unit}} || e.key AND r.parked > 'fair' LIMIT 1) AS parked
              FROM ({{keys}} {{once}}) e {{once}}) u
         WHERE running > 0 OR bucket IS NOT NULL OR held_until IS NOT NULL OR parked IS NOT NULL
    """
    # [[name, key, id, lease, tenant], …]
    ADD_LEASE_KEYS = """
        INSERT INTO treadle.lease_keys (name, key, id, lease, tenant)
        SELECT e ->> 0, e ->> 1, (e ->> 2)::uuid, (e ->> 3)::bigint, e ->> 4
          FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e
    """
    # [[name, key, full_at, the row that it had], …]
    ADD_BUCKETS = """
        INSERT INTO treadle.buckets (name, key, full_at)
        SELECT e ->> 0, e ->> 1, (e ->> 2)::bigint FROM jsonb_array_elements(CAST(:keys AS text)::jsonb) e
    """
    # Of keys for which rows are parked, unless there is one to come. [[name, key, at, what for], …]
    ADD_OPENINGS = """
        INSERT INTO treadle.openings (name, key, at, held)
        SELECT n.name, n.key, n.at, CASE WHEN n.at > :now THEN 2 ELSE 0 END
          FROM (SELECT e ->> 0 AS name, e ->> 1 AS key, (e ->> 2)::bigint AS at, e ->> 3 AS parked
                  FROM jsonb_array_elements(CAST(:rows AS text)::jsonb) e) n
         WHERE (SELECT 1 FROM treadle.ready r WHERE r.parked = n.parked AND r.parked > 'fair' LIMIT 1) = 1
           AND NOT (n.at > :now AND coalesce((SELECT max(o.at) FROM treadle.openings o
                                               WHERE o.name = n.name AND o.key = n.key AND o.held > 0), 0) > :now)
    """
    RUNNING_BY_LIMIT = "SELECT name, count(*) FROM treadle.limited_leases GROUP BY name"
    # Buckets that are full say nothing, and so do tokens that were given back to them. A claim deletes them in another
    # order: those that it has locked are left to it.
    PRUNE_BUCKETS = """
        DELETE FROM treadle.buckets WHERE seq IN (
            SELECT seq FROM treadle.buckets b WHERE coalesce(full_at, (
                SELECT max(n.full_at) FROM treadle.buckets n WHERE n.name = b.name AND n.key = b.key), 0) < :now
               FOR UPDATE SKIP LOCKED)
    """
    # Whether there is anything to prune, or to come to.
    HAS_LIMITS = """
        SELECT EXISTS (SELECT 1 FROM treadle.lease_keys) OR EXISTS (SELECT 1 FROM treadle.buckets)
            OR EXISTS (SELECT 1 FROM treadle.ready WHERE parked > 'limit:' AND parked < 'limit;' AND parked > 'fair')
    """
    # Which chores have something to do: rescue, expire, put back what was paused, open limits.
    CHORES_DUE = f"""
        SELECT EXISTS (SELECT 1 FROM treadle.leases), ({_HAS_EXPIRED}),
               EXISTS (SELECT 1 FROM treadle.pauses) OR EXISTS (
                   SELECT 1 FROM treadle.ready WHERE parked > 'tenant:' AND parked < 'tenant;' AND parked > 'fair'),
               ({HAS_LIMITS})
    """
    # Keys of leases that were deleted by hand.
    PRUNE_LEASE_KEYS = """
        DELETE FROM treadle.lease_keys AS k
         WHERE NOT EXISTS (SELECT 1 FROM treadle.leases l
                            WHERE l.id = k.id AND l.tenant = k.tenant AND l.lease = k.lease)
    """
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
    LEASE_KEYS_OF = "SELECT name, key FROM treadle.limited_leases WHERE id = CAST(CAST(:id AS text) AS uuid)"

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
    _PARKED_FOR = """
        WITH RECURSIVE held (parked) AS (
            SELECT (SELECT parked FROM treadle.ready
                     WHERE parked > 'fair' AND parked > CAST(:after AS text) ORDER BY parked LIMIT 1)
            UNION ALL
            SELECT (SELECT r.parked FROM treadle.ready r WHERE r.parked > 'fair' AND r.parked > held.parked
                     ORDER BY r.parked LIMIT 1) FROM held WHERE parked IS NOT NULL
        )"""
    PARKED_FOR = f"{_PARKED_FOR} SELECT parked FROM held WHERE parked < CAST(:before AS text) LIMIT :most"
    # ... and since when the oldest of the first 100 rows is due.
    OLDEST_PARKED = f"""{_PARKED_FOR}
        SELECT parked, (
               SELECT min(run_at) FROM (
                   SELECT r.run_at FROM treadle.ready r WHERE r.parked > 'fair' AND r.parked = held.parked
                    ORDER BY r.queue, r.type, r.priority DESC, r.run_at LIMIT 100) a)
          FROM held WHERE parked < CAST(:before AS text) LIMIT :most
    """
    # How many jobs of what is paused still run.
    RUNNING_OF = """
        SELECT count(*) FROM treadle.leases
         WHERE tenant = CAST(:tenant AS text) OR queue = CAST(:queue AS text) OR type = CAST(:type AS text)
    """
