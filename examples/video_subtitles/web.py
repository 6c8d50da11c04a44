"""The web server: add videos, list them by status, retry failed ones. The worker runs in the same process.

uvicorn video_subtitles.web:app
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel, Field

from treadle import Status, WrongStatus

from .database import COUNTS, VIDEOS, database, make_tables, td
from .jobs import fetch_subtitle

ID = r"^[A-Za-z0-9_-]{1,40}$"


dashboard = td.asgi()  # prints a link to sign in with; `auth=` has your own login instead


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    make_tables()
    async with dashboard, td.worker(concurrency=4, grace=5):  # first rescues jobs of dead workers, and reconciles
        yield


app = FastAPI(title="Subtitles", lifespan=lifespan)
app.mount("/dashboard", dashboard)


class NewVideo(BaseModel):
    id: str = Field(pattern=ID)
    title: str
    priority: int = Field(0, ge=-100, le=100)


@app.put("/channels/{channel_id}")
def name_channel(channel_id: str, title: str) -> None:
    with database() as db:
        db.execute(
            "INSERT INTO channels VALUES (?, ?) ON CONFLICT DO UPDATE SET title = excluded.title", (channel_id, title)
        )


@app.post("/channels/{channel_id}/videos", status_code=201)
def add_video(channel_id: str, video: NewVideo) -> dict[str, str]:
    """The row and its job are one commit. If the video is already there, neither is stored."""
    try:
        with database() as db:
            enqueuer = fetch_subtitle.using(connection=db, subject=video.id, priority=video.priority)
            job = enqueuer.enqueue(video_id=video.id)
            db.execute("INSERT INTO videos VALUES (?, ?, ?, ?)", (video.id, channel_id, video.title, job.id))
    except sqlite3.IntegrityError as error:
        raise HTTPException(409, f"video {video.id} exists, or channel {channel_id} does not: {error}") from error
    return {"id": video.id, "status": job.status}


@app.get("/channels")
def channels() -> list[dict[str, Any]]:
    """Every channel with its videos counted by status."""
    with database() as db:
        found = {row["id"]: {**row, "videos": {}} for row in db.execute("SELECT id, title FROM channels ORDER BY id")}
        for row in db.execute(COUNTS):
            found[row["channel_id"]]["videos"][row["status"]] = row["videos"]
    return list(found.values())


@app.get("/channels/{channel_id}/videos")
def videos(
    channel_id: str, status: Status | None = None, after: str = "", limit: int = Query(50, ge=1, le=200)
) -> dict[str, Any]:
    """One page of a channel's videos. For the next page, pass `next` as `?after=`."""
    wanted = {"channel": channel_id, "status": status, "after": after, "limit": limit}
    with database() as db:
        page = [dict(row) for row in db.execute(VIDEOS, wanted)]
    return {"videos": page, "next": page[-1]["id"] if len(page) == limit else None}


@app.get("/videos/{video_id}/subtitle")
def subtitle(video_id: str) -> dict[str, str]:
    with database() as db:
        found = db.execute("SELECT srt FROM subtitles WHERE video_id = ?", (video_id,)).fetchone()
    if found is None:
        raise HTTPException(404, f"{video_id} has no subtitle")
    return {"srt": found["srt"]}


@app.post("/videos/{video_id}/retry")
def retry(video_id: str) -> dict[str, Any]:
    """Run a failed video again, with its attempts set to 0."""
    with database() as db:
        video = db.execute("SELECT job_id FROM videos WHERE id = ?", (video_id,)).fetchone()
    if video is None:
        raise HTTPException(404, f"there is no video {video_id}")
    try:
        job = td.retry(video["job_id"])
    except WrongStatus as error:
        raise HTTPException(409, str(error)) from error
    return {"id": video_id, "status": job.status, "attempts": job.attempts}
