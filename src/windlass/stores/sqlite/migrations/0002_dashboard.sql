-- What the HTTP API and the dashboard need. It only adds: a windlass of schema 1 works on beside it.

-- The few that wait after a failure, so that they can be listed and counted among a million that just wait.
CREATE INDEX windlass_ready_again ON windlass_ready (id) WHERE attempts > 0;

-- Who changed what, by the API or the dashboard.
CREATE TABLE windlass_audit (
    id     TEXT PRIMARY KEY,
    at     INTEGER NOT NULL,
    who    TEXT NOT NULL,
    action TEXT NOT NULL,
    what   TEXT NOT NULL,  -- a job's id, a filter, a name
    count  INTEGER NOT NULL,
    tenant TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Who may use the API. Of a token only its hash is kept.
CREATE TABLE windlass_tokens (
    hash       TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    scopes     TEXT NOT NULL,  -- JSON
    bound_to   TEXT NOT NULL,  -- the only tenant that it sees; '' for all
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX windlass_tokens_by_name ON windlass_tokens (name);

-- One thing done to many jobs, batch by batch, newest first.
CREATE TABLE windlass_operations (
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
CREATE TABLE windlass_requests (
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL,
    hash   TEXT NOT NULL,
    ids    TEXT NOT NULL,  -- JSON
    at     INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX windlass_requests_by_time ON windlass_requests (at);

UPDATE windlass_meta SET value = 2 WHERE key = 'schema';
