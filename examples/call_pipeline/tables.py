"""The tables of the calls, in the queue's database. Every row has its org. On PostgreSQL an org sees only its own."""

from __future__ import annotations

import sqlite3

import psycopg

from treadle import Treadle

TABLES = """
CREATE TABLE IF NOT EXISTS calls (
    org_id TEXT NOT NULL,
    id     TEXT NOT NULL,
    title  TEXT NOT NULL,
    PRIMARY KEY (org_id, id)
);
CREATE TABLE IF NOT EXISTS artifacts (
    org_id  TEXT NOT NULL,
    call_id TEXT NOT NULL,
    kind    TEXT NOT NULL, -- audio | transcript | analysis
    path    TEXT NOT NULL,
    PRIMARY KEY (org_id, call_id, kind)
);
"""

# The queue under the application's own names.
PROCESSING_JOBS = """
DROP VIEW IF EXISTS processing_jobs;
CREATE VIEW processing_jobs{invoker} AS
SELECT id, tenant AS org_id, subject AS call_id, type AS stage,
       CASE status WHEN 'pending' THEN 'queued' WHEN 'completed' THEN 'done' ELSE status END AS status,
       payload, attempts, max_attempts, run_at AS available_at, started_at AS locked_at, worker_id AS locked_by,
       error AS last_error, created_at, updated_at
  FROM {job};
"""

# A forgotten WHERE shows nothing of another org, not even to workers: they act for the org of the job that they run.
ONE_ORG = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS one_org ON {table};
CREATE POLICY one_org ON {table}
    USING (org_id = current_setting('treadle.tenant', true))
    WITH CHECK (org_id = current_setting('treadle.tenant', true));
GRANT SELECT, INSERT ON {table} TO treadle_worker, treadle_producer;
"""


def make_tables(url: str) -> None:
    """Call it once, as the owner of the database. On PostgreSQL run `treadle db roles --apply` before."""
    Treadle(url).counts()  # the first use makes treadle's tables, which the view reads
    if not url.startswith("postgresql:"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
            file.executescript(TABLES + PROCESSING_JOBS.format(invoker="", job="treadle_job"))
        return
    with psycopg.connect(url) as server:
        server.execute(TABLES)
        server.execute(PROCESSING_JOBS.format(invoker=" WITH (security_invoker = true)", job="treadle.job"))
        server.execute("GRANT SELECT ON processing_jobs TO treadle_worker, treadle_producer")
        for table in ("calls", "artifacts"):
            server.execute(ONE_ORG.format(table=table))
