"""Where handlers run: on the event loop, in threads, in child processes."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from treadle.context import Run
from treadle.outcome import CANCELLED, RELEASED, Outcome, TimedOut, decide
from treadle.worker.child import Child
from treadle.worker.log import job_ref, log
from treadle.worker.runner import run_async, run_sync

if TYPE_CHECKING:
    from treadle.registry import JobType
    from treadle.tracing import Tracing
    from treadle.worker.inflight import Inflight


class StopReason(Enum):
    """Why the worker stops an attempt before its handler has ended."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"
    RELEASED = "released"
    LOST = "lost"


def _nothing() -> None: ...


class RunningAttempt:
    """One attempt in a slot."""

    __slots__ = ("ended", "job_type", "kill", "run", "started", "timer", "why")

    def __init__(self, run: Run, job_type: JobType) -> None:
        self.run = run
        self.job_type = job_type
        self.why: StopReason | None = None
        self.kill: Callable[[], object] | None = None
        """Ends the handler by force, where that can be done: not in a thread."""
        self.started: Callable[[], object] = _nothing
        """To be called, in whatever thread, when the handler starts: its time runs from then on."""
        self.ended = False
        self.timer: asyncio.TimerHandle | None = None

    def stop(self, why: StopReason) -> None:
        """Make the handler end, or at least tell it. What it did not finish has the outcome that `why` says."""
        if self.ended or self.why is not None:
            return
        self.why = why
        self.run.cancelled = True
        if (kill := self.kill) is not None:  # a slot's thread may take it away now
            kill()

    def stopped(self) -> Outcome | None:
        """The outcome of an attempt that was stopped; None if the job is no longer ours to settle."""
        if self.why is StopReason.CANCELLED:
            return CANCELLED
        if self.why is StopReason.TIMED_OUT and self.job_type.timeout is not None:
            return decide(self.run.claimed, TimedOut.after(self.job_type.timeout), self.job_type.backoff)
        return RELEASED if self.why is StopReason.RELEASED else None


Ended = Callable[[RunningAttempt, Outcome | None], None]


class AsyncSlots:
    """Slots that are long-lived Tasks, each awaiting one handler after another.

    A Task per job would cost more than everything else together. Handlers cannot tell the difference: one that left
    the context changed, or was cancelled, takes its Task with it.
    """

    YIELD_AFTER = 0.005
    """Seconds after which handlers that never wait let the rest of the loop run."""

    def __init__(self, ended: Ended, board: Inflight, tracing: Tracing | None) -> None:
        self._ended = ended
        self._board = board
        self._tracing = tracing
        self._inbox: deque[RunningAttempt] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = contextvars.copy_context()
        self._waking = False

    def put(self, running: RunningAttempt) -> None:
        self._inbox.append(running)
        self._wake()

    def _wake(self) -> None:
        """Have one more slot look at the inbox. It wakes the next before it starts a handler."""
        if self._waking:
            return
        self._waking = True
        if self._idle:
            self._idle.pop().set_result(None)
        else:
            task = asyncio.get_running_loop().create_task(self._serve(), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        before = contextvars.copy_context()
        while True:
            self._waking = False
            turn_ends = time.monotonic() + self.YIELD_AFTER
            while self._inbox:
                running = self._inbox.popleft()
                if self._inbox:
                    self._wake()
                if not await self._run(running, task) or contextvars.copy_context() != before:
                    if self._inbox:
                        self._wake()
                    return
                if time.monotonic() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = time.monotonic() + self.YIELD_AFTER
            idle: asyncio.Future[None] = loop.create_future()
            self._idle.append(idle)
            await idle

    async def _run(self, running: RunningAttempt, task: asyncio.Task[None]) -> bool:
        """Whether the Task is as good as new afterwards."""
        if running.why is not None:
            self._ended(running, running.stopped())
            return True
        running.kill = task.cancel
        self._board.start(running.run.claimed.number)
        if self._tracing is None:
            outcome = await self._attempt(running)
        else:
            with self._tracing.running(running.run) as tell:
                outcome = await self._attempt(running)
                tell(outcome)
        running.ended = True
        self._ended(running, None if running.why is StopReason.LOST else outcome)
        return not task.cancelling()

    async def _attempt(self, running: RunningAttempt) -> Outcome | None:
        try:
            return await run_async(running.run, running.job_type)
        except asyncio.CancelledError:
            if running.why is None:  # the loop itself is being torn down
                return RELEASED
            return running.stopped()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


Execute = Callable[[RunningAttempt], Outcome | None]


class ThreadSlots:
    """Slots that are threads. One that was given up stays taken until its handler ends.

    `execute` makes what runs an attempt, one for each thread; at most `limit` threads.
    """

    def __init__(self, ended: Ended, execute: Callable[[], Execute], limit: int, tracing: Tracing | None) -> None:
        self._ended = ended
        self._execute = execute
        self._limit = limit
        self._tracing = tracing
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[RunningAttempt | None] = queue.SimpleQueue()
        self._outbox: deque[tuple[RunningAttempt, Outcome | None]] = deque()
        self._told = False
        self._busy = 0
        self._threads: list[threading.Thread] = []

    def put(self, running: RunningAttempt) -> None:
        self._busy += 1
        if len(self._threads) < min(self._busy, self._limit):
            thread = threading.Thread(target=self._serve, name=f"treadle-slot-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._inbox.put(running)

    def _serve(self) -> None:
        execute = self._execute()
        while (running := self._inbox.get()) is not None:
            outcome = running.stopped() if running.why is not None else self._attempt(execute, running)
            self._outbox.append((running, outcome))
            if not self._told:
                self._told = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    break  # the loop is closed: the worker has released what this was
        if isinstance(execute, Child):
            execute.close()

    def _attempt(self, execute: Execute, running: RunningAttempt) -> Outcome | None:
        if self._tracing is None:
            return _surely(execute, running)
        with self._tracing.running(running.run) as tell:
            outcome = _surely(execute, running)
            tell(outcome)
            return outcome

    def _collect(self) -> None:
        self._told = False
        while self._outbox:
            running, outcome = self._outbox.popleft()
            self._busy -= 1
            running.ended = True
            self._ended(running, None if running.why is StopReason.LOST else outcome)

    def close(self) -> None:
        for _ in self._threads:
            self._inbox.put(None)


def _surely(execute: Execute, running: RunningAttempt) -> Outcome | None:
    """An outcome, even if we are to blame: a slot that dies would take its jobs out of sight."""
    try:
        return execute(running)
    except BaseException as error:
        log.exception("job %s (%s) could not be run", *job_ref(running.run.claimed))
        return decide(running.run.claimed, error, running.job_type.backoff)


def in_this_thread(board: Inflight) -> Execute:
    """Run attempts where they are."""

    def execute(running: RunningAttempt) -> Outcome | None:
        board.start(running.run.claimed.number)
        running.started()
        # In a copy: what the handler leaves in context variables must not reach the next one on this thread.
        return contextvars.copy_context().run(run_sync, running.run, running.job_type)

    return execute
