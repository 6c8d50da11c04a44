"""What is done in the background: each type with its handler. Nothing runs them but a tick."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing

import psycopg

from examples.org_jobs.rules import BACKOFF, RUNS
from treadle import Context, Retry, Treadle

td = Treadle()  # $TREADLE_URL: PostgreSQL, or a SQLite file

WORK = float(os.environ.get("WORK", "0.02"))
"""Seconds that a document takes."""
TABLE = """
CREATE TABLE IF NOT EXISTS documents (
    org_id TEXT NOT NULL,
    id     TEXT NOT NULL,
    words  INTEGER NOT NULL,
    times  INTEGER NOT NULL, -- it was indexed
    PRIMARY KEY (org_id, id)
)
"""
INDEX = """
INSERT INTO documents VALUES (?, ?, ?, 1)
ON CONFLICT (org_id, id) DO UPDATE SET words = excluded.words, times = documents.times + 1
"""


@td.job(max_attempts=RUNS, backoff=BACKOFF, dedupe=True)
def index_document(ctx: Context, document: str, text: str) -> None:
    """Count the words of a document. The count and the job's completion are one commit."""
    time.sleep(WORK)
    with ctx.transaction() as db:
        values = "%s" if td.store.where.startswith("postgres") else "?"
        db.execute(INDEX.replace("?", values), (ctx.tenant, document, len(text.split())))
        ctx.result = {"words": len(text.split())}


@td.job(max_attempts=RUNS, backoff=BACKOFF, dedupe=True)
def call_partner(ctx: Context, partner: str, down_for: int = 0) -> str:
    """Ask another service. This one is down for the first so many runs."""
    if ctx.attempt <= down_for:
        raise Retry(f"{partner} answers 503")
    return f"{partner} answers 200"


def make_tables() -> None:
    """In the same database, so that a handler's rows and its completion can be one commit."""
    td.store.open()
    if td.store.where.startswith("postgres"):
        with psycopg.connect(td.store.url) as server:
            server.execute("SELECT pg_advisory_xact_lock(2)")  # two servers may start at once
            server.execute(TABLE)
    else:
        with closing(sqlite3.connect(td.store.where, timeout=10)) as file:
            file.execute(TABLE)
