"""What cron or a platform's scheduler runs every minute: one call, and its answer as a line.

TICK_TOKEN=td_… python -m examples.org_jobs.cron http://127.0.0.1:8000
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import httpx2

MAX_JOBS, MAX_SECONDS = 6, 20
"""For one call: below what the platform allows a request."""


def tick(url: str, token: str) -> dict[str, Any]:
    """Run what is due there: at most so many jobs, for at most so long. What became of them, and when more is due."""
    answer = httpx2.post(
        f"{url}/api/jobs/tick",
        json={"max_jobs": MAX_JOBS, "max_seconds": MAX_SECONDS},
        headers={"Authorization": f"Bearer {token}"},
        timeout=MAX_SECONDS + 5,
    )
    report: dict[str, Any] = answer.raise_for_status().json()
    return report


if __name__ == "__main__":
    print(json.dumps(tick(sys.argv[1], os.environ["TICK_TOKEN"])))
