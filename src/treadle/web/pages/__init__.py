"""The HTML pages: overview has the whole system, the others are one page or two. Shared: queries, usage_charts."""

from treadle.web.pages import (
    actions,
    audit,
    batches,
    insights,
    job,
    jobs,
    limits,
    new_job,
    overview,
    pauses,
    schedules,
    settings,
    signals,
)

MODULES = (
    overview,
    jobs,
    new_job,
    job,
    actions,
    signals,
    pauses,
    limits,
    schedules,
    batches,
    audit,
    insights,
    settings,
)
