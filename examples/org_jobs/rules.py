"""Rules for backoff, retries and dedupe keys as pure functions, built on treadle's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import treadle

JobStatus = Literal["queued", "running", "success", "failed"]
TREADLE_STATUS = {"queued": "pending", "running": "processing", "success": "completed", "failed": "failed"}

DEFAULT_MAX_ATTEMPTS = 5
RUNS = DEFAULT_MAX_ATTEMPTS + 1
"""`can_retry` is called before the current failure is counted: five failures are allowed, so a job runs six times."""
PACE = float(os.environ.get("PACE", "1"))
"""The demo sets 0.02, so that delays are a fiftieth of the normal ones."""
BACKOFF = treadle.exponential(base=1 * PACE, cap=60 * PACE)


def get_backoff_delay_ms(attempts: int) -> int:
    """1, 1, 2, 4, 8 … seconds for 0, 1, 2, 3, 4 … attempts; never more than 60."""
    return round(BACKOFF(max(1, attempts)) * 1000)


def can_retry(status: JobStatus, attempts: int, max_attempts: int = DEFAULT_MAX_ATTEMPTS) -> bool:
    """Whether a failed job may run again: it has attempts left, and is neither running nor successful."""
    return treadle.can_retry(TREADLE_STATUS[status], attempts, max_attempts)


def make_job_dedupe_key(type: str, org_id: str | None, payload: Mapping[str, Any]) -> str:
    """`<type>::<org_id or global>::<sorted JSON>`."""
    return treadle.make_dedupe_key(type, org_id, payload)
