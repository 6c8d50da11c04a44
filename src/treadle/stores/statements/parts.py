"""What several statements have in common, and the bounds that keep numbers from overflowing."""

MOST_ATTEMPTS = 10**9
MOST = 10**15
"""No job has more attempts or snoozes, and no count or time in microseconds is larger, unless it was broken by hand.
Then it must not overflow: that would stop the whole batch."""

# How many jobs have each status. Tallies are of all jobs, and of those that are blocked or have ended. Leases are
# counted here; the rest is pending.
_COUNT = f"least(greatest(count, -{MOST}), {MOST})"
TALLIES = f"""(
    SELECT CASE status WHEN 'all' THEN 'pending' ELSE status END AS status, type, queue, {_COUNT} AS count
      FROM treadle.tallies
     UNION ALL
    SELECT 'pending', type, queue, -{_COUNT} FROM treadle.tallies WHERE status <> 'all'
     UNION ALL
    SELECT 'pending', type, queue, -1 FROM treadle.leases
     UNION ALL
    SELECT 'processing', type, queue, 1 FROM treadle.leases)"""

# The columns of usage, added up.
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

# The rows that a JSON array of ids names.
THESE = "ANY(ARRAY(SELECT value::uuid FROM jsonb_array_elements_text(CAST(:ids AS text)::jsonb)))"

# The fields of ClaimedJob, of a lease `l` and its job `j`.
LEASE_COLUMNS = """
       l.id::text, l.lease, l.token, l.type, l.queue, l.tenant, j.subject, j.payload::text, l.attempt, j.max_attempts,
       l.snoozes, l.suspicion, l.run_at, l.started_at, l.deadline, (j.dedupe IS NOT NULL)::integer, j.traceparent,
       j.fired_at, l.forgiven, j.batch"""

# A finished job `f` that no throttled key needs: while the key is held, the job is what an enqueue returns.
UNTHROTTLED = """
    (NOT EXISTS (SELECT 1 FROM treadle.dedupe WHERE expires_at > :now) OR coalesce((
        SELECT d.expires_at FROM treadle.jobs j JOIN treadle.dedupe d ON d.tenant = j.tenant AND d.key = j.dedupe
         WHERE j.id = f.id AND j.tenant = f.tenant AND d.id = f.id), 0) <= :now)
"""

# A finished job `f` that no other job still waits for, or has waited for and not ended yet: that may read its result.
# As a value, not as NOT EXISTS: PostgreSQL may plan that as a join which reads all waits.
UNNEEDED = """
    (SELECT w.id FROM treadle.waits w WHERE w.what = f.id::text AND w.kind <> 'signal' AND NOT EXISTS (
        SELECT 1 FROM treadle.finished e WHERE e.id = w.id AND e.tenant = w.tenant) LIMIT 1) IS NULL
"""

# The tenants of a range by turns: from the one after :last on, and around to :last; a jump over the index for each.
OF_RANGE = "r.queue = :queue AND r.type = :type AND r.priority = :priority"
_NEXT_TENANT = f"SELECT r.tenant FROM treadle.ready r WHERE {OF_RANGE} AND r.parked = 'fair'"
WALK = f"""
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

# What waits beside a range by turns.
_LOWER = "SELECT r.priority FROM treadle.ready r WHERE r.queue = :queue AND r.type = :type AND r.priority < :priority"
BESIDE_TURNS = f"""
               ({_LOWER} AND r.parked = '' ORDER BY r.priority DESC LIMIT 1),
               ({_LOWER} AND r.parked = 'fair' ORDER BY r.priority DESC LIMIT 1),
               EXISTS (SELECT 1 FROM treadle.types t WHERE t.type = :type AND t.fair <> '')
               AND EXISTS (SELECT 1 FROM treadle.ready r WHERE {OF_RANGE} AND r.run_at <= :now AND r.parked = '')"""
