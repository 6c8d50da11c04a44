"""Which jobs are the most urgent, without a scan.

A type that is at its limit, unknown to the worker, or not yet due must cost the others nothing. So each (queue, type,
priority) is a range of the index, read from its start for as many jobs as are asked for; the ranges are merged here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from treadle.clock import SECOND
from treadle.stores.base import ClaimRequest
from treadle.stores.rows import Due


class ReadyRange(NamedTuple):
    """Jobs of one queue, type and priority: a range of the index of `ready`."""

    queue: str
    type: str
    priority: int


Candidate = tuple[int, str, ReadyRange]
"""The run_at, the id and the range of a job that may run. (Plain, because there is one for every job.)"""
Head = tuple[ReadyRange, int]
"""A range, and how many of its first jobs may be claimed."""


class RangeStart(NamedTuple):
    """The first due jobs of a range, when its next one will be due, and the next priority below it."""

    due: list[tuple[int, str]]
    next_at: int | None
    lower: int | None


def allowed(ranges: Iterable[ReadyRange], request: ClaimRequest, slots: Mapping[str, int]) -> list[ReadyRange]:
    """The ranges from which the claimer may take. `slots` has the limited types, each with its free slots."""
    return [
        range
        for range in ranges
        if (request.types is None or range.type in request.types)
        and (not request.queues or range.queue in request.queues)
        and slots.get(range.type, 1) > 0
    ]


class ClaimOrder:
    """Ranges in the order in which jobs are claimed: by priority, then run_at, then id.

    Iterate over it, read the starts of the ranges that it yields, and `merge` them.
    """

    def __init__(self, ranges: Iterable[ReadyRange], limit: int, slots: dict[str, int]) -> None:
        self.missing = limit
        """How many jobs are still to be found."""
        self.slots = slots
        """The free slots of the limited types."""
        self.next_at: int | None = None
        """When the next job will be due, of the ranges that were read."""
        self._heap = [(-range.priority, range) for range in ranges]
        heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[list[Head]]:
        """The ranges of one priority after those of another, highest first, until no job is missing."""
        while self._heap and self.missing > 0:
            priority, level = self._heap[0][0], list[Head]()
            while self._heap and self._heap[0][0] == priority:
                range = heapq.heappop(self._heap)[1]
                level.append((range, min(self.missing, self.slots.get(range.type, self.missing))))
            yield level

    def merge(self, level: Sequence[Head], starts: Sequence[RangeStart]) -> list[Candidate]:
        """The first jobs of these ranges that have a free slot. What is below the ranges comes later."""
        candidates: list[Candidate] = []
        for (range, _), start in zip(level, starts, strict=True):
            candidates += [(run_at, id, range) for run_at, id in start.due]
            if start.lower is not None:
                heapq.heappush(self._heap, (-start.lower, range._replace(priority=start.lower)))
            if start.next_at is not None:
                self.next_at = start.next_at if self.next_at is None else min(self.next_at, start.next_at)
        if len(level) > 1:
            candidates.sort()
        unlimited = self.slots.keys().isdisjoint({range.type for range, _ in level})
        jobs = candidates[: self.missing] if unlimited else self._within_limits(candidates)
        self.missing -= len(jobs)
        return jobs

    def _within_limits(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """A type in several queues has one limit."""
        jobs: list[Candidate] = []
        for candidate in candidates:
            type = candidate[2].type
            if len(jobs) < self.missing and self.slots.get(type, 1) > 0:
                jobs.append(candidate)
                if type in self.slots:
                    self.slots[type] -= 1
        return jobs

    def due(self, jobs: Sequence[Candidate], now: int) -> Due:
        """What `due` answers if these jobs were found."""
        seconds = None if self.next_at is None else max(0.0, (self.next_at - now) / SECOND)
        return Due(bool(jobs), self.next_at, seconds)
