"""All pages."""

from __future__ import annotations

from treadle.web.pages import (
    audit,
    clone,
    confirm,
    failures,
    insights,
    job,
    jobs,
    operations,
    overview,
    settings,
    workers,
)
from treadle.web.route import Route

PAGES: tuple[Route, ...] = (
    *overview.ROUTES,
    *jobs.ROUTES,
    *job.ROUTES,
    *confirm.ROUTES,
    *clone.ROUTES,
    *operations.ROUTES,
    *failures.ROUTES,
    *workers.ROUTES,
    *insights.ROUTES,
    *audit.ROUTES,
    *settings.ROUTES,
)
