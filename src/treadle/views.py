"""What the command line (`--json`), the HTTP API and the pages show of jobs, workers and queues. The one place that
turns a row into output. Values that look like secrets are hidden."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from treadle import clock
from treadle.diagnosis import Problem, Reason, Why, is_alive, silence
from treadle.job import Attempt, Count, FailureGroup, Job, Latency, Page, Status, Usage

if TYPE_CHECKING:
    from treadle.filters import Filter
    from treadle.stores.base import WorkerRow
    from treadle.stores.rows import QueueStats

HIDDEN = "•••"
_WORDS = r"password|token|secret|authorization|api[_-]?key|card"
_KEY = re.compile(_WORDS, re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"""((?:{_WORDS})\w*["']?\s*[:=]\s*)("[^"]*"|'[^']*'|(?:(?:bearer|basic)\s+)?[^\s,;&)\]}}"']+)""", re.IGNORECASE
)
"""`password=…`, `"api_key": "…"`, `Authorization: Bearer …`: in an error, or in the source line of a traceback."""


def redact(value: Any) -> Any:
    """The same value, with dots for the values of keys that name a secret, at any depth."""
    if isinstance(value, dict):
        return {key: HIDDEN if _KEY.search(str(key)) else redact(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [redact(inner) for inner in value]
    return value


def redact_text(text: str) -> str:
    """The same text, with dots for the values that it assigns to names of secrets."""
    return _ASSIGNED.sub(rf"\1{HIDDEN}", text)


def job(job: Job) -> Job:
    payload, result = redact(job.payload), redact(job.result)
    return msgspec.structs.replace(job, payload=payload, result=result, error=_redacted(job.error))


def attempt(attempt: Attempt) -> Attempt:
    return msgspec.structs.replace(attempt, error=_redacted(attempt.error), traceback=_redacted(attempt.traceback))


def attempt_outcome(outcome: str) -> str:
    """The word for how an attempt ended. A job is retried; its attempt failed."""
    return "failed" if outcome == "retried" else outcome


def job_with_history(job: Job, history: Sequence[Attempt]) -> dict[str, Any]:
    """The fields of a job, and its unsuccessful attempts."""
    return {**msgspec.structs.asdict(job), "history": history}


def failure(group: FailureGroup) -> FailureGroup:
    return msgspec.structs.replace(group, error=redact_text(group.error))


def why(why: Why) -> Why:
    return msgspec.structs.replace(why, reasons=tuple(map(_reason, why.reasons)))


def _reason(reason: Reason) -> Reason:
    """A reason may quote the last error."""
    data = {name: redact_text(value) if isinstance(value, str) else value for name, value in reason.data.items()}
    return msgspec.structs.replace(reason, text=redact_text(reason.text), data=data)


def _redacted(text: str | None) -> str | None:
    return None if text is None else redact_text(text)


class Total(msgspec.Struct, kw_only=True):
    """How many there are. `gte`: at least that many."""

    value: int
    relation: str


def total(count: Count) -> Total:
    return Total(value=count.value, relation="eq" if count.exact else "gte")


class JobPage(msgspec.Struct, kw_only=True):
    """Some jobs, newest first."""

    items: list[Job]
    next_cursor: str | None
    total: Total | None
    searched: int | None
    """If the search stopped before the page was full: after how many jobs. `next_cursor` continues there."""
    filter: str
    """The filter, as treadle understood it."""


def job_page(items: list[Job], page: Page, filter: Filter, count: Count | None) -> JobPage:
    """A page, with its jobs as they may be shown."""
    counted = None if count is None else total(count)
    return JobPage(items=items, next_cursor=page.next, total=counted, searched=page.searched, filter=str(filter))


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
    running: int
    doing: list[Doing]


def worker(row: WorkerRow, now: int) -> WorkerOut:
    return WorkerOut(
        id=row.id,
        name=row.name,
        concurrency=row.concurrency,
        queues=row.queues,
        types=row.types,
        version=row.version,
        started_at=clock.to_datetime(row.started_at),
        seen_at=clock.to_datetime(row.seen_at),
        silent_for=silence(row, now),
        live=is_alive(row, now),
        running=row.leases,
        doing=[Doing(type=type, count=count, since=clock.to_datetime(since)) for type, count, since in row.doing],
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


def moment(at: int | None) -> datetime | None:
    return None if at is None else clock.to_datetime(at)


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
    return UsageOut(
        at=row.at,
        group=dict(zip(by, row.key, strict=True)),
        runs=row.runs,
        completed=row.completed,
        failures=row.failures,
        busy_seconds=row.busy,
        waiting_seconds=row.waiting,
    )
