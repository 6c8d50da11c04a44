"""The JSON API."""

from treadle.web import broadcaster
from treadle.web.api import audit, bulk, jobs, monitoring, pauses, stats, terms

MODULES = (jobs, terms, bulk, stats, broadcaster, pauses, audit, monitoring)
