"""Where a run measures: what makes databases there, and what everything is compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import msgspec

from bench.scratch import Scratch


class Loop(msgspec.Struct, frozen=True):
    """A bare loop of SQL: how it stores a batch of (id, payload), and how it claims and completes a batch."""

    key: str
    what: str
    insert: Callable[[Any, Sequence[tuple[str, str]]], None]
    move: Callable[[Any, int], int]


class About(msgspec.Struct, frozen=True):
    """What is measured, for the head of the report."""

    database: str
    settings: dict[str, str]
    where: str


class Place(ABC):
    """A disk or a server."""

    sections: ClassVar[frozenset[str]] = frozenset()
    """Those that only make sense here."""
    without: ClassVar[frozenset[str]] = frozenset()
    """Those that cannot be measured here."""
    hears: ClassVar[bool] = True
    """Whether a worker is told of what others commit."""
    scales: ClassVar[bool] = False
    """Whether a second worker process is promised to be of use."""
    driver: ClassVar[str]
    """Whose CPU is counted while a statement lasts."""
    safe: ClassVar[tuple[str, str, str]]
    """Of what `commits` counts: its key, what it is, and a word for it."""
    loops: ClassVar[Sequence[Loop]]
    """The first is the ceiling; the others are shown beside it."""

    @abstractmethod
    def new(self, name: str) -> Scratch:
        """A database with nothing in it."""

    @abstractmethod
    def commits(self, seconds: float) -> float:
        """How often in a second the least that there is to write is made safe, one after the other."""

    @abstractmethod
    def about(self) -> About: ...

    def unheard(self) -> AbstractContextManager[None] | None:
        """A block in which this process tells nobody of what it commits; None if nobody is told anyway."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Remove whatever was made."""
