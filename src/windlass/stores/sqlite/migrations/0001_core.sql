-- One row that never changes says what a job is; one row that moves says where it is.
-- Times are whole microseconds since 1970. Tenant and subject are '' where there is none.

CREATE TABLE windlass_meta (
    key   TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- 'schema' is the newest migration, 'oldest' the oldest schema whose windlass can still work here: a migration that
-- only adds leaves that as it is. 'lease' counts all leases, 'clock' is the latest time that was ever written.
INSERT INTO windlass_meta VALUES ('schema', 1), ('oldest', 1), ('lease', 0), ('clock', 0);

-- What was asked for. Written once.
CREATE TABLE windlass_jobs (
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
    created_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX windlass_jobs_by_tenant ON windlass_jobs (tenant, id) WHERE tenant <> '';
CREATE INDEX windlass_jobs_by_subject ON windlass_jobs (subject, id) WHERE subject <> '';

-- Waiting.
CREATE TABLE windlass_ready (
    id         TEXT PRIMARY KEY,
    queue      TEXT NOT NULL,
    type       TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    priority   INTEGER NOT NULL,
    run_at     INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    snoozes    INTEGER NOT NULL,
    suspicion  INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A claim reads ranges of this index, (queue, type, priority) by (queue, type, priority).
CREATE INDEX windlass_ready_in_order ON windlass_ready (queue, type, priority DESC, run_at, id);

-- In hand. Progress and the cancel flag are its only updates (and the deadline, by `extend`).
CREATE TABLE windlass_leases (
    id         TEXT PRIMARY KEY,
    lease      INTEGER NOT NULL,
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
    message    TEXT
) STRICT, WITHOUT ROWID;

-- Ended.
CREATE TABLE windlass_finished (
    id           TEXT PRIMARY KEY,
    lease        INTEGER NOT NULL,  -- 0 if no attempt ended it
    status       TEXT NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled')),
    queue        TEXT NOT NULL,
    type         TEXT NOT NULL,
    tenant       TEXT NOT NULL,
    attempts     INTEGER NOT NULL,
    worker       TEXT NOT NULL,
    run_at       INTEGER NOT NULL,
    started_at   INTEGER,
    completed_at INTEGER NOT NULL,
    result       TEXT,
    error        TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX windlass_finished_otherwise ON windlass_finished (status, id) WHERE status <> 'completed';

-- One row per unsuccessful attempt; not per snooze or release.
CREATE TABLE windlass_attempts (
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

-- A dedupe key is held from enqueue until a final status.
CREATE TABLE windlass_dedupe (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    id     TEXT NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

-- What the workers publish of each type; the last worker started wins.
CREATE TABLE windlass_types (
    type         TEXT PRIMARY KEY,
    queue        TEXT NOT NULL,
    priority     INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    concurrency  INTEGER,
    timeout      INTEGER,
    updated_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One incarnation of a process that claims and runs. Its `beats` stand still when it does.
CREATE TABLE windlass_workers (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    beats       INTEGER NOT NULL,
    started_at  INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    concurrency INTEGER NOT NULL,
    queues      TEXT NOT NULL,  -- JSON; [] for all
    types       TEXT NOT NULL,  -- JSON
    host        TEXT NOT NULL,  -- JSON: what tells this process from every other
    version     TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Counts and usage, kept by the transaction that moved the rows: exact at every commit. One writer at a time is a
-- fact of SQLite, so there is nothing to keep apart per worker, and nothing to fold.
CREATE TABLE windlass_tallies (
    status TEXT NOT NULL,
    type   TEXT NOT NULL,
    queue  TEXT NOT NULL,
    count  INTEGER NOT NULL,
    PRIMARY KEY (status, type, queue)
) STRICT, WITHOUT ROWID;

CREATE TABLE windlass_usage (
    minute   INTEGER NOT NULL,  -- its first second since 1970
    type     TEXT NOT NULL,
    queue    TEXT NOT NULL,
    tenant   TEXT NOT NULL,
    runs     INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    busy     INTEGER NOT NULL,  -- microseconds in a handler
    waiting  INTEGER NOT NULL,  -- microseconds between due and started
    PRIMARY KEY (minute, type, queue, tenant)
) STRICT, WITHOUT ROWID;

-- The parts put together again, for people. Each part is looked up by the job's id, so that joined with tables of yours
-- it reads the jobs that you join and no others; a union of the parts would be made anew from all jobs for each query.
CREATE VIEW windlass_job AS
SELECT j.id, j.type, j.queue, j.tenant, j.subject, j.payload, j.priority,
       CASE WHEN r.id IS NOT NULL THEN 'pending' WHEN l.id IS NOT NULL THEN 'processing' ELSE f.status END AS status,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(r.run_at, l.run_at, f.run_at) / 1e6, 'unixepoch') AS run_at,
       coalesce(r.attempts, l.attempt, f.attempts) AS attempts, j.max_attempts,
       nullif(coalesce(l.worker, f.worker), '') AS worker_id,
       strftime('%Y-%m-%dT%H:%M:%fZ', j.created_at / 1e6, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(r.updated_at, l.started_at, f.completed_at) / 1e6, 'unixepoch')
           AS updated_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(l.started_at, f.started_at) / 1e6, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', f.completed_at / 1e6, 'unixepoch') AS completed_at,
       CASE WHEN r.attempts > 0 OR r.suspicion > 0
            THEN (SELECT error FROM windlass_attempts a WHERE a.id = j.id ORDER BY lease DESC LIMIT 1)
            ELSE f.error END AS error,
       f.result, l.fraction AS progress
  FROM windlass_jobs j
  LEFT JOIN windlass_ready r ON r.id = j.id
  LEFT JOIN windlass_leases l ON l.id = j.id
  LEFT JOIN windlass_finished f ON f.id = j.id;
