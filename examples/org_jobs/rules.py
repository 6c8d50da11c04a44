"""Backoff, retries and dedupe keys: the seed's functions, on treadle's own. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import treadle

JobStatus = Literal["queued", "running", "success", "failed"]
OURS = {"queued": "pending", "running": "processing", "success": "completed", "failed": "failed"}

DEFAULT_MAX_ATTEMPTS = 5
RUNS = DEFAULT_MAX_ATTEMPTS + 1
"""The seed asks `canRetry` before it counts the failure at hand: five are forgiven, so that a job runs six times."""
PACE = float(os.environ.get("PACE", "1"))
"""The show is in a hurry: there, waiting is a fiftieth of what it is in earnest."""
BACKOFF = treadle.exponential(base=1 * PACE, cap=60 * PACE)


def get_backoff_delay_ms(attempts: int) -> int:
    """1, 1, 2, 4, 8 … seconds for 0, 1, 2, 3, 4 … attempts; never more than 60."""
    return round(BACKOFF(max(1, attempts)) * 1000)


def can_retry(status: JobStatus, attempts: int, max_attempts: int = DEFAULT_MAX_ATTEMPTS) -> bool:
    """Not while it runs, not when it succeeded, and only if attempts are left."""
    return treadle.can_retry(OURS[status], attempts, max_attempts)


def make_job_dedupe_key(type: str, org_id: str | None, payload: Mapping[str, Any]) -> str:
    """`<type>::<org_id or global>::<sorted JSON>`."""
    return treadle.make_dedupe_key(type, org_id, payload)
