-- What the HTTP API and the dashboard need. It only adds: a treadle of schema 1 works on beside it.

-- The few that wait after a failure, so that they can be listed and counted among a million that just wait.
CREATE INDEX treadle_ready_again ON treadle_ready (id) WHERE attempts > 0;

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
    error      TEXT
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
DROP VIEW treadle_job;
CREATE VIEW treadle_job AS
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
            THEN (SELECT error FROM treadle_attempts a WHERE a.id = j.id ORDER BY lease DESC LIMIT 1)
            ELSE f.error END AS error,
       f.result, l.fraction AS progress
  FROM treadle_jobs j
  LEFT JOIN treadle_ready r ON r.id = j.id
  LEFT JOIN treadle_leases l ON l.id = j.id
  LEFT JOIN treadle_finished f ON f.id = j.id;

UPDATE treadle_meta SET value = 2 WHERE key = 'schema';
