"""What cron or a platform's scheduler runs every minute: one request, and its answer on one line.

TICK_TOKEN=td_… python -m org_jobs.cron http://127.0.0.1:8000
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import httpx2

MAX_JOBS, MAX_SECONDS = 6, 20
"""Per request, and below the platform's limit for a request."""


def tick(url: str, token: str) -> dict[str, Any]:
    """Run due jobs there, at most MAX_JOBS for MAX_SECONDS. Returns what was done, and when the next job is due."""
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
