"""The web server: a route that enqueues, routes that show the status, and the worker in the server's own process.

uvicorn podcast_import.web:app
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from .jobs import podcast_import, td

dashboard = td.asgi()  # prints a link to sign in with; `auth=` has your own login instead


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with dashboard, td.worker(concurrency=10, grace=5):  # claims, runs and settles until the server stops
        yield


app = FastAPI(title="Podcasts", lifespan=lifespan)
app.mount("/dashboard", dashboard)


class Import(BaseModel):
    podcast_id: str = Field(pattern=r"^[a-z0-9-]{1,80}$")


@app.post("/podcasts/import", status_code=202)
async def import_podcast(body: Import) -> dict[str, str]:
    """Once this answers, the import survives whatever happens to the server."""
    job = await podcast_import.aenqueue(podcast_id=body.podcast_id)
    return {"job": job.id, "status": job.status}


@app.get("/podcasts/import/{job_id}")
async def import_status(job_id: str) -> dict[str, Any]:
    job = await td.aget(job_id)
    if job is None:
        raise HTTPException(404, f"there is no import {job_id}")
    progress = None if job.progress is None else job.progress.fraction
    return {
        "podcast_id": job.payload["podcast_id"],
        "status": job.status,
        "progress": progress,
        "attempts": job.attempts,
        "result": job.result,
        "error": job.error,
    }


@app.get("/podcasts/import")
async def import_counts() -> dict[str, int]:
    """How many imports there are, by status."""
    return {
        row["status"]: row["count"] for row in await td.acounts(("type", "status")) if row["type"] == "podcast_import"
    }
