"""One job, as `treadle jobs show` prints it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.text import Text

from treadle import units
from treadle.cli.base import Shared
from treadle.cli.output import bar, clean, pretty, status, style
from treadle.job import Attempt, Job, Status

Line = tuple[datetime, str, str]


def print_job(shared: Shared, job: Job, history: Sequence[Attempt], names: Mapping[str, str]) -> None:
    shared.print((clean(job.type), "bold"), "  ", job.id)
    shared.out.print(status(job.status), Text(_place(job), style="dim"), soft_wrap=True)
    if job.error:
        shared.print((clean(job.error), "red" if job.status is Status.FAILED else ""))
    if job.progress:
        _heading(shared, "Progress")
        drawn = bar(round(job.progress.fraction * 1000), 1000, 30).ljust(30, "░")
        shared.print("  ", drawn, f" {job.progress.fraction:.0%} ", (clean(job.progress.message), "dim"))
    _heading(shared, "Payload")
    _block(shared, pretty(job.payload))
    _heading(shared, "Timeline")
    for moment, text, color in _timeline(job, history, names):
        shared.print("  ", (units.format_local(moment), "dim"), "  ", (text, color))
    if any(attempt.traceback for attempt in history):
        _heading(shared, "Tracebacks")
        for attempt in history:
            if attempt.traceback:
                shared.print((f"  attempt {attempt.attempt}", "bold"))
                _block(shared, clean(attempt.traceback.rstrip(), one_line=False), "    ")
    if job.status is Status.COMPLETED:
        _heading(shared, "Result")
        _block(shared, pretty(job.result))


def _place(job: Job) -> str:
    """The queue, and what else was said of it."""
    parts = [f"queue {clean(job.queue)}", f"priority {job.priority}"]
    parts += [f"tenant {clean(job.tenant)}"] if job.tenant else []
    parts += [f"subject {clean(job.subject)}"] if job.subject else []
    return " · " + " · ".join([*parts, f"{job.attempts} of {job.max_attempts} attempts"])


def _heading(shared: Shared, text: str) -> None:
    shared.print()
    shared.print((text, "bold"))


def _block(shared: Shared, text: str, indent: str = "  ") -> None:
    for line in text.splitlines():
        shared.print(indent, line)


def _timeline(job: Job, history: Sequence[Attempt], names: Mapping[str, str]) -> list[Line]:
    lines: list[Line] = [(job.created_at, "created", "")]
    for attempt in history:
        lasted = units.format_duration((attempt.ended_at - attempt.started_at).total_seconds())
        by = f"on {_who(attempt.worker_id, names)}"
        error = f": {clean(attempt.error)}" if attempt.error else ""
        color = "red" if attempt.outcome == "failed" else "yellow"
        lines.append((attempt.started_at, f"attempt {attempt.attempt} started {by}", ""))
        lines.append((attempt.ended_at, f"attempt {attempt.attempt} {attempt.outcome} after {lasted}{error}", color))
    told = {attempt.started_at for attempt in history}
    if job.started_at and job.started_at not in told:
        lines.append((job.started_at, f"attempt {job.attempts or 1} started on {_who(job.worker_id, names)}", ""))
    if job.completed_at:
        seconds = (job.completed_at - job.started_at).total_seconds() if job.started_at else None
        lasted = "" if seconds is None else f" after {units.format_duration(seconds)}"
        lines.append((job.completed_at, f"{status(job.status)}{lasted}", style(job.status)))
    elif job.status is Status.PENDING:
        lines.append((job.run_at, f"due ({units.format_relative(job.run_at)})", style(job.status)))
    return sorted(lines, key=lambda line: line[0])


def _who(worker: str | None, names: Mapping[str, str]) -> str:
    if not worker:
        return "no worker (claimed by hand)"
    return f"worker {names.get(worker, worker)}"
