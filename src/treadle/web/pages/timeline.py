"""The life of one job as waits and runs, side by side. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from treadle.job import STATE_OF, Attempt, Job, Status
from treadle.units import format_duration

TONES = {"wait": "none", "completed": "good", "running": "ok", "cancelled": "calm"}
"""The colours of its parts; of any other end, it is bad."""


class Part(NamedTuple):
    """A stretch of a job's life: it waited, or it ran."""

    kind: str
    """`wait`, `running`, or how the run ended: completed, retried, failed, cancelled …"""
    start: datetime
    end: datetime
    attempt: int = 0
    worker: str = ""
    error: str = ""

    @property
    def seconds(self) -> float:
        return max(0.0, (self.end - self.start).total_seconds())

    @property
    def tone(self) -> str:
        return TONES.get(self.kind, "bad")

    @property
    def state(self) -> str:
        """What it is drawn as. An attempt that ended otherwise (retried, snoozed, released) runs again."""
        name = Status.PROCESSING if self.kind == "running" else self.kind
        return name if name in STATE_OF else "retrying"

    @property
    def tip(self) -> str:
        what = "waited" if self.kind == "wait" else f"attempt {self.attempt} {self.kind}"
        return f"{what}, {format_duration(self.seconds)}"


def parts(job: Job, history: Sequence[Attempt], now: datetime) -> list[Part]:
    """Without a gap from its creation to its end, or to now."""
    found: list[Part] = []
    at = job.created_at
    for past in sorted(history, key=lambda attempt: (attempt.started_at, attempt.lease)):
        found += _wait(at, past.started_at)
        kind, worker = past.outcome, past.worker_id
        found.append(Part(kind, past.started_at, past.ended_at, past.attempt, worker, past.error or ""))
        at = past.ended_at
    if job.started_at is not None and job.started_at >= at and job.status is not Status.PENDING:
        end = job.completed_at or now
        kind = "running" if job.status is Status.PROCESSING else job.status.value
        found += _wait(at, job.started_at)
        found.append(Part(kind, job.started_at, end, job.attempts or 1, job.worker_id or ""))
        at = end
    return found + _wait(at, job.completed_at or now)


def _wait(start: datetime, end: datetime) -> list[Part]:
    return [Part("wait", start, end)] if end > start else []
