"""Jobs of every kind in every state, and a filter in plain Python to compare the stores with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from tests.conformance.helpers import FAILED, RETRIED, SECOND, FakeClock, enlist, put, settle_one, take
from treadle import clock as time
from treadle.filters import Filter, Moment, Text, is_index
from treadle.filters import matches as is_one_of
from treadle.job import ClaimedJob, Job, Status
from treadle.outcome import CANCELLED, COMPLETED, Outcome, OutcomeKind

STATES = ("queued", "scheduled", "retrying", "processing", "completed", "failed", "cancelled")
ODD = ("it's", 'say "hi"', "100%", "100x", "a_b", "aXb", "a\\b", "Ünï", "ünï", "*", "a,b c", "😀")
"""Names that contain syntax of SQL, JSON or a filter."""
PAYLOADS = (
    "{}",
    '{"n":42,"user":{"id":7,"tags":["x","y"]}}',
    '{"n":"42"}',
    '{"n":42.0}',
    '{"n":true}',
    '{"n":1}',
    '{"n":"true"}',
    '{"n":null}',
    '{"n":""}',
    '{"n":[1,2]}',
    '{"n":{"0":[5]}}',
    '{"n":9007199254740993}',
    '{"n":123456789012345678901234567890}',
    '{"n":"it\'s \\"é\\" 😀 100%"}',
    '{"a\\\\b":1,"é":2,"%":3,"-1":4,"0":6}',
)

LATER = Outcome(OutcomeKind.RETRIED, error="TimeoutError: no answer from 10.0.0.1", delay=600 * SECOND)
FAILED_ODDLY = Outcome(OutcomeKind.FAILED, error="ValueError: 100% of \\ 'it' Was É")


def fill(store: Any, clock: FakeClock) -> None:
    """Insert jobs in each state: with plain names, with odd ones, and with every payload."""
    enlist(store, "w1")
    enlist(store, "w2")
    for i, state in enumerate(STATES):
        _make(store, state, worker="w1")
        _make(store, state, type="send_mail", queue="mail", tenant="acme", subject="call-7", worker="w2")
        odd = ODD[i::7]
        for name in odd:
            _make(store, state, type=name, queue=name, tenant=name, subject=name, payload=PAYLOADS[i])
        clock.advance(60)
    for payload in PAYLOADS:
        put(store, "of_payloads", payload=payload)
    store.settle(
        [(claimed, FAILED_ODDLY) for claimed in take(store, types={"of_payloads": None}, worker="w1", limit=3)]
    )
    for state in ("queued", "scheduled"):
        _make(store, state, tenant="acme", priority=3)


def _make(store: Any, state: str, worker: str = "", **options: Any) -> None:
    later = {"delay": 600 * SECOND} if state == "scheduled" else {}
    job = put(store, **{"type": "noop", **options, **later})
    if state in ("queued", "scheduled"):
        return
    claimed = _claim(store, job, worker)
    if state == "processing":
        return
    if state == "failed":  # at its second attempt
        assert settle_one(store, claimed, RETRIED)
        claimed = _claim(store, job, worker)
    outcomes = {"retrying": LATER, "completed": COMPLETED, "failed": FAILED, "cancelled": CANCELLED}
    assert settle_one(store, claimed, outcomes[state])


def _claim(store: Any, job: Job, worker: str) -> ClaimedJob:
    """Claim this job, and not those that wait before it."""
    held = take(store, worker=worker, types={job.type: None}, queues=(job.queue,))
    [claimed] = [claimed for claimed in held if claimed.id == job.id]
    store.settle([(other, Outcome(OutcomeKind.RELEASED, charged=0)) for other in held if other is not claimed])
    return claimed


# Which jobs a filter selects


def state_of(job: Job, now: int) -> str:
    if job.status is not Status.PENDING:
        return job.status.value
    if time.from_datetime(job.run_at) <= now:
        return "queued"
    return "retrying" if job.attempts else "scheduled"


def meant(jobs: Iterable[Job], wanted: Filter, now: int, names: dict[str, str]) -> list[str]:
    """The ids of the selected jobs, newest first. `names`: of the workers."""
    return sorted((job.id for job in jobs if is_meant(job, wanted, now, names)), reverse=True)


def is_meant(job: Job, wanted: Filter, now: int, names: dict[str, str]) -> bool:
    by_field: Sequence[tuple[str, tuple[Text, ...]]] = (
        (job.type, wanted.types),
        (job.queue, wanted.queues),
        (job.tenant, wanted.tenants),
        (job.subject, wanted.subjects),
    )
    worker = job.worker_id or ""
    return (
        (not wanted.statuses or job.status in wanted.statuses or state_of(job, now) in wanted.statuses)
        and all(is_one_of(value, values) for value, values in by_field)
        and (is_one_of(worker, wanted.workers) or (worker in names and is_one_of(names[worker], wanted.workers)))
        and (not wanted.ids or job.id in wanted.ids)
        and all(any(_compares(job.attempts, *compared) for compared in term) for term in wanted.attempts)
        and all(any(_says(job.error, text) for text in term) for term in wanted.errors)
        and all(not texts_at(job.payload, path.split(".")).isdisjoint(values) for path, values in wanted.payload)
        and (wanted.since is None or time.from_datetime(job.created_at) >= _moment(wanted.since, now))
        and (wanted.until is None or time.from_datetime(job.created_at) < _moment(wanted.until, now))
    )


def _compares(attempts: int, how: str, number: int) -> bool:
    return {
        "=": attempts == number,
        "<": attempts < number,
        "<=": attempts <= number,
        ">": attempts > number,
        ">=": attempts >= number,
    }[how]


def _says(error: str | None, text: str) -> bool:
    return error is not None and text.lower() in error.lower()


def _moment(at: Moment, now: int) -> int:
    return time.from_datetime(at) if isinstance(at, datetime) else now - time.seconds(at)


def texts_at(value: Any, path: Sequence[str]) -> set[str]:
    """The values at this path: as JSON, and a text also as it is."""
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and is_index(part) and -len(value) <= int(part) < len(value):
            value = value[int(part)]
        else:
            return set()
    written = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return {written, value} if isinstance(value, str) else {written}
