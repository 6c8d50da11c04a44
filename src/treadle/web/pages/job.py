"""The page of one job: what it is, where it is, why it is not running, its timeline and its attempts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from markupsafe import Markup

from treadle import codec, views
from treadle.dedupe import REPLACED_BY
from treadle.ids import is_id
from treadle.job import STATE_OF, Attempt, Job, Status, state_of
from treadle.reasons import Reason
from treadle.units import format_duration
from treadle.web import charts, formatting, highlight
from treadle.web.pages.actions import ACTION_BUTTONS, forbidden
from treadle.web.pages.job_history import history
from treadle.web.pages.signals import shown_steps, shown_waits
from treadle.web.render import may_manage, render
from treadle.web.route import Request, Response, get

COPIED = ("queue", "tenant", "subject", "priority", "max_attempts")
BUTTONS = {
    "out_of_attempts": ("retry", "Fix the cause, then use the Retry button."),
    "finished": ("retry", "To run it again, use the Retry button."),
    "expired": ("retry", "If it is still needed, use the Retry button."),
    "expires": ("reschedule", "To give it more time, use the Reschedule button."),
    "running": ("cancel", "To stop it, use the Cancel button."),
    "key_held": ("cancel", "It starts then. To stop that job, open it and use its Cancel button."),
    "not_due": ("run_now", "Wait until then, or use the Run now button."),
    "sleeping": ("run_now", "Wait until then, or use the Run now button."),
    "waits_for_parent": ("open", "To see why that one has not ended, open it below."),
    "waits_for_subjobs": ("open", "To see why that one has not ended, open it below."),
    "waits_for_signal": ("cancel", "To send it, use the Approve button below."),
    "parent_failed": ("cancel", "Open the parent, fix the cause and retry it; to give up, use the Cancel button."),
}
"""By the code of a reason: the action on this page that is the next step. Other readers of a reason get a command."""
TONES = {"wait": "none", "completed": "good", "running": "ok", "cancelled": "calm"}
"""The colors of a timeline's parts. Any other part is an attempt that failed."""
PASSIVE = {"cancelled": "was cancelled", "released": "was released"}
"""Outcomes that need another verb form after `Attempt 1`."""


class Part(NamedTuple):
    """A part of a job's timeline: it waited, or it ran."""

    kind: str
    """`wait`, `running`, or how the run ended: completed, retried, failed, cancelled …"""
    start: datetime
    end: datetime
    attempt: int = 0
    worker: str = ""
    error: str = ""
    lease: int = 0
    """Of an unsuccessful attempt."""

    @property
    def anchor(self) -> str:
        """Where the page says more of it."""
        return f"attempt-{self.lease}" if self.lease else "timeline"

    @property
    def seconds(self) -> float:
        return max(0.0, (self.end - self.start).total_seconds())

    @property
    def tone(self) -> str:
        return TONES.get(self.kind, "bad")

    @property
    def state(self) -> str:
        return _state(Status.PROCESSING if self.kind == "running" else self.kind)

    @property
    def text(self) -> str:
        duration = format_duration(self.seconds)
        if self.kind == "wait":
            return f"Waited {duration}"
        if self.kind == "running":
            return f"Attempt {self.attempt} has been running for {duration}"
        outcome = views.attempt_outcome(self.kind)
        return f"Attempt {self.attempt} {PASSIVE.get(outcome, outcome)} after {duration}"


@get("/jobs/{id}", "One job", page=True)
def job(request: Request) -> Response:
    found, hide = request.jobs.get(request.path["id"]), request.redactor
    attempts = [views.attempt(attempt, hide) for attempt in request.jobs.attempts(found.id)]
    now = formatting.formatter_for(request).now
    parts = timeline(found, attempts, now)
    safe, reasons = views.job(found, hide), views.why(request.jobs.why(found.id), hide).reasons
    actions = {key: forbidden(key, found, now) for key in ACTION_BUTTONS} if may_manage(request) else {}
    possible = {"open", *(key for key, reason in actions.items() if not reason)}
    return render(
        request,
        "job.html",
        current_page="jobs",
        job=safe,
        state=state_of(found, now),
        related=_related(found, reasons),
        reasons=[(reason, _next_step(reason, possible)) for reason in reasons],
        **shown_waits(request, found),
        **shown_steps(request, found),
        parts=parts,
        ribbon=charts.ribbon([(part.tone, part.text, part.seconds) for part in parts], "Where its time went"),
        attempts=[(attempt, _state(attempt.outcome), *_traceback(attempt)) for attempt in reversed(attempts)],
        actions=[(ACTION_BUTTONS[key], reason) for key, reason in actions.items()],
        copies=copies(request, safe),
        payload=highlight.json(safe.payload),
        result=highlight.json(safe.result) if found.status is Status.COMPLETED else None,
        **history(request, found, parts, now),
    )


def _next_step(reason: Reason, possible: set[str]) -> str:
    """What to do about a reason: the button, where this page has one that works, instead of a command."""
    action, text = BUTTONS.get(reason.code, ("", ""))
    return text if action in possible else formatting.sentence(reason.way_out).rstrip(".")


def _related(job: Job, reasons: Sequence[Reason]) -> tuple[str, str] | None:
    """The job that took its place, or for which it waits: by their dedupe key."""
    by = (job.error or "").removeprefix(REPLACED_BY) if job.status is Status.CANCELLED else ""
    if is_id(by):
        return "Replaced by", by
    return next((("Waits for", reason.data["holder"]) for reason in reasons if reason.code == "key_held"), None)


def _state(outcome: str) -> str:
    """The state whose icon an outcome has. An attempt that did not end the job is followed by another."""
    return outcome if outcome in STATE_OF else "retrying"


def _traceback(attempt: Attempt) -> tuple[Markup, Markup]:
    """Your own frames, and all frames if there are others."""
    lines = highlight.traceback(attempt.traceback or "")
    own = highlight.own(lines)
    return highlight.marked(own), highlight.marked(lines) if own != lines else Markup("")


def copies(request: Request, job: Job) -> list[tuple[str, str]]:
    """What can be copied: the job, and two ways to enqueue one like it."""
    options = {name: value for name in COPIED if (value := getattr(job, name)) not in ("", 0)}
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    body = codec.encode({"type": job.type, "payload": job.payload, **options}).decode()
    where = f"{request.raw.scope['scheme']}://{request.raw.headers.get('host', '')}"
    parts = ["curl", f"{where}{request.url('/api/jobs')}", "-H", "Authorization: Bearer …", "--json", body]
    return [
        ("id", job.id),
        ("JSON", highlight.pretty(codec.decode(codec.encode(job)))),
        ("curl", " ".join(map(shlex.quote, parts))),
        ("Python", f"td.enqueue({job.type!r}, {job.payload!r}{given})"),
    ]


def timeline(job: Job, attempts: Sequence[Attempt], now: datetime) -> list[Part]:
    """Waits and runs without a gap, from the job's creation to its end, or to now."""
    found: list[Part] = []
    at = job.created_at
    for past in sorted(attempts, key=lambda attempt: (attempt.started_at, attempt.lease)):
        found += _wait(at, past.started_at)
        kind, worker = past.outcome, past.worker_id
        found.append(Part(kind, past.started_at, past.ended_at, past.attempt, worker, past.error or "", past.lease))
        at = past.ended_at
    if job.started_at is not None and job.started_at >= at and job.status is not Status.PENDING:
        end = job.completed_at or now
        kind = "running" if job.status is Status.PROCESSING else job.status.value
        found += _wait(at, job.started_at)
        found.append(Part(kind, job.started_at, end, job.attempts or 1, job.worker_id or ""))
        at = end
    return found + _wait(at, job.completed_at or now)


def _wait(start: datetime, end: datetime) -> list[Part]:
    return [Part("wait", start, end)] if end > start else []
