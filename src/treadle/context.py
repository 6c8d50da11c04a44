"""The context of a handler: what it can read from its attempt, and do with it. Also the interface of a tracer."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Never, ParamSpec, Protocol, TypeVar, overload

import msgspec

from treadle import clock, codec, completion
from treadle.batch import NewBatch, member, refuse_rejects
from treadle.errors import BadOption, TransactionOver
from treadle.job import ClaimedJob, Job, NewJob, Progress
from treadle.line_buffer import LineBuffer
from treadle.outcome import COMPLETED, Outcome, OutcomeKind, StopReason
from treadle.redact import DEFAULT, Redactor
from treadle.settings import checked_level
from treadle.waits import NewSignal

if TYPE_CHECKING:
    from treadle.run_steps import RunSteps, StepCall, StepSaver
    from treadle.stores.base import Store

P = ParamSpec("P")
T = TypeVar("T")

current_run: ContextVar[Run | None] = ContextVar("treadle_run", default=None)
"""The attempt that the calling code belongs to: an enqueue inside it is a follow-up."""
current_step: ContextVar[StepCall | None] = ContextVar("treadle_step", default=None)
"""The step that it belongs to: what is enqueued inside it is stored with it."""
_lock = threading.Lock()


class Collected(msgspec.Struct, eq=False):
    """What a handler or a step of it has enqueued: it is stored with its end."""

    follow_ups: list[NewJob] = []
    signals: list[NewSignal] = []
    batches: list[NewBatch] = []


_NOTHING = Collected()


class Run(msgspec.Struct, eq=False):
    """One attempt that is running: what the handler did so far, and whether the worker wants it to stop."""

    claimed: ClaimedJob
    store: Store
    redactor: Redactor = DEFAULT
    saver: StepSaver | None = None
    state: Mapping[str, Any] = msgspec.field(default_factory=dict)
    typed: Callable[[str, Any], Any] = lambda type, result: result
    """A stored result of a type of job, as its handler annotates it."""
    progress: Progress | None = None
    stop_reason: StopReason | None = None
    """Why the worker wants the handler to stop: its stop flag is set."""
    stop_seen: bool = False
    """Whether the handler noticed that."""
    completes: bool = False
    """Whether the handler called `complete`, with `result`."""
    ended: bool = False
    result: Any = None
    written: Outcome | None = None
    unawaited: Coroutine[Any, Any, None] | None = None
    """A call of `acomplete` that nobody has awaited yet."""
    joined: bool = False
    """Whether it was written in a transaction of the user's own, which may not be committed."""
    in_transaction: bool = False
    owner: object = None
    """The task or thread of its handler."""
    steps: RunSteps | None = None
    error: BaseException | None = None
    """What its handler raised."""
    suspension: Outcome | None = None
    """Its outcome, once it waits, whatever the handler does then."""
    parents: list[Job] | None = None
    keeps: int | None = None
    """The least level of the records of `logging` that are kept."""
    lines: LineBuffer | None = None
    enqueued: Collected | None = None

    @property
    def collected(self) -> Collected:
        """What is stored with its completion. Most runs never need it: each list costs the garbage collector time."""
        if self.enqueued is None:
            first = Collected()
            with _lock:  # threads of one handler share it
                self.enqueued = self.enqueued or first
        return self.enqueued

    @property
    def collecting(self) -> Collected:
        """What an enqueue is stored with: the step that it is in, or else the completion."""
        step = current_step.get()
        return self.collected if step is None or step.ended else step.collected

    def has_stored_step(self) -> None:
        """The attempts before this one no longer count."""
        self.claimed = msgspec.structs.replace(self.claimed, forgiven=self.claimed.attempt - 1)

    def report(self, progress: Progress) -> None:
        """Keep the newest progress, for the worker to store."""
        self.progress = progress

    def log(self, level: str, message: str) -> None:
        """Keep a line, for the worker to store. For any thread; what comes after the handler has ended is ignored."""
        if not self.ended:
            self.lines = self.lines or LineBuffer()
            self.lines.add(level, message)

    def completed(self, result: Any) -> Outcome:
        """The outcome of a handler that returned."""
        if result is None and self.enqueued is None:
            return COMPLETED
        made = self.enqueued or _NOTHING
        return Outcome(
            OutcomeKind.COMPLETED,
            result=codec.result_to_json(result, self.claimed.type),
            follow_ups=tuple(made.follow_ups),
            signals=tuple(made.signals),
            batches=tuple(made.batches),
        )

    def with_logs(self, outcome: Outcome) -> Outcome:
        """The outcome, with what is logged and not stored yet."""
        lines = () if self.lines is None else self.lines.pending()
        return msgspec.structs.replace(outcome, logs=lines) if lines else outcome


class MemberBatch:
    """The batch that the running job is a member of: `ctx.batch`. It is false if the job is in none."""

    __slots__ = ("_run", "name")

    def __init__(self, run: Run, name: str) -> None:
        self._run, self.name = run, name

    def __bool__(self) -> bool:
        return bool(self.name)

    def add(self, request: NewJob, *more: NewJob) -> NewJob:
        """Add one request or several to the batch, and return the first. They are stored with the completion of this
        job, or with the step that this is in, so that the batch does not close before they have ended, too."""
        if not self:
            raise BadOption("batch", None, "this job is in no batch; add it to one: with td.batch(…) as batch")
        if self._run.written or self._run.ended:
            raise TransactionOver("this attempt has completed already; add to its batch before that")
        claimed = self._run.claimed
        new = [member(one, self.name, claimed.tenant, claimed.id) for one in (request, *more)]
        refuse_rejects("add", new)
        self._run.collecting.follow_ups.extend(new)
        return new[0]

    @property
    def progress(self) -> float:
        """The part of its members that has ended, from 0 to 1, as the database has it now."""
        found = self._run.store.batch(self._run.claimed.tenant, self.name)
        return 1.0 if found is None else found.progress


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
    def state(self) -> Mapping[str, Any]:
        """What the lifespans of the app have opened in this process."""
        return self._run.state

    @property
    def batch(self) -> MemberBatch:
        """The batch that the job is a member of. It is false if the job is in none."""
        return MemberBatch(self._run, self._run.claimed.batch or "")

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

    def complete(self, result: Any = None, *more: Never, connection: Any = None) -> None:
        """The work is done, with this result, whatever the stop flag says. It is stored when the handler returns.

        With `connection`, it is stored in your own transaction on the database of the jobs, of psycopg, SQLAlchemy (a
        Session, too) or Django; and so are the jobs that this handler has enqueued. Commit before the handler returns.
        """
        completion.check_named("ctx.complete", result, more)
        completion.complete(self._run, result, connection)

    def acomplete(self, result: Any = None, *more: Never, connection: Any = None) -> Coroutine[Any, Any, None]:
        """`complete` with a connection that is awaited: of psycopg, asyncpg, or SQLAlchemy's AsyncSession."""
        completion.check_named("await ctx.acomplete", result, more)
        self._run.unawaited = completion.acomplete(self._run, result, connection)
        return self._run.unawaited

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how far the work is, from 0 to 1. Cheap: the worker stores the newest about once a second."""
        if not 0 <= fraction <= 1:
            raise BadOption("progress", fraction, "a fraction of the work, from 0 to 1")
        self._run.report(Progress(float(fraction), codec.clip(str(message), 500) or ""))

    def log(self, message: str, /, *args: object, level: int | str = logging.INFO) -> None:
        """Keep a line with this attempt: `ctx.log("fetched %d rows", n)`. The job's page shows it, and `td.logs`.

        Cheap: the worker stores new lines about once a second, and the rest with the outcome. If the worker itself is
        killed, the last second is lost. Of an attempt 1,000 lines and 256 KiB are kept, of a line 4 KiB.
        """
        number = checked_level("level", level)
        record = logging.LogRecord("", number, "", 0, str(message), args, None)
        try:
            text = record.getMessage()
        except Exception:  # as `logging` has it: what cannot be formatted does not fail the caller
            text = f"{message} {args!r}"
        self._run.log(record.levelname, text)

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction of the job's own database that ends the job: your rows, its follow-ups and its completion
        are committed together, or none of them if the block raises or the lease was lost."""
        return completion.transaction(self._run)

    def atransaction(self) -> AbstractAsyncContextManager[Any]:
        """`transaction` for an `async def` handler. The connection is the store's own, so its calls are sync."""
        return completion.atransaction(self._run)

    # Steps and waits

    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `fn`, and store what it returns, as JSON by its annotation, before this returns. If the job runs again,
        `fn` is not called again. A repeated name gets a number: the second `fetch` is `fetch#2`.

        Jobs and signals inside `fn` are stored with the step.
        """
        steps = self._steps
        result: T = steps.step(steps.call(name, fn, args, kwargs), fn, args, kwargs)
        return result

    @overload
    def astep(
        self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def astep(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    def astep(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """`step` without blocking the event loop. `fn` may be async; if it is not, it is called in a thread."""
        steps = self._steps
        return steps.astep(steps.call(name, fn, args, kwargs), fn, args, kwargs)

    def sleep(self, name: str, seconds: float | timedelta) -> None:
        """Go on after this time, in another run. No worker is held until then, and no attempt is used up."""
        self._steps.sleep(name, seconds)

    async def asleep(self, name: str, seconds: float | timedelta) -> None:
        """`sleep` without blocking the event loop."""
        (await self._steps.aloaded()).sleep(name, seconds)

    def wait_for(self, signal: str, timeout: float | timedelta | None = None) -> Any:
        """The value of this signal of the job's tenant, which `td.signal` sends, before or after. No worker is held
        until then. Raises TimeoutError if it does not come within `timeout` seconds."""
        return self._steps.wait_for(signal, timeout)

    async def await_for(self, signal: str, timeout: float | timedelta | None = None) -> Any:
        """`wait_for` without blocking the event loop."""
        return (await self._steps.aloaded()).wait_for(signal, timeout)

    def gather(self, name: str, requests: Sequence[NewJob]) -> list[Any]:
        """Start these jobs, and go on when all have ended, with their results in this order. No worker is held until
        then. Raises JobFailed for the first that has failed."""
        return self._steps.gather(name, requests)

    async def agather(self, name: str, requests: Sequence[NewJob]) -> list[Any]:
        """`gather` without blocking the event loop."""
        return await (await self._steps.aloaded()).agather(name, requests)

    @property
    def parents(self) -> list[Job]:
        """The jobs that this one was enqueued after, with their results."""
        run = self._run
        if run.parents is None:
            stored = run.store.parents(run.claimed.id)
            run.parents = [msgspec.structs.replace(job, result=run.typed(job.type, job.result)) for job in stored]
        return run.parents

    @property
    def _steps(self) -> RunSteps:
        run = self._run
        if run.steps is not None:
            return run.steps
        assert run.saver is not None
        return run.saver.steps_of(run)


def caller() -> object:
    return threading.get_ident() if asyncio._get_running_loop() is None else asyncio.current_task()


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
