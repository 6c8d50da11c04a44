"""The JSON API."""

from treadle.web import broadcaster
from treadle.web.api import audit, bulk, jobs, monitoring, pauses, schedules, stats, terms

MODULES = (jobs, terms, bulk, schedules, stats, broadcaster, pauses, audit, monitoring)
