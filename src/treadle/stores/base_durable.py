"""What every store can do for handlers that wait and go on: a part of the contract in `base.py`."""

# pyright: reportReturnType=false
# A method of a Protocol is its docstring here. (pyright would want a `...` after each.)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from treadle.batch import Batch, NewBatch
from treadle.job import ClaimedJob, Job
from treadle.lineage import Lineage
from treadle.log_lines import LogLine, NewLine
from treadle.steps import Ended, NewStep, Step
from treadle.wait_diagnosis import Held
from treadle.waits import NewSignal, Signal, Wait


class Durable(Protocol):
    """Steps, logs, waits, lineage, signals and batches."""

    def save_steps(self, done: Sequence[tuple[ClaimedJob, NewStep]]) -> list[Exception | None]:
        """Store steps of running handlers, with their jobs and signals, in one commit. Return an error for each that is
        not stored: LeaseLost if its lease is no longer held. It can be repeated, if the commit may have happened."""

    def steps(self, id: str) -> list[Step]:
        """The stored steps of a job, in the order in which they were stored."""

    def save_logs(self, logged: Sequence[tuple[ClaimedJob, Sequence[NewLine]]]) -> None:
        """Store what running handlers have logged; for a lost lease nothing is written. A line may be stored again."""

    def logs(self, id: str, after: int | None = 0, limit: int = 1_000) -> list[LogLine]:
        """What the handlers of a job have logged, oldest first, after that many lines. None: the last `limit` lines."""

    def waits(self, id: str) -> list[Wait]:
        """What a job waits for and has waited for."""

    def parents(self, id: str) -> list[Job]:
        """The jobs that a job was enqueued after, as they are now."""

    def plain_key(self, id: str) -> str | None:
        """Its dedupe key, if the mode is "return" until it has ended."""

    def ends(self, ids: Sequence[str]) -> dict[str, Ended]:
        """How those of these jobs that exist have ended."""

    def held(self) -> Held:
        """Jobs that wait for parents that have failed, or very long, at a cost that does not grow with the number of
        jobs."""

    def lineage(self, id: str, most: int, tenant: str | None = None) -> Lineage | None:
        """The jobs that it comes from and that come from it, in any number of steps, at most `most`. With `tenant`,
        jobs of others do not exist. None if there is no such job."""

    def signal(self, new: NewSignal, connection: Any = None) -> Signal:
        """Store a signal, unless there is one of its name: the first counts, and is returned. Jobs that wait for it may
        go on from the commit on."""

    def get_signal(self, name: str, tenant: str = "") -> Signal | None:
        """The signal of that name."""

    def insert_batch(self, new: NewBatch, connection: Any = None) -> None:
        """Store a batch and its members, all or nothing. Raises BatchExists if its tenant has one of that name."""

    def batch(self, tenant: str, name: str) -> Batch | None:
        """The batch as it is now."""

    def batches(self, tenant: str | None, before: tuple[int, str, str], limit: int) -> list[Batch]:
        """Batches, newest first, from the first one before a time, a tenant and a name on."""

    def match(self) -> int:
        """Let jobs go that wait for what has happened, some of them, and close batches whose members have ended. Return
        how much of it is done. A claim does it, too."""
