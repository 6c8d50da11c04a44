"""Jobs with a dedupe key and a rule: a mode, or how long the key is held."""

from __future__ import annotations

from tests.conformance.helpers import everything, new_job, take
from treadle import Dedupe
from treadle.clock import SECOND, from_datetime
from treadle.dedupe import rule_text
from treadle.job import NewJob, Status

REPLACE = {"mode": "replace"}
DEBOUNCE = {"mode": "debounce", "wait": 5, "at_most": 12}
THROTTLE = {"mode": "throttle", "period": 3600}
REJECT = {"mode": "reject"}
STARTED = {"until": "started"}


def keyed(rule=REPLACE, key="k", **options) -> NewJob:
    return new_job(dedupe=key, dedupe_rule=rule_text(Dedupe(key, **rule)), **options)


def call(store, rule=REPLACE, key="k", **options):
    return store.insert([keyed(rule, key, **options)])[0]


def waiting(store):
    return sorted(job.id for job in everything(store) if job.status is Status.PENDING)


def start(store):
    (claimed,) = take(store)
    return claimed


def due_in(store, id) -> float:
    """Seconds from now until the job is due."""
    return (from_datetime(store.get(id).run_at) - store.now()) / SECOND
