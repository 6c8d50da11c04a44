-- 0001_core

-- One row that never changes says what a job is; one row that moves says where it is.
-- Times are whole microseconds since 1970. Tenant and subject are '' where there is none.

CREATE TABLE treadle_meta (
    key   TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- 'schema' is the newest migration, 'oldest' the oldest schema whose treadle can still work here: a migration that
-- only adds leaves that as it is. 'lease' counts all leases, 'clock' is the latest time that was ever written.
INSERT INTO treadle_meta VALUES ('schema', 1), ('oldest', 1), ('lease', 0), ('clock', 0);

-- What was asked for. Written once, but for the priority and the queue, which a reschedule changes.
CREATE TABLE treadle_jobs (
    id           TEXT PRIMARY KEY,
    type         TEXT NOT NULL,
    queue        TEXT NOT NULL,
    tenant       TEXT NOT NULL,
    subject      TEXT NOT NULL,
    payload      TEXT NOT NULL,
    priority     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    dedupe       TEXT,
    traceparent  TEXT,
    created_at   INTEGER NOT NULL,
    dedupe_rule  TEXT,     -- JSON; NULL if it has a key alone, or none
    schedule     TEXT,     -- the schedule that fired it, and the moment for which it did
    fired_at     INTEGER,
    origin       TEXT,     -- the job whose handler started it
    batch        TEXT      -- the batch that it is a member of
) STRICT, WITHOUT ROWID;

CREATE INDEX treadle_jobs_by_tenant ON treadle_jobs (tenant, id) WHERE tenant <> '';
CREATE INDEX treadle_jobs_by_subject ON treadle_jobs (subject, id) WHERE subject <> '';
CREATE INDEX treadle_jobs_by_schedule ON treadle_jobs (schedule, id) WHERE schedule IS NOT NULL;
CREATE INDEX treadle_jobs_by_origin ON treadle_jobs (origin, id) WHERE origin IS NOT NULL;
CREATE INDEX treadle_jobs_by_batch ON treadle_jobs (batch, id) WHERE batch IS NOT NULL;

-- Waiting.
CREATE TABLE treadle_ready (
    id         TEXT PRIMARY KEY,
    queue      TEXT NOT NULL,
    type       TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    priority   INTEGER NOT NULL,
    run_at     INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    snoozes    INTEGER NOT NULL,
    suspicion  INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    parked     TEXT NOT NULL DEFAULT '',  -- why claims do not meet it: see parking.py
    start_by   INTEGER, -- if it is not started by then, it is cancelled; NULL: it waits as long as it takes
    forgiven   INTEGER  -- attempts before its last new step, which no longer count; NULL: it has no steps
) STRICT, WITHOUT ROWID;

-- A claim reads ranges of this index, (queue, type, priority) by (queue, type, priority). Parked rows are not in it.
-- (`parked` is, so that SQLite reads no table for it.)
CREATE INDEX treadle_ready_in_order ON treadle_ready (queue, type, priority DESC, run_at, id, parked)
    WHERE parked = '';

-- Due jobs of types whose tenants take turns: a claim jumps from tenant to tenant.
CREATE INDEX treadle_ready_fair ON treadle_ready (queue, type, priority DESC, tenant, run_at, id, parked)
    WHERE parked = 'fair';

-- Where the others are found again when what parked them is over. (What they are parked for sorts after 'fair'.)
CREATE INDEX treadle_ready_parked ON treadle_ready (parked, queue, type, priority DESC, run_at, id) WHERE parked > 'fair';

-- Those that were put here for later: when the next one is due. A job that is due at once is not in it.
CREATE INDEX treadle_ready_later ON treadle_ready (run_at) WHERE run_at > updated_at;

-- The few that wait after a failure, so that they can be listed and counted among a million that just wait.
CREATE INDEX treadle_ready_retrying ON treadle_ready (id) WHERE attempts > 0;

-- Those that wait for other jobs or signals, in the order in which they are listed.
CREATE INDEX treadle_ready_blocked ON treadle_ready (id) WHERE parked = 'wait';

-- The few that expire.
CREATE INDEX treadle_ready_expiring ON treadle_ready (start_by) WHERE start_by IS NOT NULL;

-- Leased. Progress and the cancel flag are its only updates (and the deadline, by `extend`).
CREATE TABLE treadle_leases (
    id         TEXT PRIMARY KEY,
    lease      INTEGER NOT NULL,
    token      INTEGER NOT NULL,  -- random, the same for all jobs of one claim: with the number, it is the fence
    queue      TEXT NOT NULL,
    type       TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    attempt    INTEGER NOT NULL,
    snoozes    INTEGER NOT NULL,
    suspicion  INTEGER NOT NULL,
    worker     TEXT NOT NULL,  -- '' for a lease taken by hand, which lives by its deadline alone
    run_at     INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    deadline   INTEGER,
    cancel     INTEGER NOT NULL DEFAULT 0,
    fraction   REAL,
    message    TEXT,
    start_by   INTEGER, -- as in `ready`: it waits for that again if it is released before its handler was called
    forgiven   INTEGER  -- as in `ready`; its first new step sets it
) STRICT, WITHOUT ROWID;

-- Ended.
CREATE TABLE treadle_finished (
    id           TEXT PRIMARY KEY,
    lease        INTEGER NOT NULL,  -- 0 if no attempt ended it
    token        INTEGER NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled')),
    queue        TEXT NOT NULL,
    type         TEXT NOT NULL,
    tenant       TEXT NOT NULL,
    attempts     INTEGER NOT NULL,
    snoozes      INTEGER NOT NULL DEFAULT 0,
    worker       TEXT NOT NULL,
    run_at       INTEGER NOT NULL,
    started_at   INTEGER,
    completed_at INTEGER NOT NULL,
    result       TEXT,
    error        TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX treadle_finished_not_completed ON treadle_finished (status, id) WHERE status <> 'completed';

-- One row per unsuccessful attempt; not per snooze or release.
CREATE TABLE treadle_attempts (
    id         TEXT NOT NULL,
    lease      INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    worker     TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    outcome    TEXT NOT NULL,
    error      TEXT,
    traceback  TEXT,
    PRIMARY KEY (id, lease)
) STRICT, WITHOUT ROWID;

-- What a handler has done, step by step: a run that comes to a stored step gets its value. Also how its waits ended.
CREATE TABLE treadle_steps (
    id         TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    name       TEXT NOT NULL,
    position   INTEGER NOT NULL,  -- in the order in which they were stored
    kind       TEXT NOT NULL,     -- 'step', 'sleep', 'signal', 'timeout', 'gather' or 'gathered': see steps.py
    value      TEXT,
    arguments  TEXT NOT NULL,     -- a hash of what the step was called with; '' if that has no JSON form
    lease      INTEGER NOT NULL,  -- of the run that stored it, and which attempt that was
    attempt    INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    PRIMARY KEY (id, tenant, name)
) STRICT, WITHOUT ROWID;

-- Who waits for what. A row stays when it is met, until its job is deleted: it says what came before what.
CREATE TABLE treadle_waits (
    id        TEXT NOT NULL,     -- the job that waits
    tenant    TEXT NOT NULL,
    kind      TEXT NOT NULL,     -- 'parent' or 'subjob': for a job to end; 'signal'
    what      TEXT NOT NULL,     -- the job's id or the signal's name
    step      TEXT NOT NULL,     -- the step that waits; '' for parents
    if_failed TEXT NOT NULL,     -- 'hold', 'cancel' or 'run'
    met       INTEGER NOT NULL,
    since     INTEGER NOT NULL,
    until     INTEGER,           -- when it no longer waits for the signal; NULL: it waits as long as it takes
    PRIMARY KEY (id, what, step)
) STRICT, WITHOUT ROWID;
CREATE INDEX treadle_waits_for ON treadle_waits (what);

-- Named facts. The first value of each name counts, for every job that waits for it, before or after.
CREATE TABLE treadle_signals (
    tenant TEXT NOT NULL,
    name   TEXT NOT NULL,
    value  TEXT NOT NULL,
    who    TEXT NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX treadle_signals_by_time ON treadle_signals (at);

-- What may let waiting jobs go: a job that others wait for has ended, a signal came, a job began to wait or has waited
-- long enough, members of a batch have ended. Rows are only added and deleted: a claim that comes to one matches it.
CREATE TABLE treadle_arrivals (
    seq    INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL,
    kind   TEXT NOT NULL,  -- 'ended', 'signal', 'waiter' or 'batch'
    tenant TEXT NOT NULL,
    what   TEXT NOT NULL   -- of jobs that have ended: a JSON array of their ids
) STRICT;
CREATE INDEX treadle_arrivals_in_order ON treadle_arrivals (at, seq);

-- Groups of jobs, and what to enqueue when all of them have ended.
CREATE TABLE treadle_batches (
    tenant     TEXT NOT NULL,
    name       TEXT NOT NULL,
    then_job   TEXT,             -- JSON: a request to enqueue if all have completed; NULL: nothing
    else_job   TEXT,             -- ... and if not
    closings   INTEGER NOT NULL, -- how often all of its jobs had ended
    closed_at  INTEGER,          -- NULL while it is open
    last_job   TEXT,             -- what the last closing has enqueued
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX treadle_batches_by_time ON treadle_batches (created_at);
CREATE INDEX treadle_batches_of_tenant ON treadle_batches (tenant, created_at);
CREATE INDEX treadle_batches_closed ON treadle_batches (closed_at) WHERE closed_at IS NOT NULL;

-- Its jobs, counted: appended to by the transaction that moved them, added up when the batch is looked at.
CREATE TABLE treadle_batch_counts (
    seq       INTEGER PRIMARY KEY,
    tenant    TEXT NOT NULL,
    batch     TEXT NOT NULL,
    added     INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    cancelled INTEGER NOT NULL
) STRICT;
CREATE INDEX treadle_batch_counts_by_batch ON treadle_batch_counts (batch, tenant);

-- What handlers have logged, some lines per attempt.
CREATE TABLE treadle_logs (
    id      TEXT NOT NULL,
    tenant  TEXT NOT NULL,
    lease   INTEGER NOT NULL,
    line    INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    level   TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (id, tenant, lease, line)
) STRICT, WITHOUT ROWID;

-- A dedupe key is held from enqueue until a final status, or as long as the rule of its job says.
CREATE TABLE treadle_dedupe (
    tenant        TEXT NOT NULL,
    key           TEXT NOT NULL,
    id            TEXT NOT NULL,
    until_started INTEGER NOT NULL DEFAULT 0,  -- 1: it is free when the job has started
    since         INTEGER,                     -- of a debounce: its first call
    expires_at    INTEGER,                     -- of a throttle: it is held until then, and no longer
    successor     TEXT,                        -- the job that takes the key when the holder has ended
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX treadle_dedupe_with_successor ON treadle_dedupe (id) WHERE successor IS NOT NULL;
CREATE INDEX treadle_dedupe_throttled ON treadle_dedupe (expires_at) WHERE expires_at IS NOT NULL;

-- What the workers publish of each type. Of what live workers declare, the newest declaration wins.
CREATE TABLE treadle_types (
    type         TEXT PRIMARY KEY,
    queue        TEXT NOT NULL,
    priority     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    concurrency  INTEGER,
    timeout      INTEGER,
    updated_at   INTEGER NOT NULL,
    redact       TEXT NOT NULL DEFAULT '[]',  -- JSON: names that its app hides, too; false if it hides nothing
    arguments    TEXT NOT NULL DEFAULT '', -- JSON schema of the handler's arguments; '' if there is none
    limits       TEXT NOT NULL DEFAULT '[]', -- JSON: the limits that its code declares
    fair         TEXT NOT NULL DEFAULT '', -- 'tenant' if its tenants take turns
    spec         TEXT NOT NULL DEFAULT '', -- the hash of this declaration
    known        TEXT NOT NULL DEFAULT '{}' -- JSON: the hashes of what workers have declared, each with when it was first
) STRICT, WITHOUT ROWID;
CREATE INDEX treadle_types_fair ON treadle_types (type) WHERE fair <> '';

-- What people have changed of limits at run time: for one key, or with '' for all others. It wins over the code. The row
-- without a name counts the changes in `at`.
CREATE TABLE treadle_limits (
    name        TEXT NOT NULL,
    key         TEXT NOT NULL,
    concurrency INTEGER,        -- NULL, as the one below: as the code says
    rate        TEXT,           -- JSON
    who         TEXT NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (name, key)
) STRICT, WITHOUT ROWID;

-- The limits under which leased jobs run, each with the key that it counts the job by.
CREATE TABLE treadle_lease_keys (
    name   TEXT NOT NULL,
    key    TEXT NOT NULL,
    id     TEXT NOT NULL,
    lease  INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    PRIMARY KEY (name, key, id, tenant)
) STRICT, WITHOUT ROWID;
CREATE INDEX treadle_lease_keys_by_job ON treadle_lease_keys (id);

-- The same. (In PostgreSQL, some of them are in the rows of the leases.)
CREATE VIEW treadle_limited_leases AS SELECT name, key, id, lease, tenant FROM treadle_lease_keys;

-- Moments at which a key of a limit may have a free place. A claim that comes to one lets jobs go that are parked for it.
CREATE TABLE treadle_openings (
    seq  INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    key  TEXT NOT NULL,
    at   INTEGER NOT NULL,
    held INTEGER NOT NULL, -- 1: nothing of this key starts before; 2: the next one may start then; 0: now
    keys TEXT CHECK (json_type(keys) = 'array')  -- the keys of jobs that have ended together; NULL: only `key`
) STRICT;
CREATE INDEX treadle_openings_in_order ON treadle_openings (at);
CREATE INDEX treadle_openings_by_key ON treadle_openings (name, key, at) WHERE held > 0;

-- The token bucket of each key of a rate. The newest row counts; one without `full_at` gives a token back.
CREATE TABLE treadle_buckets (
    seq     INTEGER PRIMARY KEY,
    name    TEXT NOT NULL,
    key     TEXT NOT NULL,
    full_at INTEGER  -- the nanosecond since 1970 at which it is full again
) STRICT;
CREATE INDEX treadle_buckets_by_key ON treadle_buckets (name, key, seq);

-- One incarnation of a process that claims and runs. Its `beats` stand still when it does.
CREATE TABLE treadle_workers (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    beats       INTEGER NOT NULL,
    started_at  INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    concurrency INTEGER NOT NULL,
    queues      TEXT NOT NULL,  -- JSON; [] for all
    types       TEXT NOT NULL,  -- JSON: each type with the hash of what its code declares
    host        TEXT NOT NULL,  -- JSON: what identifies this process
    version     TEXT NOT NULL,
    stalled_at  INTEGER,        -- since when its event loop is blocked; NULL: it is not
    quiet_at    INTEGER,         -- since when somebody wants it to claim nothing; NULL: it claims
    schedules   TEXT NOT NULL DEFAULT '{}'  -- JSON: the schedules that its code declares, each with its spec
) STRICT, WITHOUT ROWID;

-- Recurring rules. A moment is fired by moving `next_at` on and storing its job, in one transaction.
CREATE TABLE treadle_schedules (
    tenant        TEXT NOT NULL,
    name          TEXT NOT NULL,
    type          TEXT NOT NULL,
    cron          TEXT NOT NULL,     -- '' if it fires `every` so many microseconds, counted from `anchor`
    zone          TEXT NOT NULL,
    every         INTEGER NOT NULL,
    anchor        INTEGER NOT NULL,
    payload       TEXT NOT NULL,     -- JSON
    subject       TEXT NOT NULL,
    queue         TEXT,              -- NULL, as the two below: as its type has it
    priority      INTEGER,
    max_attempts  INTEGER,
    missed        TEXT NOT NULL,
    overlap       TEXT NOT NULL,
    source        TEXT NOT NULL,     -- 'code' if workers declare it, 'runtime' if it was put
    spec          TEXT NOT NULL,     -- the hash of all of the above
    known         TEXT NOT NULL,     -- JSON: the specs that workers have declared, and when each was declared first
    revision      INTEGER NOT NULL,
    next_at       INTEGER,           -- NULL while it is paused without an end
    paused_at     INTEGER,
    paused_by     TEXT,
    paused_reason TEXT,
    paused_until  INTEGER,
    last_job      TEXT,
    last_moment   INTEGER,
    skipped_at    INTEGER,           -- the last moment without a job of its own, and why it has none
    skipped_why   TEXT,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX treadle_schedules_by_next ON treadle_schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX treadle_schedules_declared ON treadle_schedules (name) WHERE source = 'code';

-- Jobs of schedules that had not ended when their schedule last looked: what the next moment may overlap with.
CREATE TABLE treadle_fired (
    tenant   TEXT NOT NULL,
    schedule TEXT NOT NULL,
    id       TEXT NOT NULL,
    PRIMARY KEY (tenant, schedule, id)
) STRICT, WITHOUT ROWID;

-- From what nothing is claimed: a tenant, a queue or a type, the other two names are ''. The pause of a tenant that has
-- ended stays here until no row of `ready` is parked for it.
CREATE TABLE treadle_pauses (
    tenant   TEXT NOT NULL,
    queue    TEXT NOT NULL,
    type     TEXT NOT NULL,
    who      TEXT NOT NULL,
    reason   TEXT NOT NULL,
    since    INTEGER NOT NULL,
    until    INTEGER,           -- NULL: until somebody resumes it
    draining INTEGER NOT NULL,  -- 1 if it began as a drain
    PRIMARY KEY (tenant, queue, type),
    CHECK ((tenant <> '') + (queue <> '') + (type <> '') = 1)
) STRICT, WITHOUT ROWID;

-- Counts and usage, kept by the transaction that moved the rows: exact at every commit. One writer at a time is a
-- fact of SQLite, so there is nothing to keep apart per worker, and nothing to compact. The tallies have all jobs, as
-- 'all', and those that are blocked or ended. What is leased is counted in `leases`; the rest is pending.
CREATE TABLE treadle_tallies (
    status TEXT NOT NULL,
    type   TEXT NOT NULL,
    queue  TEXT NOT NULL,
    count  INTEGER NOT NULL,
    PRIMARY KEY (status, type, queue)
) STRICT, WITHOUT ROWID;

CREATE TABLE treadle_usage (
    minute    INTEGER NOT NULL,  -- its first second since 1970
    type      TEXT NOT NULL,
    queue     TEXT NOT NULL,
    tenant    TEXT NOT NULL,
    runs      INTEGER NOT NULL,
    completed INTEGER NOT NULL DEFAULT 0,
    failures  INTEGER NOT NULL,
    busy      INTEGER NOT NULL,  -- microseconds in a handler
    waiting   INTEGER NOT NULL,  -- microseconds between due and started
    PRIMARY KEY (minute, type, queue, tenant)
) STRICT, WITHOUT ROWID;

-- How many jobs wait and run, sampled once a minute by whichever worker is first.
CREATE TABLE treadle_backlog (
    minute     INTEGER PRIMARY KEY,  -- its first second since 1970
    queued     INTEGER NOT NULL,     -- due
    later      INTEGER NOT NULL,     -- for a later time, after a failure too
    processing INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Who changed what, by the API or the dashboard.
CREATE TABLE treadle_audit (
    id     TEXT PRIMARY KEY,
    at     INTEGER NOT NULL,
    who    TEXT NOT NULL,
    action TEXT NOT NULL,
    what   TEXT NOT NULL,  -- a job's id, a filter, a name
    count  INTEGER NOT NULL,
    tenant TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Who may use the API. Of a token only its hash is kept.
CREATE TABLE treadle_tokens (
    hash       TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    scopes     TEXT NOT NULL,  -- JSON
    bound_to   TEXT NOT NULL,  -- the only tenant that it sees; '' for all
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX treadle_tokens_by_name ON treadle_tokens (name);

-- One thing done to many jobs, batch by batch, newest first.
CREATE TABLE treadle_operations (
    id         TEXT PRIMARY KEY,
    who        TEXT NOT NULL,
    action     TEXT NOT NULL,
    filter     TEXT NOT NULL,
    total      INTEGER NOT NULL,
    done       INTEGER NOT NULL,
    skipped    INTEGER NOT NULL,
    position   TEXT,           -- the job that the last batch ended with
    started_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    ended_at   INTEGER,
    error      TEXT,
    changes    TEXT NOT NULL DEFAULT '{}'  -- JSON: of a reschedule, what it sets
) STRICT, WITHOUT ROWID;

-- Requests that were answered, by the key that their sender gave them: a repeated one is not carried out again.
CREATE TABLE treadle_requests (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    hash   TEXT NOT NULL,
    ids    TEXT NOT NULL,  -- JSON
    at     INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX treadle_requests_by_time ON treadle_requests (at);

-- The parts put together again, for people. Each part is looked up by the job's id, so that joined with tables of yours
-- it reads the jobs that you join and no others; a union of the parts would be made anew from all jobs for each query.
CREATE VIEW treadle_job AS
SELECT j.id, j.type, j.queue, j.tenant, j.subject, j.payload, j.priority,
       CASE WHEN r.id IS NOT NULL THEN iif(r.parked = 'wait', 'blocked', 'pending')
            WHEN l.id IS NOT NULL THEN 'processing' ELSE f.status END AS status,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(r.run_at, l.run_at, f.run_at) / 1e6, 'unixepoch') AS run_at,
       coalesce(r.attempts, l.attempt, f.attempts) AS attempts, j.max_attempts,
       coalesce(r.snoozes, l.snoozes, f.snoozes) AS snoozes,
       nullif(coalesce(l.worker, f.worker), '') AS worker_id,
       strftime('%Y-%m-%dT%H:%M:%fZ', j.created_at / 1e6, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(r.updated_at, l.started_at, f.completed_at) / 1e6, 'unixepoch')
           AS updated_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(l.started_at, f.started_at) / 1e6, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', f.completed_at / 1e6, 'unixepoch') AS completed_at,
       CASE WHEN r.attempts > 0 OR r.suspicion > 0
            THEN (SELECT error FROM treadle_attempts a WHERE a.id = j.id ORDER BY lease DESC LIMIT 1)
            ELSE f.error END AS error,
       f.result, l.fraction AS progress,
       strftime('%Y-%m-%dT%H:%M:%fZ', r.start_by / 1e6, 'unixepoch') AS start_by, coalesce(r.parked = 'key', 0) AS waits_for_key,
       CASE WHEN j.dedupe IS NULL THEN NULL WHEN json_valid(j.dedupe_rule) THEN j.dedupe_rule ->> 'mode'
            ELSE 'return' END AS dedupe_mode, j.schedule,
       strftime('%Y-%m-%dT%H:%M:%fZ', j.fired_at / 1e6, 'unixepoch') AS fired_at, j.origin, j.batch
  FROM treadle_jobs j
  LEFT JOIN treadle_ready r ON r.id = j.id
  LEFT JOIN treadle_leases l ON l.id = j.id
  LEFT JOIN treadle_finished f ON f.id = j.id;
