"""Which jobs are the most urgent, without a scan.

A type at its limit, unknown to the claimer, or not yet due must cost the others nothing. So each (queue, type,
priority) is a range of the index, read from its start for as many jobs as are wanted; the ranges are merged here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from treadle.stores.base import ClaimRequest


class Lane(NamedTuple):
    """Jobs of one queue, type and priority: a range of the index."""

    queue: str
    type: str
    priority: int


Candidate = tuple[int, str, Lane]
"""The run_at, the id and the lane of a job that may run: sorted as it should. (Plain, as one is made for every job.)"""


class Range(NamedTuple):
    """The first due jobs of a lane, when its next one will be due, and the next priority below it."""

    due: list[tuple[int, str]]
    next_at: int | None
    lower: int | None


Ranges = Callable[[list[tuple[Lane, int]]], Iterable[Range]]
"""Reads the starts of lanes, of each at most so many jobs."""


class Found(NamedTuple):
    jobs: list[Candidate]
    next_at: int | None


def allowed(lanes: Iterable[Lane], wanted: ClaimRequest, room: dict[str, int]) -> list[Lane]:
    """The lanes that the claimer may take from."""
    return [
        lane
        for lane in lanes
        if (wanted.types is None or lane.type in wanted.types)
        and (not wanted.queues or lane.queue in wanted.queues)
        and room.get(lane.type, 1) > 0
    ]


def find(lanes: Iterable[Lane], limit: int, room: dict[str, int], ranges: Ranges) -> Found:
    """Merge lanes by priority, then run_at, then id. `room` has the types that are limited."""
    levels = Levels(lanes)
    jobs: list[Candidate] = []
    later: list[int] = []
    while len(jobs) < limit and (level := levels.next()):
        heads = [(lane, min(limit - len(jobs), room.get(lane.type, limit))) for lane in level]
        starts = list(ranges(heads))
        levels.go_on(level, starts)
        later += [start.next_at for start in starts if start.next_at is not None]
        jobs += merged(level, starts, limit - len(jobs), room)
    return Found(jobs, min(later, default=None))


class Levels:
    """Lanes of one priority after those of another, highest first. What is below a lane shows when it is looked at."""

    def __init__(self, lanes: Iterable[Lane]) -> None:
        self._heap = [(-lane.priority, lane) for lane in lanes]
        heapq.heapify(self._heap)

    def next(self) -> list[Lane]:
        """The lanes of the highest priority that is left."""
        level: list[Lane] = []
        while self._heap and (not level or self._heap[0][0] == -level[0].priority):
            level.append(heapq.heappop(self._heap)[1])
        return level

    def go_on(self, level: Sequence[Lane], starts: Sequence[Range]) -> None:
        """What is below the lanes of a level comes later."""
        for lane, start in zip(level, starts, strict=True):
            if start.lower is not None:
                heapq.heappush(self._heap, (-start.lower, lane._replace(priority=start.lower)))


def merged(level: Sequence[Lane], starts: Sequence[Range], limit: int, room: dict[str, int]) -> list[Candidate]:
    """The first jobs of lanes of one priority that there is room for. A type in several queues has one limit."""
    candidates = [(run_at, id, lane) for lane, start in zip(level, starts, strict=True) for run_at, id in start.due]
    if len(level) > 1:
        candidates.sort()
    if room.keys().isdisjoint({lane.type for lane in level}):
        return candidates[:limit]
    jobs: list[Candidate] = []
    for candidate in candidates:
        type = candidate[2].type
        if len(jobs) < limit and room.get(type, 1) > 0:
            jobs.append(candidate)
            if type in room:
                room[type] -= 1
    return jobs
