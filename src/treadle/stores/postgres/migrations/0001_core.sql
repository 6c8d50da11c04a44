-- One row that never changes says what a job is; one row that moves says where it is.
-- Times are whole microseconds since 1970. Tenant and subject are '' where there is none.
-- Every unique index has the tenant in it, so that no tenant can learn from a collision what another one has.

-- 'schema' is the newest migration, 'oldest' the oldest schema whose treadle can still work here: a migration that
-- only adds leaves that as it is.
CREATE TABLE treadle.meta (
    key   text PRIMARY KEY,
    value bigint NOT NULL
);
INSERT INTO treadle.meta VALUES ('schema', 1), ('oldest', 1);

-- The fence: no two leases ever share a number, unless a failover loses the last ones. So each has a random token, too.
-- If it was set by hand to its end, it starts again.
CREATE SEQUENCE treadle.lease CYCLE;

-- What was asked for. Written once, but for the priority and the queue, which a reschedule changes.
CREATE TABLE treadle.jobs (
    id           uuid NOT NULL,
    type         text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    tenant       text COLLATE "C" NOT NULL,
    subject      text COLLATE "C" NOT NULL,
    payload      json NOT NULL,
    priority     integer NOT NULL,
    max_attempts integer NOT NULL,
    dedupe       text COLLATE "C",
    traceparent  text,
    created_at   bigint NOT NULL,
    dedupe_rule  text,              -- JSON; NULL if it has a key alone, or none
    schedule     text COLLATE "C",  -- the schedule that fired it, and the moment for which it did
    fired_at     bigint,
    origin       uuid,              -- the job whose handler started it
    batch        text COLLATE "C",  -- the batch that it is a member of
    PRIMARY KEY (id, tenant)
);
CREATE INDEX jobs_by_tenant ON treadle.jobs (tenant, id) WHERE tenant <> '';
CREATE INDEX jobs_by_subject ON treadle.jobs (subject, id) WHERE subject <> '';
CREATE INDEX jobs_by_schedule ON treadle.jobs (schedule, id) WHERE schedule IS NOT NULL;
CREATE INDEX jobs_by_origin ON treadle.jobs (origin, id) WHERE origin IS NOT NULL;
CREATE INDEX jobs_by_batch ON treadle.jobs (batch, id) WHERE batch IS NOT NULL;

-- Waiting. Rows live for a short while here and in `leases`: vacuum must come often, and by their number alone.
CREATE TABLE treadle.ready (
    id         uuid NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    type       text COLLATE "C" NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    priority   integer NOT NULL,
    run_at     bigint NOT NULL,
    attempts   integer NOT NULL,
    snoozes    integer NOT NULL,
    suspicion  integer NOT NULL,
    updated_at bigint NOT NULL,
    parked     text COLLATE "C" NOT NULL DEFAULT '',  -- why claims do not meet it: see parking.py
    start_by   bigint,  -- if it is not started by then, it is cancelled; NULL: it waits as long as it takes
    forgiven   integer, -- attempts before its last new step, which no longer count; NULL: it has no steps
    PRIMARY KEY (id, tenant)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000, autovacuum_vacuum_cost_delay = 1);

-- A claim reads ranges of this index, (queue, type, priority) by (queue, type, priority). Parked rows are not in it.
CREATE INDEX ready_in_order ON treadle.ready (queue, type, priority DESC, run_at, id) WHERE parked = '';

-- Due jobs of types whose tenants take turns: a claim jumps from tenant to tenant.
CREATE INDEX ready_fair ON treadle.ready (queue, type, priority DESC, tenant, run_at, id) WHERE parked = 'fair';

-- Where the others are found again when what parked them is over. (What they are parked for sorts after 'fair'.)
CREATE INDEX ready_parked ON treadle.ready (parked, queue, type, priority DESC, run_at, id) WHERE parked > 'fair';

-- Those that were put here for later: when the next one is due. A job that is due at once is not in it.
CREATE INDEX ready_later ON treadle.ready (run_at) WHERE run_at > updated_at;

-- The few that wait after a failure, so that they can be listed and counted among a million that just wait.
CREATE INDEX ready_retrying ON treadle.ready (id) WHERE attempts > 0;

-- Those that wait for other jobs or signals, in the order in which they are listed.
CREATE INDEX ready_blocked ON treadle.ready (id) WHERE parked = 'wait';

-- The few that expire.
CREATE INDEX ready_expiring ON treadle.ready (start_by) WHERE start_by IS NOT NULL;

-- Leased. Progress and the cancel flag are its only updates (and the deadline, by `extend`).
CREATE TABLE treadle.leases (
    id         uuid NOT NULL,
    lease      bigint NOT NULL,
    token      bigint NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    type       text COLLATE "C" NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    attempt    integer NOT NULL,
    snoozes    integer NOT NULL,
    suspicion  integer NOT NULL,
    worker     text NOT NULL,  -- '' for a lease taken by hand, which lives by its deadline alone
    run_at     bigint NOT NULL,
    started_at bigint NOT NULL,
    deadline   bigint,
    cancel     integer NOT NULL DEFAULT 0,
    fraction   double precision,
    message    text,
    start_by   bigint,  -- as in `ready`: it waits for that again if it is released before its handler was called
    forgiven   integer, -- as in `ready`; its first new step sets it
    limit_name text COLLATE "C",  -- the first limit with a key under which it runs; NULL: none. See `limited_leases`
    limit_key  text COLLATE "C",
    PRIMARY KEY (id, tenant)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000, autovacuum_vacuum_cost_delay = 1);
CREATE INDEX leases_by_limit ON treadle.leases (limit_name, limit_key) WHERE limit_name IS NOT NULL;

-- Ended.
CREATE TABLE treadle.finished (
    id           uuid NOT NULL,
    lease        bigint NOT NULL,  -- 0 if no attempt ended it
    token        bigint NOT NULL,
    status       text COLLATE "C" NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled')),
    queue        text COLLATE "C" NOT NULL,
    type         text COLLATE "C" NOT NULL,
    tenant       text COLLATE "C" NOT NULL,
    attempts     integer NOT NULL,
    snoozes      integer NOT NULL DEFAULT 0,
    worker       text NOT NULL,
    run_at       bigint NOT NULL,
    started_at   bigint,
    completed_at bigint NOT NULL,
    result       json,
    error        text,
    PRIMARY KEY (id, tenant)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1);
CREATE INDEX finished_not_completed ON treadle.finished (status, id) WHERE status <> 'completed';

-- One row per unsuccessful attempt; not per snooze or release.
CREATE TABLE treadle.attempts (
    id         uuid NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    lease      bigint NOT NULL,
    attempt    integer NOT NULL,
    worker     text NOT NULL,
    started_at bigint NOT NULL,
    ended_at   bigint NOT NULL,
    outcome    text NOT NULL,
    error      text,
    traceback  text,
    PRIMARY KEY (id, tenant, lease)
);

-- What a handler has done, step by step: a run that comes to a stored step gets its value. Also how its waits ended.
CREATE TABLE treadle.steps (
    id         uuid NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    position   integer NOT NULL,  -- in the order in which they were stored
    kind       text NOT NULL,     -- 'step', 'sleep', 'signal', 'timeout', 'gather' or 'gathered': see steps.py
    value      json,
    arguments  text NOT NULL,     -- a hash of what the step was called with; '' if that has no JSON form
    lease      bigint NOT NULL,   -- of the run that stored it, and which attempt that was
    attempt    integer NOT NULL,
    started_at bigint NOT NULL,
    ended_at   bigint NOT NULL,
    PRIMARY KEY (id, tenant, name)
);

-- Who waits for what. A row stays when it is met, until its job is deleted: it says what came before what.
CREATE TABLE treadle.waits (
    id        uuid NOT NULL,     -- the job that waits
    tenant    text COLLATE "C" NOT NULL,
    kind      text NOT NULL,     -- 'parent' or 'subjob': for a job to end; 'signal'
    what      text COLLATE "C" NOT NULL, -- the job's id or the signal's name
    step      text NOT NULL,     -- the step that waits; '' for parents
    if_failed text NOT NULL,     -- 'hold', 'cancel' or 'run'
    met       integer NOT NULL,
    since     bigint NOT NULL,
    until     bigint,            -- when it no longer waits for the signal; NULL: it waits as long as it takes
    PRIMARY KEY (id, tenant, what, step)
) WITH (fillfactor = 50);  -- each row is updated once, when it is met: its page has room for that
CREATE INDEX waits_for ON treadle.waits (what, id);

-- Named facts. The first value of each name counts, for every job that waits for it, before or after.
CREATE TABLE treadle.signals (
    tenant text COLLATE "C" NOT NULL,
    name   text COLLATE "C" NOT NULL,
    value  json NOT NULL,
    who    text NOT NULL,
    at     bigint NOT NULL,
    PRIMARY KEY (tenant, name)
);
CREATE INDEX signals_by_time ON treadle.signals (at);

-- What may let waiting jobs go: a job that others wait for has ended, a signal came, a job began to wait or has waited
-- long enough, members of a batch have ended. Rows are only added and deleted: a claim that comes to one matches it.
CREATE TABLE treadle.arrivals (
    seq    bigint GENERATED BY DEFAULT AS IDENTITY,
    at     bigint NOT NULL,
    kind   text NOT NULL,  -- 'ended', 'signal', 'waiter' or 'batch'
    tenant text COLLATE "C" NOT NULL,
    what   text COLLATE "C" NOT NULL -- of jobs that have ended: a JSON array of their ids
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 1);
CREATE INDEX arrivals_in_order ON treadle.arrivals (at, seq);

-- Groups of jobs, and what to enqueue when all of them have ended.
CREATE TABLE treadle.batches (
    tenant     text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    then_job   text,             -- JSON: a request to enqueue if all have completed; NULL: nothing
    else_job   text,             -- ... and if not
    closings   integer NOT NULL, -- how often all of its jobs had ended
    closed_at  bigint,           -- NULL while it is open
    last_job   text,             -- what the last closing has enqueued
    created_at bigint NOT NULL,
    PRIMARY KEY (tenant, name)
);
CREATE INDEX batches_by_time ON treadle.batches (created_at);
CREATE INDEX batches_of_tenant ON treadle.batches (tenant, created_at);
CREATE INDEX batches_closed ON treadle.batches (closed_at) WHERE closed_at IS NOT NULL;

-- Its jobs, counted: appended to by the transaction that moved them, added up when the batch is looked at.
CREATE TABLE treadle.batch_counts (
    tenant    text COLLATE "C" NOT NULL,
    batch     text COLLATE "C" NOT NULL,
    added     bigint NOT NULL,
    completed bigint NOT NULL,
    failed    bigint NOT NULL,
    cancelled bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 1);
CREATE INDEX batch_counts_by_batch ON treadle.batch_counts (batch, tenant);

-- What handlers have logged, some lines per attempt.
CREATE TABLE treadle.logs (
    id      uuid NOT NULL,
    tenant  text COLLATE "C" NOT NULL,
    lease   bigint NOT NULL,
    line    integer NOT NULL,
    attempt integer NOT NULL,
    at      bigint NOT NULL,
    level   text NOT NULL,
    message text NOT NULL,
    PRIMARY KEY (id, tenant, lease, line)
);

-- What can be large is compressed by lz4, if the server was built with it: that takes a fraction of the time.
DO $$ BEGIN
    ALTER TABLE treadle.jobs ALTER COLUMN payload SET COMPRESSION lz4;
    ALTER TABLE treadle.finished ALTER COLUMN result SET COMPRESSION lz4;
    ALTER TABLE treadle.steps ALTER COLUMN value SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN NULL;
END $$;

-- A dedupe key is held from enqueue until a final status, or as long as the rule of its job says.
CREATE TABLE treadle.dedupe (
    tenant        text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    id            uuid NOT NULL,
    until_started integer NOT NULL DEFAULT 0,  -- 1: it is free when the job has started
    since         bigint,                      -- of a debounce: its first call
    expires_at    bigint,                      -- of a throttle: it is held until then, and no longer
    successor     uuid,                        -- the job that takes the key when the holder has ended
    PRIMARY KEY (tenant, key)
);
CREATE INDEX dedupe_throttled ON treadle.dedupe (expires_at) WHERE expires_at IS NOT NULL;

-- What the workers publish of each type. Of what live workers declare, the newest declaration wins.
CREATE TABLE treadle.types (
    type         text COLLATE "C" PRIMARY KEY,
    queue        text COLLATE "C" NOT NULL,
    priority     integer NOT NULL,
    max_attempts integer NOT NULL,
    concurrency  integer,
    timeout      bigint,
    updated_at   bigint NOT NULL,
    redact       text NOT NULL DEFAULT '[]',  -- JSON: names that its app hides, too; false if it hides nothing
    arguments    text NOT NULL DEFAULT '', -- JSON schema of the handler's arguments; '' if there is none
    limits       text NOT NULL DEFAULT '[]', -- JSON: the limits that its code declares
    fair         text NOT NULL DEFAULT '', -- 'tenant' if its tenants take turns
    spec         text NOT NULL DEFAULT '', -- the hash of this declaration
    known        text NOT NULL DEFAULT '{}' -- JSON: the hashes of what workers have declared, each with when it was first
);

-- What people have changed of limits at run time: for one key, or with '' for all others. It wins over the code. The row
-- without a name counts the changes in `at`.
CREATE TABLE treadle.limits (
    name        text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    concurrency integer,        -- NULL, as the one below: as the code says
    rate        text,           -- JSON
    who         text NOT NULL,
    at          bigint NOT NULL,
    PRIMARY KEY (name, key)
);

-- The other limits under which leased jobs run, each with the key that it counts the job by. Most jobs have only one
-- limit with a key. A row of its own would cost as much as the lease.
CREATE TABLE treadle.lease_keys (
    name   text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    id     uuid NOT NULL,
    lease  bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    PRIMARY KEY (name, key, id, tenant)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 1);
CREATE INDEX lease_keys_by_job ON treadle.lease_keys (id);

-- All of them. (By this condition, the small index of the limits is not chosen to find a job, but only to find a key:
-- the planner may believe that it is empty.)
CREATE VIEW treadle.limited_leases WITH (security_invoker = true) AS
SELECT limit_name AS name, limit_key AS key, id, lease, tenant FROM treadle.leases
 WHERE coalesce(limit_name, '') <> '' AND limit_key IS NOT NULL
UNION ALL
SELECT name, key, id, lease, tenant FROM treadle.lease_keys;

-- Moments at which a key of a limit may have a free place. A claim that comes to one lets jobs go that are parked for it.
-- Rows are only added and deleted: two transactions never wait for each other here.
CREATE TABLE treadle.openings (
    seq  bigint GENERATED BY DEFAULT AS IDENTITY,
    name text COLLATE "C" NOT NULL,
    key  text COLLATE "C" NOT NULL,
    at   bigint NOT NULL,
    held integer NOT NULL, -- 1: nothing of this key starts before; 2: the next one may start then; 0: now
    keys json CHECK (json_typeof(keys) = 'array')  -- the keys of jobs that have ended together; NULL: only `key`
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 1);
CREATE INDEX openings_in_order ON treadle.openings (at);
CREATE INDEX openings_by_key ON treadle.openings (name, key, at) WHERE held > 0;

-- The token bucket of each key of a rate. The newest row counts; one without `full_at` gives a token back.
CREATE TABLE treadle.buckets (
    seq     bigint GENERATED BY DEFAULT AS IDENTITY,
    name    text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    full_at bigint  -- the nanosecond since 1970 at which it is full again
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 1);
CREATE INDEX buckets_by_key ON treadle.buckets (name, key, seq);

-- One incarnation of a process that claims and runs. Its `beats` stand still when it does.
CREATE TABLE treadle.workers (
    id          text PRIMARY KEY,
    name        text NOT NULL,
    beats       bigint NOT NULL,
    started_at  bigint NOT NULL,
    seen_at     bigint NOT NULL,
    concurrency integer NOT NULL,
    queues      text NOT NULL,  -- JSON; [] for all
    types       text NOT NULL,  -- JSON: each type with the hash of what its code declares
    host        text NOT NULL,  -- JSON: what identifies this process
    version     text NOT NULL,
    stalled_at  bigint,         -- since when its event loop is blocked; NULL: it is not
    quiet_at    bigint,         -- since when somebody wants it to claim nothing; NULL: it claims
    schedules   text NOT NULL DEFAULT '{}'  -- JSON: the schedules that its code declares, each with its spec
) WITH (fillfactor = 50);

-- Recurring rules. A moment is fired by moving `next_at` on and storing its job, in one transaction.
CREATE TABLE treadle.schedules (
    tenant        text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    type          text COLLATE "C" NOT NULL,
    cron          text NOT NULL,    -- '' if it fires `every` so many microseconds, counted from `anchor`
    zone          text NOT NULL,
    every         bigint NOT NULL,
    anchor        bigint NOT NULL,
    payload       text NOT NULL,    -- JSON
    subject       text COLLATE "C" NOT NULL,
    queue         text COLLATE "C", -- NULL, as the two below: as its type has it
    priority      integer,
    max_attempts  integer,
    missed        text NOT NULL,
    overlap       text NOT NULL,
    source        text NOT NULL,    -- 'code' if workers declare it, 'runtime' if it was put
    spec          text NOT NULL,    -- the hash of all of the above
    known         text NOT NULL,    -- JSON: the specs that workers have declared, and when each was declared first
    revision      bigint NOT NULL,
    next_at       bigint,           -- NULL while it is paused without an end
    paused_at     bigint,
    paused_by     text,
    paused_reason text,
    paused_until  bigint,
    last_job      text,
    last_moment   bigint,
    skipped_at    bigint,           -- the last moment without a job of its own, and why it has none
    skipped_why   text,
    created_at    bigint NOT NULL,
    updated_at    bigint NOT NULL,
    PRIMARY KEY (tenant, name)
) WITH (fillfactor = 70);
CREATE INDEX schedules_by_next ON treadle.schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX schedules_declared ON treadle.schedules (name) WHERE source = 'code';

-- Jobs of schedules that had not ended when their schedule last looked: what the next moment may overlap with.
CREATE TABLE treadle.fired (
    tenant   text COLLATE "C" NOT NULL,
    schedule text COLLATE "C" NOT NULL,
    id       uuid NOT NULL,
    PRIMARY KEY (tenant, schedule, id)
);

-- From what nothing is claimed: a tenant, a queue or a type, the other two names are ''. The pause of a tenant that has
-- ended stays here until no row of `ready` is parked for it.
CREATE TABLE treadle.pauses (
    tenant   text COLLATE "C" NOT NULL,
    queue    text COLLATE "C" NOT NULL,
    type     text COLLATE "C" NOT NULL,
    who      text NOT NULL,
    reason   text NOT NULL,
    since    bigint NOT NULL,
    until    bigint,            -- NULL: until somebody resumes it
    draining integer NOT NULL,  -- 1 if it began as a drain
    PRIMARY KEY (tenant, queue, type),
    CHECK ((tenant <> '')::integer + (queue <> '')::integer + (type <> '')::integer = 1)
);

-- Counts and usage: appended to by the transaction that moved the rows, so that no two of them meet in a row, and
-- compacted by a chore. What they add up to is exact at every commit. The tallies have all jobs, as 'all', and those
-- that are blocked or ended. What is leased is counted in `leases`; the rest is pending.
CREATE TABLE treadle.tallies (
    status text COLLATE "C" NOT NULL,
    type   text COLLATE "C" NOT NULL,
    queue  text COLLATE "C" NOT NULL,
    count  bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE treadle.usage (
    minute    bigint NOT NULL,  -- its first second since 1970
    type      text COLLATE "C" NOT NULL,
    queue     text COLLATE "C" NOT NULL,
    tenant    text COLLATE "C" NOT NULL,
    runs      bigint NOT NULL,
    completed bigint NOT NULL DEFAULT 0,
    failures  bigint NOT NULL,
    busy      bigint NOT NULL,  -- microseconds in a handler
    waiting   bigint NOT NULL   -- microseconds between due and started
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX usage_by_minute ON treadle.usage (minute);

-- How many jobs wait and run, of all tenants, sampled once a minute by whichever worker is first.
CREATE TABLE treadle.backlog (
    minute     bigint PRIMARY KEY,  -- its first second since 1970
    queued     bigint NOT NULL,     -- due
    later      bigint NOT NULL,     -- for a later time, after a failure too
    processing bigint NOT NULL
);

-- Who changed what, by the API or the dashboard.
CREATE TABLE treadle.audit (
    id     uuid NOT NULL,
    at     bigint NOT NULL,
    who    text NOT NULL,
    action text NOT NULL,
    what   text NOT NULL,  -- a job's id, a filter, a name
    count  bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    PRIMARY KEY (id, tenant)
);

-- Who may use the API. Of a token only its hash is kept.
CREATE TABLE treadle.tokens (
    hash       text PRIMARY KEY,
    name       text NOT NULL,
    scopes     text NOT NULL,  -- JSON
    bound_to   text NOT NULL,  -- the only tenant that it sees; '' for all
    created_at bigint NOT NULL,
    expires_at bigint
);
CREATE UNIQUE INDEX tokens_by_name ON treadle.tokens (name);

-- One thing done to many jobs, batch by batch, newest first.
CREATE TABLE treadle.operations (
    id         uuid PRIMARY KEY,
    who        text NOT NULL,
    action     text NOT NULL,
    filter     text NOT NULL,
    total      bigint NOT NULL,
    done       bigint NOT NULL,
    skipped    bigint NOT NULL,
    position   text,           -- the job that the last batch ended with
    started_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    ended_at   bigint,
    error      text,
    changes    text NOT NULL DEFAULT '{}'  -- JSON: of a reschedule, what it sets
);

-- Requests that were answered, by the key that their sender gave them: a repeated one is not carried out again.
CREATE TABLE treadle.requests (
    tenant text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    hash   text NOT NULL,
    ids    text NOT NULL,  -- JSON
    at     bigint NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX requests_by_time ON treadle.requests (at);

-- The parts put together again, for people. It shows what its reader may see, and no more.
CREATE VIEW treadle.job WITH (security_invoker = true) AS
WITH placed (id, tenant, status, run_at, attempts, snoozes, worker_id, updated_at, started_at, completed_at, error, result,
             progress, start_by, waits_for_key) AS (
    SELECT id, tenant, CASE WHEN parked = 'wait' THEN 'blocked' ELSE 'pending' END, run_at, attempts, snoozes, NULL, updated_at, NULL::bigint, NULL::bigint,
           CASE WHEN attempts > 0 OR suspicion > 0 THEN
                (SELECT error FROM treadle.attempts a WHERE a.id = r.id AND a.tenant = r.tenant
                  ORDER BY lease DESC LIMIT 1) END, NULL::json, NULL::double precision, start_by, parked = 'key'
      FROM treadle.ready r
    UNION ALL
    SELECT id, tenant, 'processing', run_at, attempt, snoozes, nullif(worker, ''), started_at, started_at, NULL, NULL,
           NULL, fraction, NULL, false
      FROM treadle.leases
    UNION ALL
    SELECT id, tenant, status, run_at, attempts, snoozes, nullif(worker, ''), completed_at, started_at, completed_at,
           error, result, NULL, NULL, false
      FROM treadle.finished
)
SELECT j.id, j.type, j.queue, j.tenant, j.subject, j.payload, j.priority, p.status,
       to_timestamp(p.run_at / 1e6) AS run_at, p.attempts, j.max_attempts, p.snoozes, p.worker_id,
       to_timestamp(j.created_at / 1e6) AS created_at, to_timestamp(p.updated_at / 1e6) AS updated_at,
       to_timestamp(p.started_at / 1e6) AS started_at, to_timestamp(p.completed_at / 1e6) AS completed_at,
       p.error, p.result, p.progress, to_timestamp(p.start_by / 1e6) AS start_by, p.waits_for_key,
       CASE WHEN j.dedupe IS NOT NULL THEN coalesce(substring(j.dedupe_rule FROM '"mode":"([a-z]+)"'), 'return')
            END AS dedupe_mode, j.schedule,
       to_timestamp(j.fired_at / 1e6) AS fired_at, j.origin, j.batch
  FROM placed p JOIN treadle.jobs j ON j.id = p.id AND j.tenant = p.tenant;

-- Take a dedupe key for a job. Return who holds it: this job, or the one that did before. As in keys.py.
CREATE FUNCTION treadle.take_key(of_tenant text, wanted text, job uuid, at bigint)
RETURNS uuid LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held      record;
    is_locked boolean := false;
    woken     text;
BEGIN
    LOOP
        INSERT INTO treadle.dedupe (tenant, key, id) VALUES (of_tenant, wanted, job) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN job;
        END IF;
        SELECT d.id, d.until_started, d.successor, r.queue,
               CASE WHEN j.id IS NULL THEN true
                    WHEN d.successor IS NOT NULL THEN f.id IS NOT NULL
                    WHEN d.expires_at IS NOT NULL THEN d.expires_at <= at
                    ELSE f.id IS NOT NULL OR (d.until_started = 1 AND (
                         r.attempts = 0 AND r.snoozes = 0 AND r.suspicion = 0 AND r.forgiven IS NULL) IS NOT TRUE)
                    END AS is_free
          INTO held
          FROM treadle.dedupe d
          LEFT JOIN treadle.jobs j ON j.id = d.id AND j.tenant = d.tenant
          LEFT JOIN treadle.ready r ON r.id = d.id AND r.tenant = d.tenant
          LEFT JOIN treadle.finished f ON f.id = d.id AND f.tenant = d.tenant
         WHERE d.tenant = of_tenant AND d.key = wanted;
        IF NOT FOUND THEN
            CONTINUE;  -- it was released in between
        ELSIF held.is_free THEN
            IF NOT is_locked THEN  -- another may be faster: look again after the lock
                PERFORM FROM treadle.dedupe d WHERE d.tenant = of_tenant AND d.key = wanted FOR NO KEY UPDATE;
                is_locked := true;
                CONTINUE;
            END IF;
            UPDATE treadle.dedupe d
               SET id = coalesce(held.successor, job), expires_at = NULL, successor = NULL,
                   until_started = coalesce((
                       SELECT (substring(j.dedupe_rule FROM '"until":"([a-z]+)"') = 'started')::integer
                         FROM treadle.jobs j WHERE j.id = held.successor AND j.tenant = of_tenant), 0),
                   since = CASE WHEN held.successor IS NOT NULL THEN d.since END
             WHERE d.tenant = of_tenant AND d.key = wanted;
            IF held.successor IS NULL THEN
                RETURN job;
            END IF;
            -- The holder was deleted by hand: its successor has the key now, and waits for its time only.
            UPDATE treadle.ready r SET parked = '', updated_at = at WHERE r.id = held.successor AND r.parked = 'key'
            RETURNING r.queue INTO woken;
            PERFORM pg_notify('treadle', woken) WHERE woken IS NOT NULL;
        ELSIF held.until_started = 1 THEN
            -- Nobody can claim it until we commit: what this transaction changes is there when it starts.
            PERFORM FROM treadle.dedupe d WHERE d.tenant = of_tenant AND d.key = wanted AND d.id = held.id FOR KEY SHARE;
            PERFORM FROM treadle.ready r WHERE FOUND AND r.id = held.id FOR SHARE;
            IF FOUND THEN
                PERFORM pg_notify('treadle', held.queue);
                RETURN held.id;
            END IF;
        ELSE
            RETURN held.id;
        END IF;
    END LOOP;
END $$;

-- Enqueue from SQL: from triggers, pg_cron, psql or PostgREST. It checks, stores and notifies as `td.enqueue` does, in
-- the caller's transaction and with the caller's rights. It returns the id of the job, or of the one that holds the
-- dedupe key.
CREATE FUNCTION treadle.enqueue(
    type         text,
    payload      jsonb DEFAULT '{}',
    queue        text DEFAULT NULL,              -- NULL, as priority and max_attempts: as workers publish it
    tenant       text DEFAULT '',
    subject      text DEFAULT '',
    priority     integer DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    delay        double precision DEFAULT NULL,  -- seconds
    run_at       timestamptz DEFAULT NULL,
    dedupe       text DEFAULT NULL,
    start_within double precision DEFAULT NULL   -- seconds
) RETURNS uuid LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    at     bigint := extract(epoch FROM clock_timestamp()) * 1000000;
    -- A UUIDv7: its first 48 bits are milliseconds, and two more bits make a 7 of the 4 of a random one.
    job    uuid := encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
                       PLACING substring(int8send(at / 1000) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid;
    due    bigint;
    holder uuid;
    wrong  record;
    policy treadle.types%ROWTYPE;
    opened boolean := row_security_active('treadle.jobs') AND coalesce(current_setting('treadle.tenant', true), '') = '';
BEGIN
    SELECT * INTO policy FROM treadle.types t WHERE t.type = enqueue.type;
    queue := coalesce(queue, policy.queue, 'default');
    tenant := coalesce(tenant, '');
    subject := coalesce(subject, '');
    priority := coalesce(priority, policy.priority, 0);
    max_attempts := coalesce(max_attempts, policy.max_attempts, 5);

    SELECT * INTO wrong FROM (VALUES
        ('type', type, coalesce(length(type), 0) NOT BETWEEN 1 AND 200, 'use 1 to 200 characters'),
        ('queue', queue, length(queue) NOT BETWEEN 1 AND 200, 'use 1 to 200 characters'),
        ('tenant', tenant, length(tenant) > 200, 'use at most 200 characters'),
        ('tenant', tenant, opened AND tenant = '' AND NOT EXISTS (
             SELECT FROM pg_policy p CROSS JOIN unnest(p.polroles) r (role)
              WHERE p.polrelid = 'treadle.jobs'::regclass AND p.polname = 'treadle_all' AND pg_has_role(r.role, 'USAGE')),
         'this role stores jobs of one tenant at a time: pass tenant => ...'),
        ('subject', subject, length(subject) > 200, 'use at most 200 characters'),
        ('payload', left(payload::text, 200), jsonb_typeof(payload) IS DISTINCT FROM 'object', 'a payload is a JSON object'),
        ('payload', left(payload::text, 200), octet_length(payload::text) > 1048576,
         'a payload has at most 1 MiB: store large data elsewhere, and pass where it is'),
        ('payload', left(payload::text, 200), jsonb_path_exists(payload,
             'strict $.**{64 to last} ? (@.type() == "object" || @.type() == "array")'), 'it has more than 64 levels'),
        ('payload', left(payload::text, 200), jsonb_path_exists(payload,
             'strict $.** ? (@.type() == "number" && (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308))'),
         'a number is too large for the programs that read it: pass it as a string'),
        ('priority', priority::text, abs(priority::bigint) > 32767, 'use a number from -32767 to 32767; higher runs first'),
        ('max_attempts', max_attempts::text, max_attempts NOT BETWEEN 1 AND 1000000, 'use a number, at least 1'),
        ('delay', delay::text, delay NOT BETWEEN 0 AND 1e10, 'seconds from now, 0 or more; for a moment use run_at'),
        ('delay', delay::text, delay IS NOT NULL AND run_at IS NOT NULL, 'pass either delay or run_at'),
        ('run_at', run_at::text, run_at NOT BETWEEN '0001-01-02 00:00Z' AND '9999-12-30 23:59:59.999999Z',
         'use a moment from 0001-01-02 to 9999-12-30'),
        ('dedupe', dedupe, octet_length(dedupe) NOT BETWEEN 1 AND 512, 'use 1 to 512 bytes; hash a longer key'),
        ('start_within', start_within::text, start_within NOT BETWEEN 0.001 AND 1e10, 'seconds after its run_at, more than 0')
    ) AS checked (option, given, is_wrong, way_out) WHERE is_wrong LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'treadle.enqueue: % = % is not valid: %', wrong.option, coalesce(quote_literal(wrong.given), 'NULL'),
              wrong.way_out USING ERRCODE = 'invalid_parameter_value';
    END IF;

    due := coalesce((extract(epoch FROM run_at) * 1000000)::bigint, at + (coalesce(delay, 0) * 1000000)::bigint);
    IF opened THEN
        PERFORM set_config('treadle.tenant', tenant, true);
    END IF;
    holder := CASE WHEN dedupe IS NULL THEN job ELSE treadle.take_key(tenant, dedupe, job, at) END;
    IF holder = job THEN
        INSERT INTO treadle.jobs (id, type, queue, tenant, subject, payload, priority, max_attempts, dedupe, created_at)
        VALUES (job, type, queue, tenant, subject, payload::text::json, priority, max_attempts, dedupe, at);
        INSERT INTO treadle.ready (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at,
                                   start_by, parked)
        VALUES (job, queue, type, tenant, priority, due, 0, 0, 0, at, due + (start_within * 1000000)::bigint,
                CASE WHEN policy.fair <> '' AND due <= at THEN 'fair' ELSE '' END);
        INSERT INTO treadle.tallies (status, type, queue, count) VALUES ('all', type, queue, 1);
        PERFORM pg_notify('treadle', queue);
    END IF;
    IF opened THEN
        PERFORM set_config('treadle.tenant', '', true);
    END IF;
    RETURN holder;
END $$;
