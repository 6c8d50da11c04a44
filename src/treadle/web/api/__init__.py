"""The JSON API."""

from treadle.web import broadcaster
from treadle.web.api import audit, bulk, jobs, monitoring, stats

MODULES = (jobs, bulk, stats, broadcaster, audit, monitoring)
