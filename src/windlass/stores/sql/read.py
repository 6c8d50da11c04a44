"""Rows become jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from windlass import clock, codec
from windlass.errors import JobNotFound
from windlass.job import Attempt, Job, Page, Progress, Status
from windlass.stores.base import Filter, WorkerRow
from windlass.stores.sql.transaction import Reader

_FIRST, _LAST = (clock.from_datetime(moment.replace(tzinfo=UTC)) for moment in (datetime.min, datetime.max))


def get(reader: Reader, id: str) -> Job | None:
    row = reader.execute(reader.sql.GET, {"id": id}).fetchone()
    return to_job(row) if row else None


def job(reader: Reader, id: str) -> Job:
    """The job, which must be there."""
    found = get(reader, id)
    if found is None:
        raise JobNotFound(id)
    return found


def to_job(row: tuple[Any, ...]) -> Job:
    """A row of GET or LIST. It was broken by hand if its payload is no object; then that is shown as it is."""
    (id, type, queue, tenant, subject, payload, priority, max_attempts, created_at, *places) = row
    common = {
        "id": id,
        "type": type,
        "queue": queue,
        "tenant": tenant,
        "subject": subject,
        "payload": _payload(payload),
        "priority": priority,
        "max_attempts": max_attempts,
        "created_at": _moment(created_at),
    }
    (r_run_at, r_attempts, r_updated, lease, l_run_at, attempt, l_worker, l_started, fraction, message) = places[:10]
    (status, f_run_at, f_attempts, f_worker, f_started, completed_at, error, result, last_error) = places[10:]
    if status is not None:
        return Job(
            **common,
            status=Status(status),
            run_at=_moment(f_run_at),
            attempts=f_attempts,
            updated_at=_moment(completed_at),
            worker_id=f_worker or None,
            started_at=None if f_started is None else _moment(f_started),
            completed_at=_moment(completed_at),
            error=error,
            result=None if result is None else _value(result),
        )
    if lease is not None:
        started = _moment(l_started)
        return Job(
            **common,
            status=Status.PROCESSING,
            run_at=_moment(l_run_at),
            attempts=attempt,
            updated_at=started,
            worker_id=l_worker or None,
            started_at=started,
            progress=None if fraction is None else Progress(fraction, message or ""),
        )
    return Job(
        **common,
        status=Status.PENDING,
        run_at=_moment(r_run_at if r_run_at is not None else created_at),
        attempts=r_attempts or 0,
        updated_at=_moment(r_updated if r_updated is not None else created_at),
        error=last_error,
    )


def _source(sql: Any, status: Status) -> tuple[str, str, Status]:
    """The list that has just the jobs of a status, and where their ids are in it."""
    if status is Status.PENDING:
        return sql.LIST_PENDING, "r.id", status
    if status is Status.PROCESSING:
        return sql.LIST_PROCESSING, "l.id", status
    return sql.LIST_FINISHED, "f.id", status


def jobs(reader: Reader, wanted: Filter, limit: int, before: str | None) -> Page:
    """Newest first. One statement per status asked for, each starting from the table that has just those rows."""
    parts: list[tuple[str, str, Status | None]]
    if wanted.statuses and wanted.tenant is None and wanted.subject is None:
        parts = [_source(reader.sql, status) for status in wanted.statuses]
    else:  # the indexes by tenant and subject are on the jobs themselves
        parts = [(reader.sql.LIST, "j.id", None)]
    found: dict[str, Job] = {}
    reader.execute(reader.sql.SNAPSHOT)  # one snapshot: a job that moves meanwhile is neither missed nor seen twice
    try:
        for source, id, status in parts:
            where, parameters = _where(reader, wanted, id, status, before)
            rows = reader.execute(
                f"{source} WHERE {where} ORDER BY {id} DESC LIMIT :limit", {**parameters, "limit": limit + 1}
            )
            found.update((job.id, job) for job in map(to_job, rows))
    finally:
        reader.execute(reader.sql.SNAPSHOT_OVER)
    newest = sorted(found.values(), key=lambda job: job.id, reverse=True)
    return Page(newest[:limit], newest[limit - 1].id if len(newest) > limit else None)


def _where(
    reader: Reader, wanted: Filter, id: str, status: Status | None, before: str | None
) -> tuple[str, dict[str, Any]]:
    terms: list[str] = ["true"]
    parameters: dict[str, Any] = {}
    if before is not None:
        terms.append(f"{id} < :before")
        parameters["before"] = before
    if status is not None and status.is_final:
        terms.append("f.status = :status")
        parameters["status"] = status
        if status is not Status.COMPLETED:
            terms.append("f.status <> 'completed'")  # so that the index on the few others is seen to fit
    if status is None and wanted.statuses:
        terms.append(reader.sql.STATUS_IS_ONE_OF)
        parameters["statuses"] = codec.encode(wanted.statuses).decode()
    for column in ("type", "queue", "tenant", "subject"):
        value = getattr(wanted, column)
        if value is not None:
            terms.append(f"j.{column} = :{column}")
            parameters[column] = value
            if column in ("tenant", "subject") and value:
                terms.append(f"j.{column} <> ''")
    return " AND ".join(terms), parameters


def attempts(reader: Reader, id: str) -> list[Attempt]:
    return [
        Attempt(
            attempt=attempt,
            lease=lease,
            worker_id=worker,
            started_at=_moment(started_at),
            ended_at=_moment(ended_at),
            outcome=outcome,
            error=error,
            traceback=traceback,
        )
        for attempt, lease, worker, started_at, ended_at, outcome, error, traceback in reader.execute(
            reader.sql.ATTEMPTS, {"id": id}
        )
    ]


def counts(reader: Reader, by: Sequence[str], *, tallied: bool = True) -> list[dict[str, Any]]:
    """From the tallies where they have the answer; by tenant or subject, every job is counted."""
    tallied = tallied and {"status", "type", "queue"} >= set(by)
    columns = ("status", "type", "queue") if tallied else ("status", "type", "queue", "tenant", "subject")
    total: Counter[tuple[Any, ...]] = Counter()
    for row in reader.execute(reader.sql.COUNTS if tallied else reader.sql.COUNT_EACH):
        total[tuple(row[columns.index(name)] for name in by)] += row[-1]
    return [{**dict(zip(by, key, strict=True)), "count": n} for key, n in sorted(total.items()) if n]


def workers(reader: Reader) -> list[WorkerRow]:
    rows = reader.execute(reader.sql.WORKERS)
    return [
        WorkerRow(
            id=id,
            name=name,
            concurrency=concurrency,
            queues=tuple(codec.decode(queues)),
            types=tuple(codec.decode(types)),
            host=codec.decode(host),
            version=version,
            beats=beats,
            started_at=started_at,
            seen_at=seen_at,
            leases=leases,
        )
        for id, name, concurrency, queues, types, host, version, beats, started_at, seen_at, leases in rows
    ]


def _moment(at: int) -> datetime:
    """A moment that was set by hand beyond all dates must not hide the other jobs of a page."""
    return clock.to_datetime(min(max(at, _FIRST), _LAST))


def _payload(text: str) -> dict[str, Any]:
    value = _value(text)
    return value if isinstance(value, dict) else {"(broken)": value}


def _value(text: str) -> Any:
    try:
        return codec.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text
