"""What a run measures: a disk or a server. Makes databases there, and has the raw SQL to compare with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from bench.database import BenchDatabase


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


class Backend(ABC):
    """A disk or a server."""

    sections: ClassVar[frozenset[str]] = frozenset()
    """Sections that only make sense here."""
    without: ClassVar[frozenset[str]] = frozenset()
    """Sections that cannot be measured here."""
    notifies: ClassVar[bool] = True
    """Whether workers are notified of commits."""
    scales: ClassVar[bool] = False
    """Whether a second worker process is promised to make it faster."""
    driver: ClassVar[str]
    """The driver, to which CPU used during a statement is charged."""
    safe: ClassVar[tuple[str, str, str]]
    """What `commits` counts: its key, its description, and a word for it."""
    loops: ClassVar[Sequence[Loop]]
    """The first is the ceiling; the others are shown with it."""

    @abstractmethod
    def new(self, name: str) -> BenchDatabase:
        """A database with nothing in it."""

    @abstractmethod
    def commits(self, seconds: float) -> float:
        """Durable writes per second, of the smallest possible write, one after the other."""

    @abstractmethod
    def about(self) -> About: ...

    def new_behind_pooler(self, name: str) -> BenchDatabase | None:
        """A database whose URL leads through a pooler in transaction mode; None if no pooler was named."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Remove everything that was made."""
