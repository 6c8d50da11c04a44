"""What can be done to jobs from a page, and to which."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from treadle.job import STATE_OF, Job, Status, state_of


class Act(NamedTuple):
    """A verb of the library, with the words of its button and of the question before it."""

    key: str
    name: str
    one: str
    """What it does to a job."""
    many: str
    tone: str = ""
    shortcut: str = ""


ACTS = {
    act.key: act
    for act in (
        Act(
            "retry",
            "Retry",
            "It runs again now, with all of its attempts. Its history is kept.",
            "They run again now, with all of their attempts. Their history is kept.",
            shortcut="R",
        ),
        Act("run_now", "Run now", "It waits no longer.", "They wait no longer."),
        Act(
            "cancel",
            "Cancel",
            "It ends; if it runs, its worker is told to stop it.",
            "They end; of those that run, the worker is told to stop them.",
            shortcut="C",
        ),
        Act(
            "delete",
            "Delete",
            "It is erased, with its history. This cannot be undone.",
            "They are erased, with their history. This cannot be undone.",
            "danger",
            "D",
        ),
    )
}


def forbids(act: str, job: Job, now: datetime) -> str:
    """Why this cannot be done to the job now; nothing if it can. The library decides again when it is done."""
    state = state_of(job, now)
    told = STATE_OF[state].label.lower()
    if act == "retry" and not job.status.is_final:
        return f"It is {told}: only a job that has ended can be retried."
    if act == "run_now" and state not in ("scheduled", "retrying"):
        return f"It is {told}: only a job that waits for a later time can be run now."
    if act == "cancel" and job.status.is_final:
        return f"It is {told}: it has ended."
    if act == "delete" and job.status is Status.PROCESSING:
        return "It is running: cancel it first."
    return ""
