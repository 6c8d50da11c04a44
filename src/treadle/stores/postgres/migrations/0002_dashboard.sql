-- What the HTTP API and the dashboard need. It only adds: a treadle of schema 1 works on beside it.

-- The few that wait after a failure, so that they can be listed and counted among a million that just wait.
CREATE INDEX ready_again ON treadle.ready (id) WHERE attempts > 0;

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
    error      text
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

UPDATE treadle.meta SET value = 2 WHERE key = 'schema';
