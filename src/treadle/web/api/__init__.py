"""The JSON API."""

from treadle.web import broadcaster
from treadle.web.api import audit, bulk, jobs, monitoring, pauses, schedules, stats

MODULES = (jobs, bulk, schedules, stats, broadcaster, pauses, audit, monitoring)
