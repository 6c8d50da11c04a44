"""SQL around the jobs, for which a file has other means: sessions, the schema, notifications, locks and folding."""

# What a transaction begins with: nobody waits for ever, and the server's clock decides. Who falls silent in the middle
# (stopped, suspended, cut off) loses his locks: a limited type's would keep all others from claiming any of it.
# Compiling (jit) would take longer than any statement of ours, and each is made for its index, whatever the statistics
# say.
_SET_UP = """
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, set_config('lock_timeout', '10s', true),
       set_config('statement_timeout', '30s', true), set_config('idle_in_transaction_session_timeout', '15s', true),
       set_config('jit', 'off', true),
       set_config('enable_seqscan', 'off', true)
"""
BEGIN = f"BEGIN; {_SET_UP}"
BEGIN_TO_READ = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_SET_UP}"
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

# ... and for a transaction that runs the user's own code, which has limits of its own.
NO_LIMITS = """
SET LOCAL lock_timeout = DEFAULT; SET LOCAL statement_timeout = DEFAULT;
SET LOCAL idle_in_transaction_session_timeout = DEFAULT; SET LOCAL jit = DEFAULT; SET LOCAL enable_seqscan = DEFAULT
"""

# From the catalog itself: to_regclass would answer from the session's memory, though another has made them meanwhile.
HAS_SCHEMA = "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = 'treadle')"
CREATE_SCHEMA = "CREATE SCHEMA treadle"
HAS_META = """
SELECT EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = 'treadle' AND c.relname = 'meta')
"""
UPGRADING = "SELECT pg_advisory_xact_lock(hashtext('treadle.upgrade'))"

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

# A number that differs if anybody has committed in between.
CHANGES = "SELECT hashtextextended(pg_current_snapshot()::text, 0)"

LISTEN = "LISTEN treadle"

WHO_ANSWERS = "SELECT pg_backend_pid()"

# A hint to who listens, when this is committed.
TELL = "SELECT pg_notify(:channel, :queue)"

# Have these limited types to ourselves until we commit. Sorted, so that no two wait for each other.
LOCK_TYPES = """
SELECT type FROM treadle.types WHERE type = ANY(:types) ORDER BY type FOR NO KEY UPDATE
"""

# Add up what was appended; two who do it at once would count twice, so that only one may.
FOLDING = "SELECT pg_try_advisory_xact_lock(hashtext('treadle.fold'))"
FOLD_TALLIES = """
WITH gone AS (DELETE FROM treadle.tallies RETURNING *)
INSERT INTO treadle.tallies (status, type, queue, count)
SELECT status, type, queue, sum(count) FROM gone GROUP BY status, type, queue HAVING sum(count) <> 0
"""
FOLD_USAGE = """
WITH gone AS (DELETE FROM treadle.usage WHERE minute >= :since RETURNING *)
INSERT INTO treadle.usage (minute, type, queue, tenant, runs, completed, failures, busy, waiting)
SELECT minute, type, queue, tenant, sum(runs), sum(completed), sum(failures), sum(busy), sum(waiting)
  FROM gone GROUP BY minute, type, queue, tenant
"""
