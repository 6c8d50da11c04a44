"""Who lives, and what waits for somebody who does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from treadle import clock
from treadle.filters import Filter
from treadle.units import format_duration, plural

if TYPE_CHECKING:
    from treadle.job import Usage
    from treadle.stores.base import WorkerRow
    from treadle.stores.rows import QueueStats, Sampled

SILENT = 20.0
"""Seconds without a heartbeat after which a worker counts as lost. It beats every 5."""


class Lane(NamedTuple):
    """A type in a queue, and how many of its jobs wait."""

    queue: str
    type: str
    pending: int


def silence(worker: WorkerRow, now: int) -> float:
    """Seconds since its last heartbeat. `now` is the database's, as is the heartbeat."""
    return max(0.0, (now - worker.seen_at) / clock.SECOND)


def is_live(worker: WorkerRow, now: int) -> bool:
    return silence(worker, now) <= SILENT


def live(workers: Iterable[WorkerRow], now: int) -> list[WorkerRow]:
    return [worker for worker in workers if is_live(worker, now)]


def handles(worker: WorkerRow, queue: str, type: str) -> bool:
    return type in worker.types and (not worker.queues or queue in worker.queues)


def unhandled(counts: Iterable[Mapping[str, Any]], living: Sequence[WorkerRow]) -> list[Lane]:
    """The lanes with waiting jobs that no live worker would take from. `counts` are by status, type and queue."""
    lanes = [Lane(row["queue"], row["type"], row["count"]) for row in counts if row["status"] == "pending"]
    return [lane for lane in lanes if not any(handles(worker, lane.queue, lane.type) for worker in living)]


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that jobs waited once they were due, and ran."""

    jobs: int
    wait_p50: float
    wait_p95: float
    run_p50: float
    run_p95: float


def latencies(sample: Sequence[Sampled]) -> dict[str, Latency]:
    """By type."""
    by_type: dict[str, list[Sampled]] = {}
    for one in sample:
        by_type.setdefault(one.type, []).append(one)
    return {type: _latency(some) for type, some in sorted(by_type.items())}


def _latency(sample: Sequence[Sampled]) -> Latency:
    waits, runs = sorted(max(0, one.waited) for one in sample), sorted(max(0, one.ran) for one in sample)
    return Latency(
        jobs=len(sample),
        wait_p50=_quantile(waits, 0.5),
        wait_p95=_quantile(waits, 0.95),
        run_p50=_quantile(runs, 0.5),
        run_p95=_quantile(runs, 0.95),
    )


def _quantile(ordered: Sequence[int], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] / clock.SECOND


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong with the queue as a whole, and what to do about it."""

    code: str
    text: str
    next: str
    filter: str = ""
    """The jobs that it is about."""


LONG = 300
"""Seconds after which a job that is due should have been started."""
OFTEN = 5
"""So many failures, and half of all runs, are more than bad luck."""


def problems(
    lanes: Sequence[QueueStats], workers: Sequence[WorkerRow], lately: Sequence[Usage], now: int
) -> list[Problem]:
    """What people should know first. `lately`: usage of the last quarter of an hour, by type."""
    living = live(workers, now)
    found: list[Problem | None] = [_lost(worker, now) for worker in workers if not is_live(worker, now)]
    due = [lane for lane in lanes if lane.counts["queued"]]
    if due and not living:
        found.append(_nobody(due))
    elif due:
        found += [_of_lane(lane, living, now) for lane in due]
    found += [_failing(used) for used in lately]
    return [problem for problem in found if problem is not None]


def _lost(worker: WorkerRow, now: int) -> Problem:
    silent = format_duration(silence(worker, now))
    text = f"worker {worker.name} is lost: no heartbeat for {silent}, {plural(worker.leases, 'job')} in its hands"
    return Problem(
        code="lost_worker",
        text=text,
        next="any living worker returns its jobs within seconds: treadle worker app:td, or treadle tick",
        filter=str(Filter(statuses=("processing",), workers=(worker.id,))),
    )


def _nobody(due: Sequence[QueueStats]) -> Problem:
    waiting = sum(lane.counts["queued"] for lane in due)
    verb = "waits" if waiting == 1 else "wait"
    text = f"{plural(waiting, 'job')} {verb} and no worker is running"
    return Problem(code="no_worker", text=text, next="start one: treadle worker app:td", filter="status:queued")


def _of_lane(lane: QueueStats, living: Sequence[WorkerRow], now: int) -> Problem | None:
    filter = str(Filter(statuses=("queued",), types=(lane.type,), queues=(lane.queue,)))
    waiting = lane.counts["queued"]
    jobs = f'{plural(waiting, "job")} of type "{lane.type}"' + _in_queue(lane.queue)
    verb = "waits" if waiting == 1 else "wait"
    if not any(handles(worker, lane.queue, lane.type) for worker in living):
        text = f"{jobs} {verb} and no live worker handles it"
        next = "start a worker whose app has the type, or restart old ones"
        return Problem(code="unhandled", text=text, next=next, filter=filter)
    waited = 0.0 if lane.oldest_due is None else (now - lane.oldest_due) / clock.SECOND
    if waited <= LONG:
        return None
    if lane.limit is not None and lane.counts["processing"] >= lane.limit:
        next = f"its limit of {lane.limit} is full: raise concurrency=, or make its runs shorter"
    else:
        next = "more slots or more workers: treadle worker app:td --concurrency 50 --processes 2"
    text = f"{jobs} {verb}, the oldest for {format_duration(waited)}"
    return Problem(code="slow", text=text, next=next, filter=filter)


def _failing(used: Usage) -> Problem | None:
    ended = used.completed + used.failures  # a snoozed run says nothing of how often it fails
    if used.failures < OFTEN or used.failures * 2 < ended:
        return None
    [type] = used.key
    text = f'{used.failures:,} of {ended:,} runs of type "{type}" failed in the last 15 minutes'
    filter = str(Filter(statuses=("failed", "retrying"), types=(type,)))
    return Problem(code="failing", text=text, next="look at its newest errors", filter=filter)


def _in_queue(queue: str) -> str:
    return "" if queue == "default" else f' in queue "{queue}"'
