"""A job in every state that the view must show."""

from __future__ import annotations

from typing import Any

from tests.conformance.helpers import FAILED, RETRIED, SNOOZED, FakeClock, enlist, put, put_many, settle_one, take
from treadle.clock import SECOND
from treadle.job import Progress
from treadle.outcome import CANCELLED, Outcome, OutcomeKind

OPTIONS: dict[str, Any] = {"queue": "q", "tenant": "t", "subject": "s", "payload": '{"a":1}', "priority": 3}
CASES = (
    "pending",
    "retrying",
    "suspect",
    "snoozed",
    "retried by hand",
    "processing",
    "by hand",
    "completed",
    "failed",
    "cancelled",
    "cancelled while waiting",
)
_ENDS = {"completed": Outcome(OutcomeKind.COMPLETED, result='{"n":1}'), "failed": FAILED, "cancelled": CANCELLED}


def make(store: Any, clock: FakeClock, case: str) -> str:
    """Make a job in the state of `case`, each step at another moment. Return its id."""
    worker = enlist(store, "w1")
    (job, *_) = put_many(store, 2 if case == "suspect" else 1, **OPTIONS)
    clock.advance(1.25)
    if case == "pending":
        return put(store, delay=90 * SECOND, **OPTIONS).id
    if case == "cancelled while waiting":
        store.cancel(job.id)
        return job.id
    claimed = take(store, worker="" if case == "by hand" else worker)
    clock.advance(1.5)
    if case == "processing":
        store.save_progress([(claimed[0], Progress(0.5, "half"))])
    elif case == "retrying":
        settle_one(store, claimed[0], Outcome(OutcomeKind.RETRIED, delay=SECOND, error="boom"))
    elif case == "snoozed":
        settle_one(store, claimed[0], SNOOZED)
    elif case == "suspect":
        store.declare_dead(worker, "crash")
    elif case == "retried by hand":
        settle_one(store, claimed[0], FAILED)
        store.retry(job.id)
    elif case in _ENDS:
        settle_one(store, claimed[0], RETRIED)
        settle_one(store, take(store, worker=worker)[0], _ENDS[case])
    return job.id
