"""Ranges of the index of `ready`, and what a claim knows of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Position = tuple[int, str]
"""The run_at and the id of a job: its place in a range."""
START: Position = (-(1 << 63), "00000000-0000-0000-0000-000000000000")


class ReadyRange(NamedTuple):
    """Jobs of one queue, type and priority: a range of the index of `ready`."""

    queue: str
    type: str
    priority: int
    fair: bool = False
    """Whether its tenants take turns. Then it is another range, of another index."""


class Found(NamedTuple):
    """What a look found: a range, and its first job."""

    range: ReadyRange
    first: Position


class Slots:
    """The free places of the limits that hold for whole types, as far as this claim may take them."""

    def __init__(self, limits: Mapping[str, tuple[str, ...]], places: dict[str, int]) -> None:
        self._limits, self._places = limits, places
        self.any = bool(places)
        """Whether some type is limited."""

    def has(self, type: str) -> bool:
        """Whether each limit of the type has a place."""
        return all(self._places.get(name, 0) > 0 for name in self._limits.get(type, ()))

    def places(self, type: str, most: int) -> int:
        """How many jobs of the type may start, up to `most`."""
        return min([most, *(self._places.get(name, 0) for name in self._limits.get(type, ()))])

    def take(self, type: str, places: int = 1) -> None:
        for name in self._limits.get(type, ()):
            self._places[name] -= places


NO_SLOTS = Slots({}, {})
"""No type is limited."""


class Head(NamedTuple):
    """Where to go on in a range. Heads sort as their next jobs are claimed."""

    urgency: int
    """The more urgent, the lower: the priority, negated."""
    at: Position
    """No job of the range that is still to be found comes before this."""
    after: Position
    """The jobs after this are still to be found."""
    range: ReadyRange


Candidate = tuple[int, str, ReadyRange]
"""The run_at, the id and the range of a job that may run. (Plain, because there is one for every job.)"""


class RangeStart(NamedTuple):
    """The next due jobs of a range and, if there are fewer than asked for, the next priority below it."""

    due: list[Position]
    lower: int | None
