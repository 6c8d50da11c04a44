"""Steps: pieces of a handler whose results are stored, so that the next run does not do them again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from treadle.batch import NewBatch
from treadle.job import NewJob
from treadle.waits import NewSignal

MOST_STEPS = 10_000
"""Steps that one job can store."""


class NewStep(msgspec.Struct, frozen=True):
    """A step to be stored."""

    name: str
    kind: str = "step"
    """How it ended: "step" has returned a value; "sleep" is over; "signal" came, or "timeout" before it; "gather" has
    started subjobs, whose results "gathered" has."""
    value: str = "null"
    """JSON."""
    arguments: str = ""
    """A hash of what it was called with; '' if that has no JSON form."""
    took: int = 0
    """Microseconds."""
    position: int = 0
    """In the order in which they are stored, from 1; 0: after the last."""
    follow_ups: tuple[NewJob, ...] = ()
    """Jobs, signals and batches that are stored with it."""
    signals: tuple[NewSignal, ...] = ()
    batches: tuple[NewBatch, ...] = ()


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A stored step."""

    name: str
    kind: str
    value: Any
    arguments: str
    attempt: int
    started_at: datetime
    ended_at: datetime


class Ended(msgspec.Struct, frozen=True):
    """How a job has ended. Its status is None if it has not."""

    status: str | None
    result: Any = None
    error: str | None = None
