"""What the command line (`--json`), the HTTP API and the pages show of jobs, workers and queues. The one place that
turns a row into output. Values that look like secrets are hidden: redact.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from treadle import clock, codec
from treadle.batch import Batch
from treadle.diagnosis import is_alive, silence, stalled_for
from treadle.errors import BadFilter
from treadle.job import Attempt, Count, FailureGroup, Job, Latency, Page, Status, Usage, state_of
from treadle.limits import LimitState
from treadle.log_lines import LogLine
from treadle.problems import Problem
from treadle.reasons import Reason, Why
from treadle.redact import HIDDEN
from treadle.schedule import Schedule
from treadle.schedule_diagnosis import ScheduleWhy
from treadle.steps import Step
from treadle.units import format_duration
from treadle.waits import Signal, Wait

if TYPE_CHECKING:
    from treadle.filters import Filter
    from treadle.redact import Redactor
    from treadle.stores.base import WorkerRow
    from treadle.stores.rows import QueueStats

S = TypeVar("S", bound=msgspec.Struct)

# What redaction leaves of it. `hide` is the app's redactor.


class JobOut(Job, frozen=True, kw_only=True):
    """A job, and its state, which is finer than its status: pending is queued, scheduled or retrying."""

    state: str


def job(job: Job, hide: Redactor) -> JobOut:
    progress = job.progress and msgspec.structs.replace(job.progress, message=hide.text(job.progress.message))
    values = {"payload": hide.value(job.payload), "result": hide.value(codec.plain(job.result)), "progress": progress}
    state = state_of(job, clock.to_datetime(clock.now()))
    return from_row(JobOut, job, **values, error=_redacted(job.error, hide), state=state)


def attempt(attempt: Attempt, hide: Redactor) -> Attempt:
    error, traceback = _redacted(attempt.error, hide), _redacted(attempt.traceback, hide)
    return msgspec.structs.replace(attempt, error=error, traceback=traceback)


class StepOut(msgspec.Struct, kw_only=True):
    """A stored step of a handler, and which attempt stored it; 0: none, its wait ended while the job was blocked."""

    name: str
    kind: str
    value: Any
    attempt: int
    started_at: datetime
    ended_at: datetime


def step(step: Step, hide: Redactor) -> StepOut:
    """Without the hash of its arguments, from which they could be guessed."""
    return from_row(StepOut, step, value=_named(step.name, step.value, hide))


def signal(signal: Signal, hide: Redactor) -> Signal:
    return msgspec.structs.replace(signal, value=_named(signal.name, signal.value, hide))


def _named(name: str, value: Any, hide: Redactor) -> Any:
    return hide.value({name: value})[name]


def log_line(line: LogLine, hide: Redactor) -> LogLine:
    return msgspec.structs.replace(line, message=hide.text(line.message))


class LogPage(msgspec.Struct, kw_only=True):
    """Some lines of a job's log, oldest first."""

    items: list[LogLine]
    next: int
    """How many lines come before the next page."""


def log_page(items: list[LogLine], after: int) -> LogPage:
    return LogPage(items=items, next=after + len(items))


def failure(group: FailureGroup, hide: Redactor) -> FailureGroup:
    return msgspec.structs.replace(group, error=hide.text(group.error))


def why(why: Why, hide: Redactor) -> Why:
    return msgspec.structs.replace(why, reasons=tuple(_reason(reason, hide) for reason in why.reasons))


def _reason(reason: Reason, hide: Redactor) -> Reason:
    """A reason may quote the last error."""
    return msgspec.structs.replace(reason, text=hide.text(reason.text), data=hide.value(reason.data))


def _redacted(text: str | None, hide: Redactor) -> str | None:
    return None if text is None else hide.text(text)


def visible(wanted: Filter, hide: Redactor) -> Filter:
    """The filter for a caller who sees only what redaction leaves: what is hidden cannot be found either.

    Raises BadFilter for a term that only a hidden value could match. A text in an error is not found after a name that
    may be a secret's and has a value: the database cannot tell where that ends.
    """
    for path, values in wanted.payload:
        if any(map(hide.hides, path.split("."))) or not all(_is_shown(value, hide) for value in values):
            raise BadFilter(f"payload.{path}", "this value is hidden, so a filter cannot look for it")
    for text in chain.from_iterable(wanted.errors):
        if hide.searchable(text) != text:
            raise BadFilter(f"error:{hide.text(text)}", "this value is hidden, so a filter cannot look for it")
    return wanted.replace(markers=hide.markers) if wanted.errors else wanted


def _is_shown(text: str, hide: Redactor) -> bool:
    """Whether a value that is this text, or this JSON, is shown as it is."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        value = None
    return hide.text(text) == text and hide.value(value) == value


def attempt_outcome(outcome: str) -> str:
    """The word for how an attempt ended. A job is retried; its attempt failed."""
    return "failed" if outcome == "retried" else outcome


def from_row(kind: type[S], row: Any, *times: str, **others: Any) -> S:
    """A row as it is shown. Fields in `times` are microseconds in the row, or None; the `others` are not in it."""
    fields = {name: getattr(row, name) for name in kind.__struct_fields__ if name not in others}
    return kind(**fields | {name: moment(fields[name]) for name in times} | others)


def job_with_history(
    job: Job, history: Sequence[Attempt], steps: Sequence[StepOut], waits: Sequence[Wait]
) -> dict[str, Any]:
    """The fields of a job, its unsuccessful attempts, its stored steps, and what it waits for."""
    return {**msgspec.structs.asdict(job), "history": history, "steps": steps, "waits": waits}


class Total(msgspec.Struct, kw_only=True):
    """How many there are. `gte`: at least that many."""

    value: int
    relation: str


def total(count: Count) -> Total:
    return Total(value=count.value, relation="eq" if count.exact else "gte")


class JobPage(msgspec.Struct, kw_only=True):
    """Some jobs, newest first."""

    items: list[JobOut]
    next_cursor: str | None
    total: Total | None
    searched: int | None
    """If the search stopped before the page was full: after how many jobs. `next_cursor` continues there."""
    filter: str
    """The filter, as treadle understood it."""


def job_page(items: list[JobOut], page: Page, filter: Filter, count: Count | None) -> JobPage:
    counted = None if count is None else total(count)
    return JobPage(items=items, next_cursor=page.next, total=counted, searched=page.searched, filter=str(filter))


def schedule(schedule: Schedule, hide: Redactor) -> Schedule:
    return msgspec.structs.replace(schedule, payload=hide.value(schedule.payload))


def schedule_rule(schedule: Schedule) -> str:
    """`0 3 * * *` or `every 15m`."""
    return schedule.cron or f"every {format_duration(schedule.every or 0)}"


def schedule_moment(schedule: Schedule, at: datetime) -> str:
    """In the zone of the schedule, which is what its rule is about."""
    return at.astimezone(ZoneInfo(schedule.zone or "UTC")).strftime("%a %Y-%m-%d %H:%M:%S %Z")


def limit(state: LimitState, hide: Redactor) -> LimitState:
    """A key is a value of the payload, and is hidden where that is."""
    hidden = state.key and any(map(hide.hides, (state.per or "").split(".")))
    return msgspec.structs.replace(state, key=HIDDEN) if hidden else state


class LimitsOut(msgspec.Struct, kw_only=True):
    """All limits, by name and key."""

    items: list[LimitState]


class ScheduleOut(msgspec.Struct, kw_only=True):
    """A schedule, why it did not fire or when it will, and its newest jobs."""

    schedule: Schedule
    why: ScheduleWhy
    jobs: list[JobOut]


def schedule_out(found: Schedule, why: ScheduleWhy, jobs: Iterable[Job], hide: Redactor) -> ScheduleOut:
    return ScheduleOut(schedule=schedule(found, hide), why=why, jobs=[job(one, hide) for one in jobs])


class SchedulesOut(msgspec.Struct, kw_only=True):
    """Some schedules, by tenant and name."""

    items: list[Schedule]
    next_cursor: str | None


class BatchesOut(msgspec.Struct, kw_only=True):
    """Some batches, newest first."""

    items: list[Batch]
    next_cursor: str | None


class BatchOut(msgspec.Struct, kw_only=True):
    """A batch, and its members that are stored now, by state."""

    batch: Batch
    progress: float
    states: dict[str, Total]


def batch_out(batch: Batch, states: Mapping[str, Count]) -> BatchOut:
    counted = {name: total(count) for name, count in states.items() if name != "all"}
    return BatchOut(batch=batch, progress=batch.progress, states=counted)


def members(batch: Batch) -> dict[str, Any]:
    """The fields of the Filter that finds its members."""
    return {"batches": (batch.name,), "tenants": (batch.tenant,)}


class Doing(msgspec.Struct, kw_only=True):
    """The running jobs of one type on a worker."""

    type: str
    count: int
    since: datetime


class WorkerOut(msgspec.Struct, kw_only=True):
    """A worker, as its row in the database shows it."""

    id: str
    name: str
    concurrency: int
    queues: tuple[str, ...]
    types: tuple[str, ...]
    version: str
    started_at: datetime
    seen_at: datetime
    silent_for: float
    live: bool
    stalled_for: float | None
    """Seconds for which its event loop has been blocked: it claims nothing."""
    quiet_for: float | None
    """Seconds for which it has claimed nothing, because somebody wants that. None: it claims."""
    running: int
    doing: list[Doing]


def worker(row: WorkerRow, now: int) -> WorkerOut:
    return from_row(
        WorkerOut,
        row,
        "started_at",
        "seen_at",
        silent_for=silence(row, now),
        live=is_alive(row, now),
        stalled_for=stalled_for(row, now),
        quiet_for=None if row.quiet_at is None else max(0.0, (now - row.quiet_at) / clock.SECOND),
        running=row.leases,
        doing=[Doing(type=type, count=count, since=clock.moment(since)) for type, count, since in row.doing],
    )


def queue(row: QueueStats) -> dict[str, Any]:
    """Jobs of one type in one queue: the counts by state are fields of their own."""
    due = {"oldest_due": moment(row.oldest_due), "next_due": moment(row.next_due)}
    fields = {**due, "limit": row.limit, "exact": row.exact, "others": row.others}
    return {"queue": row.queue, "type": row.type, **row.counts, **fields}


class Overview(msgspec.Struct, kw_only=True):
    """What `treadle top` shows."""

    as_of: datetime
    database: str
    queues: list[dict[str, Any]]
    workers: list[WorkerOut]
    problems: list[Problem]
    failures: list[FailureGroup]
    latency: dict[str, Latency]


class Statistics(msgspec.Struct, kw_only=True):
    """What `treadle stats` shows."""

    items: list[dict[str, Any]]
    totals: dict[Status, int]
    workers: dict[str, int]
    unhandled: list[dict[str, Any]]
    queues: list[dict[str, Any]]
    latency: dict[str, Latency]
    problems: list[Problem]
    database: Mapping[str, Any]
    as_of: datetime


def hint(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What goes with every hint of a change: how many jobs have each status."""
    return {"counts": {row["status"]: row["count"] for row in counts}}


moment = clock.optional_moment


class UsageOut(msgspec.Struct, kw_only=True):
    """What ran in one step of time."""

    at: datetime
    group: dict[str, str]
    runs: int
    completed: int
    failures: int
    busy_seconds: float
    waiting_seconds: float


def usage(row: Usage, by: Sequence[str]) -> UsageOut:
    """`by`: the names of the columns that it is grouped by."""
    group = dict(zip(by, row.key, strict=True))
    return from_row(UsageOut, row, group=group, busy_seconds=row.busy, waiting_seconds=row.waiting)
