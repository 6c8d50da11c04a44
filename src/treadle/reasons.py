"""Reasons why a job is not running, as data and as sentences."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from treadle.job import Status
from treadle.program import as_called


class ReasonCode(StrEnum):
    """What can keep a job from running, in the order in which it decides."""

    BROKEN = "broken"
    EXPIRED = "expired"
    FINISHED = "finished"
    OUT_OF_ATTEMPTS = "out_of_attempts"
    RUNNING = "running"
    CANCELLING = "cancelling"
    OVERDUE = "overdue"
    WORKER_LOST = "worker_lost"
    WORKER_STALLED = "worker_stalled"
    WORKERS_QUIET = "workers_quiet"
    PARENT_FAILED = "parent_failed"
    PARENT_GONE = "parent_gone"
    WAITS_FOR_PARENT = "waits_for_parent"
    WAITS_FOR_SUBJOBS = "waits_for_subjobs"
    WAITS_FOR_SIGNAL = "waits_for_signal"
    KEY_HELD = "key_held"
    SLEEPING = "sleeping"
    NOT_DUE = "not_due"
    PAUSED = "paused"
    NO_WORKER = "no_worker"
    NO_WORKER_FOR_QUEUE = "no_worker_for_queue"
    NO_WORKER_FOR_TYPE = "no_worker_for_type"
    LIMIT_FULL = "limit_full"
    RATE_LIMITED = "rate_limited"
    HELD_BACK = "held_back"
    TURNS = "turns"
    JOBS_AHEAD = "jobs_ahead"
    NEXT_LOOK = "next_look"
    EXPIRES = "expires"


class Reason(msgspec.Struct, frozen=True):
    """One thing that holds: as data, and as a sentence with the next step."""

    code: ReasonCode
    text: str
    way_out: str
    data: dict[str, Any] = {}

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "way_out", as_called(self.way_out))


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is where it is. `reasons[0]` decides."""

    id: str
    status: Status
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        return "\n".join(f"{reason.text}; {reason.way_out}" for reason in self.reasons)
