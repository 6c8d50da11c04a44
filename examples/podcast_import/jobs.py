"""The registry: each type of job with its handler and its limits. Add the next one below."""

from __future__ import annotations

import os
import time
from pathlib import Path

from treadle import Context, Fail, Treadle, exponential

from .feed import BadFeed, read_feed

td = Treadle()  # $TREADLE_URL: a SQLite file or a libSQL server; else ./treadle.db

FEEDS = Path(os.environ.get("FEEDS", Path(__file__).parent / "feeds"))
"""Stands for the web: the feed of podcast `x` is `x.xml`."""
PACE = float(os.environ.get("PACE", "0.01"))
"""Seconds per episode: stands for fetching its cover."""

TABLES = (
    "CREATE TABLE IF NOT EXISTS podcasts (id TEXT PRIMARY KEY, title TEXT NOT NULL, imports INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS episodes (podcast_id TEXT NOT NULL, guid TEXT NOT NULL, title TEXT NOT NULL, "
    "audio TEXT NOT NULL, published TEXT NOT NULL, PRIMARY KEY (podcast_id, guid))",
)


@td.job(
    concurrency=3,  # at most three at once, over all servers
    timeout=300,  # after five minutes it is stuck: it no longer counts, and another worker takes it
    max_attempts=5,
    backoff=exponential(base=1, cap=60),
    dedupe=True,  # a second click returns the import that is already under way
)
def podcast_import(ctx: Context, podcast_id: str) -> None:
    """Read a feed into rows. The rows and the job's completion are one commit, so a crash duplicates nothing."""
    try:
        feed = read_feed(FEEDS / f"{podcast_id}.xml")
    except BadFeed as error:
        raise Fail(f"{podcast_id}: {error}") from error  # a retry would read the same bad file
    for number, episode in enumerate(feed.episodes):
        ctx.progress(number / len(feed.episodes), episode.title)
        time.sleep(PACE)
    with ctx.transaction() as db:
        for table in TABLES:
            db.execute(table)
        db.execute(
            "INSERT INTO podcasts VALUES (?, ?, 1) "
            "ON CONFLICT DO UPDATE SET title = excluded.title, imports = imports + 1",
            (podcast_id, feed.title),
        )
        for episode in feed.episodes:
            db.execute(
                "INSERT OR REPLACE INTO episodes VALUES (?, ?, ?, ?, ?)",
                (podcast_id, episode.guid, episode.title, episode.audio, episode.published),
            )
        ctx.result = {"title": feed.title, "episodes": len(feed.episodes)}
