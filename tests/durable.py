"""Jobs that wait, as the handlers of a worker would leave them."""

from __future__ import annotations

from treadle import Treadle
from treadle.clock import SECOND
from treadle.job import ClaimedJob, Job
from treadle.outcome import COMPLETED, Outcome, OutcomeKind
from treadle.steps import NewStep
from treadle.stores.base import ClaimRequest
from treadle.waits import NewWait

PLAN = NewStep("plan", value='{"pages": [1, 2], "password": "hunter2"}', position=1, took=SECOND)
SECRET = NewStep("api_token", value='"s3cret-value"', position=2)


def take(td: Treadle, id: str) -> ClaimedJob:
    (found,) = [one for one in td.store.claim("", ClaimRequest(limit=50)) if one.id == id]
    return found


def suspend(td: Treadle, *waits: NewWait, steps: tuple[NewStep, ...] = (PLAN, SECRET), tenant: str = "") -> Job:
    """A job whose handler has stored these steps, and waits for these."""
    job = td.enqueue("handle_call", {"call": "c-7"}, tenant=tenant)
    claimed = take(td, job.id)
    td.store.save_steps([(claimed, step) for step in steps])
    assert not td.store.settle([(claimed, Outcome(OutcomeKind.SUSPENDED, charged=0, waits=waits))]).lost
    return refreshed(td, job)


def approval(name: str = "approve:c-7", seconds: int | None = 3600) -> NewWait:
    return NewWait("signal", name, step="ok", timeout=None if seconds is None else seconds * SECOND)


def complete(td: Treadle, id: str) -> None:
    assert not td.store.settle([(take(td, id), COMPLETED)]).lost


def child_of(td: Treadle, *parents: Job, tenant: str = "", if_failed: str = "hold") -> Job:
    return td.enqueue("summary", {}, tenant=tenant, after=parents, if_failed=if_failed)


def refreshed(td: Treadle, job: Job) -> Job:
    found = td.get(job.id)
    assert found is not None
    return found
