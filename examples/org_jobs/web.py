"""The web server. It runs jobs only when a client with a token sends POST /api/jobs/tick.

uvicorn org_jobs.web:app
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Path
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from treadle import TreadleError

from . import metering
from .jobs import make_tables, td
from .repository import JobsRepository

metering.meter(td)
repository = JobsRepository(td)
dashboard = td.asgi(read_only=True, price=metering.PRICE)  # prints a link to sign in with


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    await run_in_threadpool(make_tables)
    async with dashboard:
        yield


app = FastAPI(title="Jobs of orgs", lifespan=lifespan)


class NewJob(BaseModel):
    type: str
    payload: dict[str, Any] = {}
    run_at: datetime | None = None


@app.post("/orgs/{org_id}/jobs", status_code=202)
def enqueue(org_id: Annotated[str, Path(pattern="^[a-z0-9-]{1,80}$")], job: NewJob) -> dict[str, str]:
    try:
        return {"id": repository.enqueue(job.type, org_id=org_id, payload=job.payload, run_at=job.run_at)}
    except TreadleError as error:
        raise HTTPException(422, str(error)) from error


@app.get("/orgs/{org_id}/usage")
def usage(org_id: str) -> dict[str, Any]:
    for bill in metering.bills(td):
        if bill.org == org_id:
            return {**bill._asdict(), "cost": bill.cost}
    return {"org": org_id, "runs": 0}


def nobody(request: Request) -> None:
    """No login: only tokens are accepted, each with its scopes (`treadle tokens create cron --scope tick`)."""


app.mount("/dashboard", dashboard)
app.mount("/", td.asgi(auth=nobody))  # POST /api/jobs/tick, GET /api/metrics
