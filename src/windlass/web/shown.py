"""Jobs as they may leave the process: without what looks like a secret."""

from __future__ import annotations

from windlass.job import Attempt, Job
from windlass.why import Why


def job(job: Job) -> Job:
    return job


def attempt(attempt: Attempt) -> Attempt:
    return attempt


def why(why: Why) -> Why:
    return why
