"""Which jobs are the most urgent, without a scan.

A type at its limit, unknown to the claimer, or not yet due must cost the others nothing. So each (queue, type,
priority) is a range of the index, read from its start for as many jobs as are wanted; the ranges are merged here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from windlass.stores.base import Wanted


class Lane(NamedTuple):
    """Jobs of one queue, type and priority: a range of the index."""

    queue: str
    type: str
    priority: int


class Candidate(NamedTuple):
    """A job that may run, in the order in which it should."""

    run_at: int
    id: str
    lane: Lane


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


def allowed(lanes: Iterable[Lane], wanted: Wanted, room: dict[str, int]) -> list[Lane]:
    """The lanes that the claimer may take from."""
    return [
        lane
        for lane in lanes
        if (wanted.types is None or lane.type in wanted.types)
        and (not wanted.queues or lane.queue in wanted.queues)
        and room.get(lane.type, 1) > 0
    ]


def find(lanes: Sequence[Lane], limit: int, room: dict[str, int], ranges: Ranges) -> Found:
    """Merge lanes by priority, then run_at, then id. `room` has the types that are limited."""
    heap = [(-lane.priority, lane) for lane in lanes]
    heapq.heapify(heap)
    jobs: list[Candidate] = []
    next_at: int | None = None
    while heap and len(jobs) < limit:
        level = heap[0][0]
        heads: list[tuple[Lane, int]] = []
        while heap and heap[0][0] == level:
            lane = heapq.heappop(heap)[1]
            heads.append((lane, min(limit - len(jobs), room.get(lane.type, limit))))
        candidates: list[Candidate] = []
        for (lane, _), start in zip(heads, ranges(heads), strict=True):
            candidates += [Candidate(run_at, id, lane) for run_at, id in start.due]
            if start.next_at is not None:
                next_at = start.next_at if next_at is None else min(next_at, start.next_at)
            if start.lower is not None:
                heapq.heappush(heap, (-start.lower, lane._replace(priority=start.lower)))
        jobs += _fitting(sorted(candidates), limit - len(jobs), room)
    return Found(jobs, next_at)


def _fitting(candidates: list[Candidate], limit: int, room: dict[str, int]) -> list[Candidate]:
    """The first of the candidates that there is room for. A type that is found in several queues has one limit."""
    if room.keys().isdisjoint({candidate.lane.type for candidate in candidates}):
        return candidates[:limit]
    jobs: list[Candidate] = []
    for candidate in candidates:
        type = candidate.lane.type
        if len(jobs) < limit and room.get(type, 1) > 0:
            jobs.append(candidate)
            if type in room:
                room[type] -= 1
    return jobs
