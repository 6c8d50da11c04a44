"""The JSON API."""

from treadle.web.api import audit, bulk, events, health, jobs, prometheus, stats

MODULES = (jobs, bulk, stats, events, audit, health, prometheus)
