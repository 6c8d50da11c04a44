"""Who lives, and what waits for somebody who does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from windlass import clock

if TYPE_CHECKING:
    from windlass.stores.base import WorkerRow

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
