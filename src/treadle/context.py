"""The context of a handler: what it can read from its attempt, and do with it. Also the interface of a tracer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from treadle import clock, codec
from treadle.errors import BadOption, TransactionOver
from treadle.job import ClaimedJob, NewJob, Progress
from treadle.outcome import COMPLETED, Outcome, OutcomeKind, StopReason
from treadle.redact import DEFAULT, Redactor

if TYPE_CHECKING:
    from treadle.stores.base import Engine

current_run: ContextVar[Run | None] = ContextVar("treadle_run", default=None)
"""The attempt that the calling code belongs to: an enqueue inside it is a follow-up."""


@dataclass(slots=True, eq=False)
class Run:
    """One attempt that is running: what the handler did so far, and whether the worker wants it to stop."""

    claimed: ClaimedJob
    store: Engine
    redactor: Redactor = DEFAULT
    progress: Progress | None = None
    stop_reason: StopReason | None = None
    """Why the worker wants the handler to stop: its stop flag is set."""
    stop_seen: bool = False
    """Whether the handler noticed that."""
    completes: bool = False
    """Whether the handler called `complete`, with `result`."""
    ended: bool = False
    result: Any = None
    follow_ups: list[NewJob] = field(default_factory=list)
    written: Outcome | None = None

    def report(self, progress: Progress) -> None:
        """Keep the newest progress, for the worker to store."""
        self.progress = progress

    def completed(self, result: Any) -> Outcome:
        """The outcome of a handler that returned."""
        if result is None and not self.follow_ups:
            return COMPLETED
        text = codec.result_to_json(result, self.claimed.type)
        return Outcome(OutcomeKind.COMPLETED, result=text, follow_ups=tuple(self.follow_ups))


class Context:
    """The first argument of a handler whose first parameter is annotated with it."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def id(self) -> str:
        """The job's id."""
        return self._run.claimed.id

    @property
    def type(self) -> str:
        return self._run.claimed.type

    @property
    def queue(self) -> str:
        return self._run.claimed.queue

    @property
    def tenant(self) -> str:
        return self._run.claimed.tenant

    @property
    def subject(self) -> str:
        return self._run.claimed.subject

    @property
    def attempt(self) -> int:
        """The number of this run; the first is 1."""
        return self._run.claimed.attempt

    @property
    def max_attempts(self) -> int:
        return self._run.claimed.max_attempts

    @property
    def snoozes(self) -> int:
        """How often the job was snoozed so far."""
        return self._run.claimed.snoozes

    @property
    def fired_at(self) -> datetime | None:
        """The moment for which a schedule fired the job. It stays the same however late the job runs, or runs again."""
        return clock.optional_moment(self._run.claimed.fired_at)

    @property
    def cancelled(self) -> bool:
        """The stop flag: true once the job is cancelled, timed out or lost, or the worker shuts down.

        A handler that has seen it and returns has not completed: the job is cancelled, timed out or released. To
        complete nevertheless, call `complete`.
        """
        if self._run.stop_reason is None:
            return False
        self._run.stop_seen = True
        return True

    @property
    def result(self) -> Any:
        """The result that `transaction` stores. (Without a transaction, return it.)"""
        return self._run.result

    @result.setter
    def result(self, value: Any) -> None:
        self._run.result = value

    def complete(self, result: Any = None) -> None:
        """The work is done, with this result, whatever the stop flag says. It is stored when the handler returns."""
        if self._run.written or self._run.completes:
            raise TransactionOver("this attempt has completed already; call ctx.complete() or ctx.transaction() once")
        self._run.result, self._run.completes = result, True

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how far the work is, from 0 to 1. Cheap: the worker stores the newest about once a second."""
        if not 0 <= fraction <= 1:
            raise BadOption("progress", fraction, "a fraction of the work, from 0 to 1")
        self._run.report(Progress(float(fraction), codec.clip(str(message), 500) or ""))

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction of the job's own database that ends the job: your rows, its follow-ups and its completion
        are committed together, or none of them if the block raises or the lease was lost."""
        return _ending(self._run)

    @asynccontextmanager
    async def atransaction(self) -> AsyncGenerator[Any]:
        """`transaction` for an `async def` handler. The connection is the store's own, so its calls are sync."""
        loop, block = asyncio.get_running_loop(), _ending(self._run)
        # A thread of its own: in a pool, calls that wait for the writer could keep this one from committing.
        thread = ThreadPoolExecutor(1, "treadle-transaction")
        try:
            entering = loop.run_in_executor(thread, block.__enter__)
            try:
                connection = await asyncio.shield(entering)
            except asyncio.CancelledError as error:  # while it waits for the writer: roll back as soon as it has it
                thread.submit(block.__exit__, type(error), error, None)
                raise
            try:
                yield connection
            except BaseException as error:
                if not await loop.run_in_executor(thread, block.__exit__, type(error), error, error.__traceback__):
                    raise
            else:
                await loop.run_in_executor(thread, block.__exit__, None, None, None)
        finally:
            thread.shutdown(wait=False)


@contextmanager
def _ending(run: Run) -> Generator[Any]:
    if run.written:
        raise TransactionOver("ctx.transaction() has ended this job already; do all of its work in one block")
    before = len(run.follow_ups)
    try:
        with run.store.transaction(run.claimed, lambda: run.completed(run.result)) as connection:
            yield connection
    except BaseException:
        del run.follow_ups[before:]  # rolled back with the block, even if the handler continues
        raise
    run.written = Outcome(OutcomeKind.COMPLETED, written=True)


class Tracing(Protocol):
    """A tracer, such as `contrib/otel.py`. None of its methods may raise."""

    def enqueuing(self, jobs: Sequence[NewJob]) -> AbstractContextManager[Sequence[NewJob]]:
        """Around an enqueue. Yields the same jobs, with their `traceparent`."""
        ...

    def running(self, run: Run) -> AbstractContextManager[Callable[[Outcome | None], None]]:
        """Around an attempt, in the thread or task that runs it or waits for its process. Yields a function to call
        with the outcome (None: the lease was lost). Sets the `traceparent` of `run.claimed` to the attempt's own."""
        ...

    def inside(self, run: Run) -> AbstractContextManager[object]:
        """Around the handler in a child process, while its worker is inside `running`."""
        ...
