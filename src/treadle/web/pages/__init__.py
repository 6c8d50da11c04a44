"""The HTML pages: one file per page, and what several of them share (cached, usage)."""

from treadle.web.pages import actions, audit, failures, insights, job, jobs, overview, settings, workers

MODULES = (overview, jobs, job, actions, audit, failures, workers, insights, settings)
