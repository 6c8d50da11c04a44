"""What every store can do with schedules: a part of the contract in `base.py`."""

# pyright: reportReturnType=false
# A method of a Protocol is its docstring here. (pyright would want a `...` after each.)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from treadle.job import Job
from treadle.schedule import NewSchedule
from treadle.stores.rows import Due, Fired, ScheduleRow


class Scheduling(Protocol):
    """Recurring rules."""

    def put_schedule(self, new: NewSchedule, connection: Any = None) -> ScheduleRow:
        """Store a schedule, or change the one with this tenant and name. If nothing differs, nothing is written. With
        `connection`, it is part of that connection's open transaction."""

    def declare_schedules(self, declared: Sequence[NewSchedule]) -> None:
        """What a worker's code declares. The newest declaration of a live worker wins; one that was put wins over all
        of them. A pause stays as it is."""

    def schedule(self, tenant: str, name: str) -> ScheduleRow | None:
        """The schedule as it is now."""

    def schedules(
        self, tenant: str | None = None, after: tuple[str, str] = ("", ""), limit: int = 200
    ) -> list[ScheduleRow]:
        """Schedules by tenant and name, from the first one after a tenant and a name on."""

    def odd_schedules(self, overdue: int, limit: int) -> list[ScheduleRow]:
        """Those that have been due for this many microseconds, and those that code declares: for `problems`."""

    def pause_schedule(self, tenant: str, name: str, by: str, reason: str, until: int | None = None) -> ScheduleRow:
        """Fire none of its moments, until it is resumed or until a time. Raises ScheduleNotFound."""

    def resume_schedule(self, tenant: str, name: str) -> ScheduleRow:
        """Fire again, from the next moment on. Raises ScheduleNotFound."""

    def delete_schedule(self, tenant: str, name: str) -> ScheduleRow:
        """Forget it. Its jobs stay. Raises ScheduleNotFound, and ScheduleDeclared if a live worker declares it."""

    def fire_now(self, tenant: str, name: str) -> Job:
        """Store one job of it now, whatever its pause or its other jobs. Raises ScheduleNotFound."""

    def backfill(
        self, tenant: str, name: str, moments: Sequence[int], operation: str | None = None, position: str | None = None
    ) -> int:
        """Store the jobs of these moments, except those that are stored. Return how many. Raises ScheduleNotFound. With
        `operation`, record the progress of that one in the same commit, and where the next call continues."""

    def next_fire(self) -> Due:
        """Whether `fire` would find something, and if not, when it will. One look at an index, without a lock."""

    def fire(self, limit: int) -> Fired:
        """Store the jobs of up to `limit` schedules that are due, each moment exactly once, and move them on."""
