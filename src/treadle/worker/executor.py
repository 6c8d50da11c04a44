"""Runs claimed jobs in slots: prepare → start → put → execute → end.

`Executor.start` puts an attempt into the inbox of the slots that it needs. A slot is a task on the event loop, a
thread, or a thread with a child process. It takes an attempt from the inbox and executes it: it notes the start in a
cell, runs the handler, and passes the outcome to the tracer. Then it ends the attempt in `Attempts`, where the settler
finds it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.context import Run, Tracing
from treadle.job import ClaimedJob
from treadle.middleware import CLOSE_SECONDS
from treadle.outcome import UNSTARTED, Outcome, StopReason, decide
from treadle.worker.child import Child, ChildNotStarted, can_run
from treadle.worker.inflight import Attempts, RunningAttempt
from treadle.worker.parts import Parts
from treadle.worker.runner import run_async, run_sync

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.registry import JobType

log = logging.getLogger("treadle")

RunAttempt = Callable[[RunningAttempt], Outcome | None]


class Executor:
    """Puts each attempt into a slot of the kind that it needs, and watches its timeout."""

    def __init__(
        self,
        app: Treadle,
        concurrency: int,
        attempts: Attempts,
        parts: Parts,
        state: Mapping[str, Any],
        report: Callable[[Sequence[ClaimedJob]], None],
    ) -> None:
        new_child = partial(Child, app, attempts.cells)
        self._has_lifespan = bool(app.registry.lifespans)
        self._of_app = app.store, app.redactor, app._step_saver, state, app.registry.result
        self._attempts = attempts
        self._parts = parts
        self._hooks, self._report = app.hooks, report
        self._loop = asyncio.get_running_loop()
        shared = attempts, app.tracing, parts
        self._process_slots = ThreadSlots(*shared, concurrency, new_child)
        # Many suspects at once could be what killed the worker, and each costs the start of a process.
        self._suspect_slots = ThreadSlots(*shared, os.cpu_count() or 1, new_child)
        self._slots: Mapping[str, AsyncSlots | ThreadSlots] = {
            "async": AsyncSlots(*shared),
            "thread": ThreadSlots(*shared, concurrency),
            "process": self._process_slots,
        }

    def prepare(self, claimed: Sequence[ClaimedJob], types: Mapping[str, JobType]) -> list[RunningAttempt]:
        """The attempts of claimed jobs. They are in flight from now on."""
        now, running, attempts = time.monotonic(), self._attempts.running, list[RunningAttempt]()
        for job in claimed:
            attempt = RunningAttempt(Run(job, *self._of_app), types[job.type], now)
            if job.number in running:
                self._attempts.give_up_stale(job.number)
            running[job.number] = attempt
            attempts.append(attempt)
        return attempts

    def start(self, attempts: Sequence[RunningAttempt]) -> bool:
        """Put attempts into slots. If there can be none now, release the job, and return False."""
        if self._hooks.any:
            self._report([attempt.run.claimed for attempt in attempts])
        started = True
        for attempt in attempts:
            claimed, job_type = attempt.run.claimed, attempt.job_type
            slots = self._suspect_slots if claimed.suspicion and can_run(job_type) else self._slots[job_type.run]
            if (timeout := job_type.timeout) is not None:
                self._attempts.timed[claimed.number] = attempt
                if isinstance(slots, ThreadSlots):
                    self._check_after(timeout, attempt, timeout)
            try:
                slots.put(attempt)
            except Exception as error:  # no thread can be started: this is not the job's fault
                text = "job %s (%s) cannot be started now, and is released: %s"
                log.warning(text, claimed.id, claimed.type, error, extra=claimed.about)
                self._attempts.end(attempt, UNSTARTED)
                started = False
        return started

    def _check_after(self, seconds: float, attempt: RunningAttempt, timeout: float) -> None:
        check = self._check_timeout, attempt, timeout
        attempt.timer = self._loop.call_later(seconds, self._parts.call, "the check of a timeout", *check)

    def _check_timeout(self, attempt: RunningAttempt, timeout: float) -> None:
        left = attempt.time_left(timeout)
        if left > 0:
            self._check_after(left, attempt, timeout)
            return
        can_kill = attempt.kill is not None
        attempt.stop(StopReason.TIMED_OUT)
        if not can_kill and not attempt.ended:
            claimed = attempt.run.claimed
            text = "job %s (%s) timed out in a thread, which cannot be stopped"
            log.warning(text, claimed.id, claimed.type, extra=claimed.about)
            self._attempts.end(attempt, attempt.stopped())
            self._attempts.given_up.add(claimed.number)

    def types_on_loop(self) -> list[str]:
        """The types of the async handlers that have started. For any thread: `copy` is atomic."""
        running = self._attempts.running.copy().values()
        return sorted({one.job_type.name for one in running if one.job_type.run == "async" and one.kill is not None})

    def close(self) -> None:
        for slots in (*self._slots.values(), self._suspect_slots):
            slots.close()
        if self._has_lifespan:  # children close what they have opened
            deadline = time.monotonic() + CLOSE_SECONDS
            for thread in self._process_slots.threads + self._suspect_slots.threads:
                thread.join(max(0.0, deadline - time.monotonic()))


class AsyncSlots:
    """Slots that are long-lived tasks, each awaiting one handler after another.

    A task per job would cost more than everything else together. Handlers do not see the difference: one that left
    the context changed, or was cancelled, takes its task with it.
    """

    YIELD_AFTER = 0.005
    """Seconds after which handlers that never wait let the rest of the loop run."""

    def __init__(self, attempts: Attempts, tracing: Tracing | None, parts: Parts) -> None:
        self._attempts = attempts
        self._parts = parts
        self._run = run_async if tracing is None else partial(traced_async, tracing)
        self._inbox: deque[RunningAttempt] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = contextvars.copy_context()
        self._waking = False

    def put(self, attempt: RunningAttempt) -> None:
        self._inbox.append(attempt)
        try:
            if not self._waking:
                self._wake()
        except Exception:
            self._inbox.remove(attempt)  # its caller releases it: no slot may find it later
            raise

    def _wake(self) -> None:
        """Have another slot look at the inbox, if none is about to. It wakes the next before it starts a handler."""
        if self._idle:
            self._idle.pop().set_result(None)
        else:
            task = asyncio.get_running_loop().create_task(self._serve(), context=self._context.copy())
            self._tasks.add(self._parts.watch("an async slot", task))
            task.add_done_callback(self._tasks.discard)
        self._waking = True

    async def _serve(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancel = task.cancel
        before = contextvars.copy_context()
        while True:
            self._waking = False
            turn_ends = time.monotonic() + self.YIELD_AFTER
            while self._inbox:
                attempt = self._inbox.popleft()
                if self._inbox and not self._waking:
                    self._wake()
                self._attempts.end(attempt, await self._execute(attempt, cancel))
                if task.cancelling() or contextvars.copy_context() != before:
                    if self._inbox and not self._waking:
                        self._wake()
                    return
                if time.monotonic() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = time.monotonic() + self.YIELD_AFTER
            idle: asyncio.Future[None] = loop.create_future()
            self._idle.append(idle)
            await idle

    async def _execute(self, attempt: RunningAttempt, cancel: Callable[[], object]) -> Outcome | None:
        if attempt.run.stop_reason is not None:
            return attempt.stopped()
        try:
            attempt.kill = cancel
            self._attempts.cells.start(attempt.run.claimed.number)
            if attempt.job_type.timeout is not None or self._attempts.health is not None:  # else it saves the call
                attempt.started_at = time.monotonic()
            return await self._run(attempt.run, attempt.job_type)
        except Exception as error:
            self._parts.fail("an async slot", error)
            return failed_outside_handler(attempt, error)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


class ThreadSlots:
    """Slots that are threads: one per attempt that runs, at most `limit`. Each stays.

    They share an inbox. To wake a thread for each attempt would cost more than a short handler: a thread that takes an
    attempt wakes the next one only if there are more, and takes the next by itself if it is first.

    With `new_child`, each thread has a child process and waits for it; without, it runs the handler itself.
    """

    def __init__(
        self,
        attempts: Attempts,
        tracing: Tracing | None,
        parts: Parts,
        limit: int,
        new_child: Callable[[], Child] | None = None,
    ) -> None:
        self._attempts = attempts
        self._parts = parts
        self._closed = threading.Event()
        self._tracing = tracing
        self._limit = limit
        self._new_child = new_child
        self._inbox: deque[RunningAttempt] = deque()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._waking = False
        """Whether a thread is being woken that has not looked at the inbox yet."""
        self.threads: list[threading.Thread] = []

    def put(self, attempt: RunningAttempt) -> None:
        taken = len(self._attempts.running) + len(self._attempts.given_up)
        if len(self.threads) < min(self._limit, taken):
            thread = threading.Thread(target=self._run_thread, name=f"treadle-slot-{len(self.threads)}", daemon=True)
            thread.start()
            self.threads.append(thread)
        self._inbox.append(attempt)
        if not self._waking:
            self._waking = True
            self._wakes.put(None)

    def _run_thread(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._parts.fail_from_thread("a thread of a slot", error)

    def _serve(self) -> None:
        child = self._new_child() if self._new_child else None
        run = child.run if child else self._run_in_thread
        run = run if self._tracing is None else partial(traced, self._tracing, run)
        while not self._closed.is_set():
            try:
                attempt = self._inbox.popleft()
            except IndexError:
                self._wakes.get()
                self._waking = False
                continue
            # Have one more thread look at the inbox. Two at once may wake one too many, never one too few: whoever adds
            # to the inbox does so before it looks at `_waking`, and a thread clears that before it looks at the inbox.
            if self._inbox and not self._waking:
                self._waking = True
                self._wakes.put(None)
            outcome = self._execute(run, attempt)
            try:
                self._attempts.end_from_thread(attempt, outcome)
            except RuntimeError:
                break  # the event loop is closed: the worker has released the job
        if child:
            child.end()

    def _execute(self, run: RunAttempt, attempt: RunningAttempt) -> Outcome | None:
        """An outcome in any case, even if treadle itself fails: a thread that ended would keep its job forever."""
        try:
            if attempt.run.stop_reason is not None:
                return attempt.stopped()
            return run(attempt)
        except ChildNotStarted as error:
            claimed = attempt.run.claimed
            log.warning("job %s (%s) is released: %s", claimed.id, claimed.type, error, extra=claimed.about)
            self._closed.wait(error.pause)  # the next child would not start either
            return attempt.stopped() or UNSTARTED
        except BaseException as error:
            self._parts.fail_from_thread("a thread of a slot", error)
            return failed_outside_handler(attempt, error)

    def _run_in_thread(self, attempt: RunningAttempt) -> Outcome | None:
        self._attempts.cells.start(attempt.run.claimed.number)
        attempt.started_at = time.monotonic()
        # In a copy: what the handler leaves in context variables must not reach the next one on this thread.
        return contextvars.copy_context().run(run_sync, attempt.run, attempt.job_type)

    def close(self) -> None:
        self._closed.set()
        for _ in self.threads:
            self._wakes.put(None)


def failed_outside_handler(attempt: RunningAttempt, error: BaseException) -> Outcome:
    """The outcome of an attempt that failed in treadle or its tracer. It is charged only if the handler has run."""
    claimed = attempt.run.claimed
    log.error("job %s (%s) failed outside its handler", claimed.id, claimed.type, exc_info=error, extra=claimed.about)
    has_run = attempt.run.ended or attempt.started_at is not None
    return decide(claimed, error, attempt.job_type.backoff) if has_run else UNSTARTED


def traced(tracing: Tracing, run: RunAttempt, attempt: RunningAttempt) -> Outcome | None:
    with tracing.running(attempt.run) as ended:
        outcome = run(attempt)
        ended(outcome)
        return outcome


async def traced_async(tracing: Tracing, run: Run, job_type: JobType) -> Outcome | None:
    with tracing.running(run) as ended:
        outcome = await run_async(run, job_type)
        ended(outcome)
        return outcome
