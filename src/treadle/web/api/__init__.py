"""The JSON API."""

from treadle.web import broadcaster
from treadle.web.api import (
    audit,
    batches,
    bulk,
    filter_terms,
    jobs,
    limits,
    monitoring,
    pauses,
    schedules,
    signals,
    stats,
)

MODULES = (jobs, signals, filter_terms, bulk, schedules, batches, stats, broadcaster, pauses, limits, audit, monitoring)
