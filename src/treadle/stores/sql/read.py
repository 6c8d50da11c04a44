"""Rows become jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from treadle import clock, codec
from treadle.errors import JobNotFound
from treadle.job import Attempt, Job, Progress, Status
from treadle.stores.base import WorkerRow
from treadle.stores.sql.transaction import Transaction

_FIRST, _LAST = (clock.from_datetime(moment.replace(tzinfo=UTC)) for moment in (datetime.min, datetime.max))


def get(tx: Transaction, id: str) -> Job | None:
    row = tx.execute(tx.sql.GET, {"id": id}).fetchone()
    return to_job(row) if row else None


def job(tx: Transaction, id: str) -> Job:
    """The job. Raises JobNotFound."""
    found = get(tx, id)
    if found is None:
        raise JobNotFound(id)
    return found


def to_job(row: tuple[Any, ...]) -> Job:
    """A row of JOB. If its payload is not an object, it was broken by hand, and is shown as it is."""
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
        "created_at": moment(created_at),
    }
    (r_run_at, r_attempts, r_snoozes, r_updated) = places[:4]
    (lease, l_run_at, attempt, l_snoozes, l_worker, l_started, fraction, message) = places[4:12]
    (status, f_run_at, f_attempts, f_snoozes, f_worker, f_started, completed_at, error, result, last_error) = places[
        12:
    ]
    if status is not None:
        return Job(
            **common,
            status=Status(status),
            run_at=moment(f_run_at),
            attempts=f_attempts,
            snoozes=f_snoozes,
            updated_at=moment(completed_at),
            worker_id=f_worker or None,
            started_at=None if f_started is None else moment(f_started),
            completed_at=moment(completed_at),
            error=error,
            result=None if result is None else _value(result),
        )
    if lease is not None:
        started = moment(l_started)
        return Job(
            **common,
            status=Status.PROCESSING,
            run_at=moment(l_run_at),
            attempts=attempt,
            snoozes=l_snoozes,
            updated_at=started,
            worker_id=l_worker or None,
            started_at=started,
            progress=None if fraction is None else Progress(fraction, message or ""),
        )
    return Job(
        **common,
        status=Status.PENDING,
        run_at=moment(r_run_at if r_run_at is not None else created_at),
        attempts=r_attempts or 0,
        snoozes=r_snoozes or 0,
        updated_at=moment(r_updated if r_updated is not None else created_at),
        error=last_error,
    )


def attempts(tx: Transaction, id: str) -> list[Attempt]:
    return [
        Attempt(
            attempt=attempt,
            lease=lease,
            worker_id=worker,
            started_at=moment(started_at),
            ended_at=moment(ended_at),
            outcome=outcome,
            error=error,
            traceback=traceback,
        )
        for attempt, lease, worker, started_at, ended_at, outcome, error, traceback in tx.execute(
            tx.sql.ATTEMPTS, {"id": id}
        )
    ]


def workers(tx: Transaction) -> list[WorkerRow]:
    rows = tx.execute(tx.sql.WORKERS)
    doing: dict[str, list[tuple[str, int, int]]] = {}
    for worker, type, n, since in tx.execute(tx.sql.LEASES_BY_WORKER):
        doing.setdefault(worker, []).append((type, n, since))
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
            doing=tuple(doing.get(id, ())),
        )
        for id, name, concurrency, queues, types, host, version, beats, started_at, seen_at in rows
    ]


def moment(at: int) -> datetime:
    """A moment that was set by hand to beyond all dates must not hide the other jobs of a page."""
    return clock.to_datetime(min(max(at, _FIRST), _LAST))


def _payload(text: str) -> dict[str, Any]:
    value = _value(text)
    return value if isinstance(value, dict) else {"(broken)": value}


def _value(text: str) -> Any:
    try:
        return codec.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text
