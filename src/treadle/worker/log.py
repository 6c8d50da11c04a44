"""The log of everything that happens to jobs: the standard library's, under the name `treadle`."""

from __future__ import annotations

import logging

from treadle.job import Claimed
from treadle.outcome import Kind, Outcome
from treadle.redact import redact_text

log = logging.getLogger("treadle")


def named(claimed: Claimed) -> tuple[str, str]:
    """How a job is called in every line: by id and type."""
    return claimed.id, claimed.type


def tell(claimed: Claimed, outcome: Outcome) -> None:
    """One line for how an attempt ended."""
    if outcome.kind is Kind.RETRIED:
        log.warning(
            "job %s (%s) retrying in %gs: %s", *named(claimed), outcome.delay / 1e6, redact_text(outcome.error or "")
        )
    elif outcome.kind is Kind.FAILED:
        log.error(
            "job %s (%s) failed after %d attempts: %s",
            *named(claimed),
            claimed.attempt,
            redact_text(outcome.error or ""),
        )
    else:
        log.info("job %s (%s) %s", *named(claimed), outcome.kind)
