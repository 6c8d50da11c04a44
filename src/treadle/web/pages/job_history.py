"""Sections of a job's page: its lineage as a graph, what it did when, and its logs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from treadle import views
from treadle.filters import Filter
from treadle.job import Job
from treadle.log_lines import LogLine
from treadle.steps import Step
from treadle.units import plural
from treadle.waits import Wait
from treadle.web import graph, waterfall
from treadle.web.pages.signals import MOST_STEPS
from treadle.web.route import Request
from treadle.web.waterfall import Span

if TYPE_CHECKING:
    from treadle.web.pages.job import Part

MOST_LINES = 500
"""Lines of logs on a page."""
WAITED = {"sleep": "calm", "signal": "calm", "timeout": "warn", "gather": "calm", "gathered": "calm"}
"""The tones of steps in which nothing ran."""


def history(request: Request, job: Job, parts: Sequence[Part], now: datetime) -> dict[str, Any]:
    steps, waits = request.jobs.steps(job.id), request.jobs.waits(job.id)
    found = request.jobs.lineage(job.id)
    lines = request.jobs.logs(job.id, None, MOST_LINES)
    return {
        "lineage": found,
        "graph": graph.draw(found, lambda box: _page_of(request, box)) if len(found.nodes) > 1 else None,
        "waterfall": waterfall.rows(spans(request, parts, steps, waits, now)),
        "more_steps": max(0, len(steps) - MOST_STEPS),
        "logs": _by_run([views.log_line(line, request.redactor) for line in lines]),
        "more_lines": len(lines) == MOST_LINES,
    }


def _page_of(request: Request, box: graph.Box) -> str:
    """The page of a job, or the list with those that look like it."""
    if box.of == 1:
        return request.url(f"/jobs/{box.job.id}")
    return request.url("/jobs", q=str(Filter(types=(box.job.type,), statuses=(box.job.state,))))


def spans(
    request: Request, parts: Sequence[Part], steps: Sequence[Step], waits: Sequence[Wait], now: datetime
) -> list[Span]:
    """What took time, if there is more to see than one bar."""
    runs = [part for part in parts if part.kind != "wait"]
    found = [Span(f"Attempt {part.attempt}", part.start, part.end, part.tone, f"#{part.anchor}") for part in runs]
    for n, step in list(enumerate(steps, 1))[-MOST_STEPS:]:  # their numbers are in job_steps.html, too
        waited, link = WAITED.get(step.kind), f"#step-{n}"
        found.append(Span(step.name, step.started_at, step.ended_at, waited or "good", link, True, bool(waited)))
    first = min((part.start for part in runs), default=now)
    parents = [wait for wait in waits if wait.kind == "parent"]
    if parents:  # a wait that is over has no end of its own: the first run came after it
        found.append(_waiting(request, parents, first if all(wait.met for wait in parents) else now))
    subjobs = [wait for wait in waits if wait.kind == "subjob" and not wait.met]
    found += [_waiting(request, subjobs, now)] if subjobs else []
    signals = [wait for wait in waits if wait.kind == "signal" and not wait.met]
    found += [Span(f"Signal {wait.what}", wait.since, now, "warn", "#why", waits=True) for wait in signals]
    return found if len(found) > 1 else []


def _waiting(request: Request, waits: Sequence[Wait], until: datetime) -> Span:
    """For other jobs, all of which have one row."""
    link = request.url(f"/jobs/{waits[0].what}") if len(waits) == 1 else "#graph"
    since = min(wait.since for wait in waits)
    return Span(f"Waits for {plural(len(waits), waits[0].kind)}", since, max(since, until), "warn", link, waits=True)


def _by_run(lines: Sequence[LogLine]) -> list[list[LogLine]]:
    runs: list[list[LogLine]] = []
    for line in lines:
        if not runs or line.line <= runs[-1][-1].line:
            runs.append([])
        runs[-1].append(line)
    return runs[::-1]
