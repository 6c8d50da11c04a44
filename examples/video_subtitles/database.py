"""One SQLite file for the app's own tables and its jobs. A video has no status column: its job has the status."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from treadle import Treadle

URL = os.environ.get("TREADLE_URL", "sqlite:///videos.db")
td = Treadle(URL, retention=None)  # jobs are never pruned, because they hold the status of the videos

TABLES = """
CREATE TABLE IF NOT EXISTS channels (id TEXT PRIMARY KEY, title TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS videos (
    id         TEXT PRIMARY KEY,
    channel_id TEXT NOT NULL REFERENCES channels,
    title      TEXT NOT NULL,
    job_id     TEXT NOT NULL UNIQUE
);
CREATE INDEX IF NOT EXISTS videos_by_channel ON videos (channel_id, id);
CREATE TABLE IF NOT EXISTS subtitles (video_id TEXT PRIMARY KEY REFERENCES videos, srt TEXT NOT NULL);
"""

COUNTS = """
SELECT v.channel_id, j.status, count(*) AS videos
  FROM videos v JOIN treadle_job j ON j.id = v.job_id
 GROUP BY v.channel_id, j.status
"""

VIDEOS = """
SELECT v.id, v.title, j.status, j.attempts, j.error
  FROM videos v JOIN treadle_job j ON j.id = v.job_id
 WHERE v.channel_id = :channel AND v.id > :after AND (:status IS NULL OR j.status = :status)
 ORDER BY v.id LIMIT :limit
"""


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """A connection whose block is one transaction."""
    connection = sqlite3.connect(URL.removeprefix("sqlite:///"), timeout=10)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # treadle checkpoints; see docs/sqlite.md
        connection.row_factory = sqlite3.Row
        with connection:
            yield connection
    finally:
        connection.close()


def make_tables() -> None:
    with database() as db:
        db.executescript(TABLES)
