"""Jobs as they may leave the process: without what looks like a secret."""

from __future__ import annotations

import msgspec

from treadle.job import Attempt, FailureGroup, Job
from treadle.redact import redact, redact_text
from treadle.why import Why


def job(job: Job) -> Job:
    changes = {"payload": redact(job.payload), "result": redact(job.result), "error": text(job.error)}
    return msgspec.structs.replace(job, **changes)


def attempt(attempt: Attempt) -> Attempt:
    return msgspec.structs.replace(attempt, error=text(attempt.error), traceback=text(attempt.traceback))


def failure(group: FailureGroup) -> FailureGroup:
    return msgspec.structs.replace(group, error=redact_text(group.error))


def why(why: Why) -> Why:
    """A reason tells the last error, if there is one."""
    reasons = [
        msgspec.structs.replace(
            reason,
            text=redact_text(reason.text),
            data={name: redact_text(v) if isinstance(v, str) else v for name, v in reason.data.items()},
        )
        for reason in why.reasons
    ]
    return msgspec.structs.replace(why, reasons=tuple(reasons))


def text(text: str | None) -> str | None:
    return None if text is None else redact_text(text)
