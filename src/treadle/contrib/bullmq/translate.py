"""What a job is in BullMQ's words, and the other way round. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from treadle import clock, codec
from treadle.backoff import Backoff, backoff_delay
from treadle.ids import id_at
from treadle.job import ClaimedJob, NewJob
from treadle.registry import JobType

OURS = "treadle"
"""The key in a job's options that has what BullMQ has no word for: the tenant, the subject and the trace."""
MIDDLE = 1 << 20
"""The priority of a job whose own is 0. Theirs goes from 1, the most urgent, to 2^21; 0 comes before all of them."""
SNOOZES = "treadleSnoozes"
"""A field of a job's hash: how often it was snoozed."""
MILLISECOND = 1000
"""Microseconds."""


def options_of(job: NewJob, backoff: Backoff, keep: timedelta | None, now: int) -> dict[str, Any]:
    """The options of `Queue.add`."""
    ours = {"tenant": job.tenant, "subject": job.subject, "traceparent": job.traceparent, "origin": job.origin}
    options: dict[str, Any] = {
        "jobId": job.id,
        "attempts": job.max_attempts,
        "backoff": _backoff_of(backoff),
        "priority": MIDDLE - job.priority,
        "removeOnComplete": False if keep is None else {"age": round(keep.total_seconds())},
        OURS: {name: value for name, value in ours.items() if value},
    }
    if (delay := milliseconds(job.due(now) - now)) > 0:
        options["delay"] = delay
    if job.dedupe is not None:
        options["deduplication"] = {"id": codec.as_json([job.tenant, job.dedupe])}
    return options


def _backoff_of(backoff: Backoff) -> dict[str, object]:
    """Theirs doubles, or stays. A worker of treadle asks the type's own backoff instead."""
    first, second = (milliseconds(backoff_delay(backoff, failures)) for failures in (1, 2))
    return {"type": "fixed" if first == second else "exponential", "delay": first}


def milliseconds(microseconds: int) -> int:
    """Rounded up, so that nothing starts too early."""
    return -(-microseconds // MILLISECOND)


def cancel_key(of: Any, id: str) -> str:
    """Where Redis has the request to stop a running job, of a queue or a worker of BullMQ."""
    return f"{of.toKey(id)}:treadle-cancel"


def claimed_from(theirs: Any, queue: str, job_type: JobType, snoozes: int) -> ClaimedJob:
    """A job that BullMQ has given to this worker. As in treadle, a crash costs an attempt, and a snooze does not."""
    ours: Any = theirs.opts.get(OURS)
    ours = ours if isinstance(ours, Mapping) else {}
    traceparent = ours.get("traceparent")
    return ClaimedJob(
        id=theirs.id,
        number=theirs.attemptsStarted,
        token=0,
        type=job_type.name,
        queue=queue,
        tenant=str(ours.get("tenant", "")),
        subject=str(ours.get("subject", "")),
        payload=codec.as_json({} if theirs.data is None else theirs.data),
        attempt=theirs.attemptsMade + theirs.stalledCounter + 1,
        max_attempts=theirs.opts.get("attempts") or job_type.policy.max_attempts,
        snoozes=snoozes,
        suspicion=0,
        run_at=(theirs.timestamp + theirs.delay) * MILLISECOND,
        started_at=clock.now(),
        deadline=None,
        keyed=0,
        traceparent=traceparent if isinstance(traceparent, str) else None,
    )


def with_ids(follow_ups: Sequence[NewJob], theirs: Any, queue: str) -> list[NewJob]:
    """Follow-ups with ids that the next run gives them, too, if this one dies before its job is completed. One that
    the next run makes otherwise has another id, so that none is taken for another."""
    made_at = theirs.timestamp * MILLISECOND
    return [
        msgspec.structs.replace(job, id=id_at(made_at, queue, theirs.id, str(index), job.type, job.payload))
        for index, job in enumerate(follow_ups)
    ]
