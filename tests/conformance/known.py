"""What the model of a store knows about a job."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from treadle.job import Status


@dataclass(frozen=True)
class KnownStep:
    kind: str
    value: Any


@dataclass(frozen=True)
class KnownWait:
    kind: str
    if_failed: str = "run"
    until: int | None = None
    met: bool = False


@dataclass(frozen=True)
class Known:
    """What the model knows about a job."""

    type: str
    queue: str
    tenant: str
    priority: int
    max_attempts: int
    key: str | None
    run_at: int
    status: Status = Status.PENDING
    attempts: int = 0
    snoozes: int = 0
    suspicion: int = 0
    worker: str = ""
    number: int = 0
    ended_by: tuple[int, Status] | None = None
    cancelled: bool = False
    completed_at: int = 0
    failures: int = 0
    rule: str | None = None
    """Of its key."""
    parked: bool = False
    """Whether it waits until the holder of its key has ended."""
    start_by: int | None = None
    batch: str | None = None
    scheduled: bool = False
    steps: dict[str, KnownStep] = field(default_factory=dict)
    """By name, in the order in which they were stored."""
    waits: dict[tuple[str, str], KnownWait] = field(default_factory=dict)
    """By what it waits for and the step that does."""
    forgiven: int | None = None

    @property
    def is_waiting(self) -> bool:
        return self.status in (Status.PENDING, Status.BLOCKED)

    @property
    def is_fresh(self) -> bool:
        """Whether it waits, and has never been started."""
        begun = self.attempts or self.snoozes or self.suspicion or self.forgiven is not None
        return self.is_waiting and not begun

    @property
    def has_begun(self) -> bool:
        """Whether it runs, or is in the middle of its steps: nothing replaces it then."""
        return self.status is Status.PROCESSING or (self.is_waiting and self.forgiven is not None)

    @property
    def runs_that_count(self) -> int:
        return self.attempts - (self.forgiven or 0)

    def waits_for(self, id: str) -> bool:
        """Whether it needs that job: it waits for it, or has waited for it and may read its result."""
        return not self.status.is_final and any(
            what == id and w.kind != "signal" for (what, _), w in self.waits.items()
        )

    def moved(self, run_at: int) -> Known:
        """It is due at another time, and has as long as before to start."""
        start_by = None if self.start_by is None else self.start_by - self.run_at + run_at
        return replace(self, run_at=run_at, start_by=start_by)

    def ended(self, status: Status, at: int) -> Known:
        """It ends before it starts, or instead of waiting."""
        over = {key: replace(wait, met=True) for key, wait in self.waits.items()}
        return replace(self, status=status, completed_at=at, parked=False, start_by=None, waits=over)
