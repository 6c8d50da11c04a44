"""The jobs. Only a tick runs them."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing

import psycopg

from treadle import Context, Retry, Treadle

from .rules import BACKOFF, RUNS

URL = os.environ.get("TREADLE_URL", "sqlite:///jobs.db")  # or postgresql://…
td = Treadle(URL)

WORK = float(os.environ.get("WORK", "0.02"))
"""Seconds per document."""
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
INSERT INTO documents VALUES ({value}, {value}, {value}, 1)
ON CONFLICT (org_id, id) DO UPDATE SET words = excluded.words, times = documents.times + 1
"""


@td.job(max_attempts=RUNS, backoff=BACKOFF, dedupe=True)
def index_document(ctx: Context, document: str, text: str) -> None:
    """Count the words of a document. The count and the job's completion are one commit."""
    time.sleep(WORK)
    with ctx.transaction() as db:
        value = "?" if isinstance(db, sqlite3.Connection) else "%s"  # each driver has its own placeholder
        db.execute(INDEX.format(value=value), (ctx.tenant, document, len(text.split())))
        ctx.result = {"words": len(text.split())}


@td.job(max_attempts=RUNS, backoff=BACKOFF, dedupe=True)
def call_partner(ctx: Context, partner: str, down_for: int = 0) -> str:
    """Call another service. It is down for the first `down_for` runs."""
    if ctx.attempt <= down_for:
        raise Retry(f"{partner} answers 503")
    return f"{partner} answers 200"


def make_tables() -> None:
    """In the same database, so that a handler's rows and its completion can be one commit."""
    td.counts()  # the first use makes treadle's own tables
    if URL.startswith("postgresql:"):
        with psycopg.connect(URL) as server:
            server.execute("SELECT pg_advisory_xact_lock(2)")  # two servers may start at once
            server.execute(TABLE)
    else:
        with closing(sqlite3.connect(URL.removeprefix("sqlite:///"), timeout=10)) as file:
            file.execute(TABLE)
