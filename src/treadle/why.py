"""Why a job is not running: every reason that holds, the deciding one first, each with the next step. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from treadle import clock
from treadle.job import Job, Status

SILENT = 60 * clock.SECOND
"""Microseconds of database time after which a worker that has not beaten is taken for lost."""
MOST = 10_000
"""Jobs ahead are counted up to here."""


class Code(StrEnum):
    """What can keep a job from running, in the order in which it decides."""

    FINISHED = "finished"
    OUT_OF_ATTEMPTS = "out_of_attempts"
    RUNNING = "running"
    CANCELLING = "cancelling"
    OVERDUE = "overdue"
    WORKER_LOST = "worker_lost"
    NOT_DUE = "not_due"
    NO_WORKER = "no_worker"
    NO_WORKER_FOR_QUEUE = "no_worker_for_queue"
    NO_WORKER_FOR_TYPE = "no_worker_for_type"
    LIMIT_FULL = "limit_full"
    JOBS_AHEAD = "jobs_ahead"
    NEXT_LOOK = "next_look"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that holds: as data, and as a sentence with the next step."""

    code: Code
    text: str
    way_out: str
    data: dict[str, Any] = {}


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is where it is. `reasons[0]` decides."""

    id: str
    status: Status
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        return "\n".join(f"{reason.text}; {reason.way_out}" for reason in self.reasons)


class WorkerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known of a worker: what it takes, and when it last beat."""

    id: str
    name: str
    queues: tuple[str, ...]
    types: tuple[str, ...]
    seen_at: int

    def serves(self, queue: str) -> bool:
        return not self.queues or queue in self.queues


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that the answer depends on, at one moment of the database."""

    job: Job
    now: int
    workers: tuple[WorkerSnapshot, ...]
    limit: int | None = None
    """How many jobs of its type may run at once."""
    holders: dict[str, int] = {}
    """Who holds jobs of its type, and how many; '' for those claimed by hand."""
    ahead: int = 0
    """How many due jobs come first, up to MOST + 1."""
    cancelled: bool = False
    deadline: int | None = None


def explain(situation: JobFacts) -> Why:
    """Every reason that holds."""
    job = situation.job
    if job.status.is_final:
        reasons = list(_ended(job))
    elif job.status is Status.PROCESSING:
        reasons = list(_in_hand(situation))
    else:
        reasons = list(_waiting(situation))
    return Why(id=job.id, status=job.status, reasons=tuple(reasons))


def _ended(job: Job) -> Iterator[Reason]:
    when = f"at {_at(job.completed_at)}" if job.completed_at else "before"
    if job.status is Status.FAILED and job.attempts >= job.max_attempts:
        yield Reason(
            code=Code.OUT_OF_ATTEMPTS,
            text=f"it failed {when}, after {_n(job.attempts, 'attempt')} of {job.max_attempts}: {job.error}",
            way_out=f"mend the cause, then retry it: treadle jobs retry {job.id}",
            data={"attempts": job.attempts, "max_attempts": job.max_attempts, "error": job.error},
        )
        return
    error = f": {job.error}" if job.error and job.status is Status.FAILED else ""
    again = f"to run it again: treadle jobs retry {job.id}"
    way_out = "nothing is left to do" if job.status is Status.COMPLETED else again
    text = f"it was cancelled {when}" if job.status is Status.CANCELLED else f"it {job.status} {when}{error}"
    yield Reason(code=Code.FINISHED, text=text, way_out=way_out, data={"status": job.status})


def _in_hand(situation: JobFacts) -> Iterator[Reason]:
    job, now = situation.job, situation.now
    holder = next((worker for worker in situation.workers if worker.id == job.worker_id), None)
    if situation.deadline is not None and situation.deadline < now:
        yield Reason(
            code=Code.OVERDUE,
            text=f"its deadline passed {_span(now - situation.deadline)} ago",
            way_out="any worker returns it within seconds, or do it now: td.rescue()",
            data={"deadline": clock.to_datetime(situation.deadline)},
        )
    if job.worker_id is not None and (holder is None or now - holder.seen_at > SILENT):
        silent = "has no row any more" if holder is None else f"has been silent for {_span(now - holder.seen_at)}"
        yield Reason(
            code=Code.WORKER_LOST,
            text=f"it is held by worker {_name(holder, job.worker_id)}, which {silent}",
            way_out="another worker returns it after three beats (15 s), or do it now: td.rescue()",
            data={"worker": job.worker_id, "seen_at": clock.to_datetime(holder.seen_at) if holder else None},
        )
    if situation.cancelled:
        yield Reason(
            code=Code.CANCELLING,
            text="somebody has cancelled it, and its worker is told to stop it",
            way_out="a handler in a thread has to look at ctx.cancelled by itself",
        )
    by = f"worker {_name(holder, job.worker_id)}" if job.worker_id else "somebody who claimed it by hand"
    since = _span(now - clock.from_datetime(job.started_at)) if job.started_at else "now"
    yield Reason(
        code=Code.RUNNING,
        text=f"it is running: attempt {job.attempts} of {job.max_attempts}, for {since}, by {by}",
        way_out=f"to stop it: treadle jobs cancel {job.id}",
        data={"worker": job.worker_id, "started_at": job.started_at},
    )


def _waiting(situation: JobFacts) -> Iterator[Reason]:
    job, now = situation.job, situation.now
    living = [worker for worker in situation.workers if now - worker.seen_at <= SILENT]
    due_in = clock.from_datetime(job.run_at) - now
    if due_in > 0:
        again = f" (again, after {_n(job.attempts, 'attempt')}: {job.error})" if job.error else ""
        yield Reason(
            code=Code.NOT_DUE,
            text=f"it is not due yet: at {_at(job.run_at)}, in {_span(due_in)}{again}",
            way_out="wait until then",
            data={"run_at": job.run_at, "seconds": due_in / clock.SECOND},
        )
    nobody = _nobody(job, living)
    yield from nobody
    held = sum(situation.holders.values())
    if situation.limit is not None and held >= situation.limit:
        yield Reason(
            code=Code.LIMIT_FULL,
            text=f"its type {job.type!r} is at its limit, {held} of {situation.limit}: {_holders(situation)}",
            way_out="it starts when one of them ends; raise concurrency= of its type for more",
            data={"limit": situation.limit, "running": held, "holders": situation.holders},
        )
    if situation.ahead and due_in <= 0 and not nobody:
        many = f"more than {MOST:,} jobs" if situation.ahead > MOST else _n(situation.ahead, "job")
        yield Reason(
            code=Code.JOBS_AHEAD,
            text=f"{many} come first: higher priority, or due for longer",
            way_out="wait for them, start more workers, or give it a higher priority",
            data={"ahead": min(situation.ahead, MOST), "more": situation.ahead > MOST},
        )
        return
    if due_in <= 0 and not nobody and not (situation.limit is not None and held >= situation.limit):
        yield Reason(
            code=Code.NEXT_LOOK,
            text="nothing is in its way",
            way_out="a worker takes it at its next look, within a second",
            data={"workers": [worker.id for worker in living]},
        )


def _nobody(job: Job, living: Sequence[WorkerSnapshot]) -> list[Reason]:
    """Why no worker that lives would take it, whenever it is due."""
    if not living:
        way_out = "start one: treadle worker app:td"
        return [Reason(code=Code.NO_WORKER, text="no worker is alive", way_out=way_out)]
    serving = [worker for worker in living if worker.serves(job.queue)]
    if not serving:
        queues = sorted({queue for worker in living for queue in worker.queues})
        return [
            Reason(
                code=Code.NO_WORKER_FOR_QUEUE,
                text=f"no living worker takes jobs from queue {job.queue!r}: they take {', '.join(queues)}",
                way_out=f"start one that does: treadle worker app:td --queue {job.queue}",
                data={"queue": job.queue, "queues": queues},
            )
        ]
    if any(job.type in worker.types for worker in serving):
        return []
    types = sorted({type for worker in serving for type in worker.types})
    return [
        Reason(
            code=Code.NO_WORKER_FOR_TYPE,
            text=f"no living worker knows type {job.type!r}: they know {', '.join(types) or 'none'}",
            way_out="deploy the code that handles it, or mend the name",
            data={"type": job.type, "types": types},
        )
    ]


def _holders(situation: JobFacts) -> str:
    names = {worker.id: worker.name for worker in situation.workers}
    told = [f"{n} by {names.get(id, id) or 'hand'}" for id, n in sorted(situation.holders.items())]
    return ", ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")


def _name(worker: WorkerSnapshot | None, id: str | None) -> str:
    return worker.name if worker is not None else str(id)


def _n(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def _at(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _span(microseconds: int) -> str:
    """A duration for people: `40 s`, `5 min`, `3 h`, `2 days`."""
    seconds = max(0, microseconds) / clock.SECOND
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
