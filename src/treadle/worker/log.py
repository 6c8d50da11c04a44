"""The log of everything that happens to jobs: the standard library's, under the name `treadle`."""

from __future__ import annotations

import logging

from treadle.job import ClaimedJob
from treadle.outcome import Outcome, OutcomeKind
from treadle.redact import redact_text

log = logging.getLogger("treadle")


def job_ref(claimed: ClaimedJob) -> tuple[str, str]:
    """How a job is called in every line: by id and type."""
    return claimed.id, claimed.type


def log_outcome(claimed: ClaimedJob, outcome: Outcome) -> None:
    """One line for how an attempt ended."""
    if outcome.kind is OutcomeKind.RETRIED:
        log.warning(
            "job %s (%s) retrying in %gs: %s", *job_ref(claimed), outcome.delay / 1e6, redact_text(outcome.error or "")
        )
    elif outcome.kind is OutcomeKind.FAILED:
        log.error(
            "job %s (%s) failed after %d attempts: %s",
            *job_ref(claimed),
            claimed.attempt,
            redact_text(outcome.error or ""),
        )
    else:
        log.info("job %s (%s) %s", *job_ref(claimed), outcome.kind)
