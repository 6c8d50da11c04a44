"""Takes the jobs of one queue of BullMQ, runs their handlers, and writes down how each attempt ended."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import bullmq  # type: ignore[import-untyped]

from treadle import clock, codec
from treadle.app import Treadle
from treadle.context import Collected, Run
from treadle.contrib.bullmq.producer import Bull
from treadle.contrib.bullmq.translate import SNOOZES, cancel_key, claimed_from, milliseconds, with_ids
from treadle.contrib.bullmq.unsupported import Refused, RefusedSteps
from treadle.hooks import Event, dispatch_now
from treadle.outcome import Fail, Outcome, OutcomeKind, StopReason, after_stop, decide
from treadle.registry import JobType
from treadle.run_steps import StepSaver
from treadle.worker.executor import traced_async
from treadle.worker.runner import run_async, run_sync

log = logging.getLogger("treadle")

STALLS = 10_000
"""How often BullMQ may find a job without its worker. Each time costs an attempt, so that ours end before."""
UNKNOWN_SECONDS = 15
"""After this time, another worker may know the type of a job."""
REPORT_SECONDS = 1.0
ANSWER_SECONDS = 5.0
"""How long Redis may take for an answer, if the URL has no `socket_timeout`."""
ENDING_SECONDS = 3.0
"""Seconds that handlers have after the grace, when they are asked to stop."""
CANCEL_SECONDS = 0.1
"""After this time, a task that still runs is cancelled again."""


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel them until they have ended. Once is not enough: `asyncio.wait_for` of Python 3.11 ignores a cancellation
    if what it waits for has just ended, and redis-py sends each command with it."""
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=CANCEL_SECONDS)


@dataclass(frozen=True)
class Shared:
    """What the queues of a worker have in common."""

    app: Treadle
    bull: Bull
    threads: ThreadPoolExecutor
    state: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Attempt:
    """A job of BullMQ that runs here."""

    job: Any
    job_type: JobType
    run: Run
    cancel: Callable[[], object] | None = None
    """Interrupts an async handler. A thread can only look at its stop flag."""
    reported: object = None

    def stop(self, reason: StopReason) -> None:
        if self.run.stop_reason is None and not self.run.ended:
            self.run.stop_reason = reason
            if self.cancel is not None:
                self.cancel()

    def stopped(self, reason: StopReason) -> Outcome | None:
        return after_stop(self.run.claimed, reason, self.job_type.timeout, self.job_type.backoff)


class Consumer:
    """The worker of one queue."""

    def __init__(self, queue: str, shared: Shared, concurrency: int, lock: float) -> None:
        self.queue, self._shared = queue, shared
        self._free = asyncio.Semaphore(concurrency)
        self._stall_seconds = lock / 2
        settings: Any = {
            "autorun": False,
            "connection": shared.bull.redis_url,
            "prefix": shared.bull.prefix,
            "concurrency": concurrency,
            "lockDuration": round(lock * 1000),
            "stalledInterval": round(self._stall_seconds * 1000),
            "maxStalledCount": STALLS,
            "runRetryDelay": 1000,
        }
        self._worker: Any = bullmq.Worker(queue, cast(Any, None), settings)
        self._allow_long_waits()
        self._worker.on("error", lambda error, *_: log.warning("queue %s: %s", queue, error))
        self._worker.on("lockRenewalFailed", self._lost)
        self.running: dict[str, Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unknown: set[str] = set()
        self._stopping = self._releasing = False

    def _allow_long_waits(self) -> None:
        """Redis answers after up to 10 seconds when the worker waits for a job. redis-py 8 reconnects after 5, if the
        URL has no other timeout, and pauses before that: longer each time, and then nothing waits for a job."""
        options = self._worker.bclient.connection_pool.connection_kwargs
        timeout = (options.get("socket_timeout") or ANSWER_SECONDS) + self._worker.maximumBlockTimeout
        options["socket_timeout"] = timeout
        if "orig_socket_timeout" in options:  # what redis-py returns to after a maintenance of the server
            options["orig_socket_timeout"] = timeout

    async def work(self) -> None:
        """Take jobs and start them, until it is stopped."""
        self._worker.lockManager.start()
        async with asyncio.TaskGroup() as group:
            chores = [group.create_task(chore()) for chore in (self._find_stalled, self._report, self._heed_cancels)]
            for number in itertools.count(1):
                await self._free.acquire()
                token = f"{self._worker.id}:{number}"
                job = None if self._stopping else await self._next(token)
                if job is not None:
                    task = asyncio.create_task(self._process(job, token))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                    continue
                self._free.release()
                if self._stopping:
                    break
            while self._tasks:  # locks are renewed until the last one has ended
                await asyncio.wait(self._tasks)
            await _cancel(chores)

    async def _next(self, token: str) -> Any:
        """The next job; None if there was none for some seconds, or Redis does not answer."""

        async def take() -> Any:  # it is called again after errors, and that may be after the stop
            return None if self._stopping else await self._worker.getNextJob(token)

        return await self._worker.retryIfFailed(take, {"delay_in_ms": 1000, "only_emit_error": True})

    async def stop(self, grace: float, working: asyncio.Task[None]) -> int:
        """Take no more jobs, and let the running ones end. Returns how many handlers were left behind."""
        self._stopping = self._worker.closing = True
        waiting = [] if self._worker.waiting is None else [self._worker.waiting]
        cancelling = asyncio.create_task(_cancel(waiting))
        await asyncio.wait([working], timeout=grace)
        self._releasing = True
        for attempt in list(self.running.values()):
            attempt.stop(StopReason.RELEASED)
        await asyncio.wait([working], timeout=ENDING_SECONDS)
        threads = [attempt for attempt in self.running.values() if attempt.cancel is None]
        rest = {working, cancelling, *self._tasks}
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=ENDING_SECONDS)  # some settle nevertheless, and need the connection
        await self._worker.close(force=True)
        return len(threads) + len(self.running)

    async def _find_stalled(self) -> None:
        """Return the jobs of workers that died."""
        while True:
            await self._worker.runStalledJobsCheck()
            await asyncio.sleep(self._stall_seconds)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            for attempt in list(self.running.values()):
                await self._report_one(attempt)

    async def _heed_cancels(self) -> None:
        """Stop the handlers whose jobs were cancelled."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            running = list(self.running.values())
            keys = [cancel_key(self._worker.backend, attempt.job.id) for attempt in running]
            try:
                requests = await self._worker.client.mget(keys) if keys else []
                for attempt, request in zip(running, requests, strict=True):
                    if request is not None:
                        attempt.stop(StopReason.CANCELLED)
            except Exception as error:
                log.warning("queue %s: cannot find out which jobs were cancelled: %s", self.queue, error)

    async def _report_one(self, attempt: Attempt) -> None:
        """Store the newest progress, and what is logged. Neither may fail a job."""
        progress, lines = attempt.run.progress, attempt.run.lines
        try:
            if progress is not None and progress is not attempt.reported:
                attempt.reported = progress
                await attempt.job.updateProgress(round(progress.fraction * 100, 2))
                if progress.message:
                    await attempt.job.log(progress.message)
            if lines is not None and (pending := lines.pending()):
                for line in pending:
                    await attempt.job.log(f"{line.level} {line.message}")
                lines.saved(pending)
        except Exception as error:
            log.warning("job %s: its progress is not stored: %s", attempt.job.id, error)

    def _lost(self, ids: list[str]) -> None:
        """Others may run these jobs now."""
        for id in ids:
            if id in self.running:
                self.running[id].stop(StopReason.LOST)

    # One attempt

    async def _process(self, job: Any, token: str) -> None:
        job_type = self._shared.app.registry.get(job.name)
        self._worker.lockManager.track_job(job.id, token, round(time.time() * 1000))
        handler: asyncio.Future[Any] | None = None
        try:
            if job_type is None:
                await self._leave(job, token)
                return
            attempt = await self._begin(job, job_type)
            self.running[job.id] = attempt
            if self._releasing:  # it came too late
                attempt.stop(StopReason.RELEASED)
            outcome, handler = await self._run(attempt)
            await self._settle(attempt, token, outcome)
        except Exception as error:  # Redis did not take it: the job stalls, and is found by a worker
            log.warning("job %s (%s) was not settled: %s", job.id, job.name, error)
        finally:
            self._worker.lockManager.untrack_job(job.id)
            self.running.pop(job.id, None)
            if handler is None or handler.done():
                self._free.release()
            else:  # a thread that cannot be stopped keeps its slot
                handler.add_done_callback(lambda _: self._free.release())

    async def _leave(self, job: Any, token: str) -> None:
        """Let it wait, with the reason, for a worker that knows its type."""
        problem = f"no handler for type {job.name!r} in this worker"
        if job.name not in self._unknown:
            self._unknown.add(job.name)
            log.warning("queue %s: %s; its jobs are delayed until a worker has one", self.queue, problem)
        await self._delay(job, token, UNKNOWN_SECONDS * 1000, {"failedReason": problem}, skip=True)

    async def _begin(self, job: Any, job_type: JobType) -> Attempt:
        snoozes, app = 0, self._shared.app
        if job.attemptsStarted > job.attemptsMade + job.stalledCounter + 1:  # it was snoozed, or released
            snoozes = int(await self._worker.client.hget(self._worker.backend.toKey(job.id), SNOOZES) or 0)
        run = Run(
            claimed_from(job, self.queue, job_type, snoozes),
            app.store,
            app.redactor,
            cast(StepSaver, RefusedSteps()),
            self._shared.state,
            enqueued=Collected(signals=Refused("td.signal in a handler"), batches=Refused("td.batch in a handler")),
        )
        return Attempt(job, job_type, run)

    async def _run(self, attempt: Attempt) -> tuple[Outcome | None, asyncio.Future[Any] | None]:
        """How it ended, and the handler's thread, which may still run then."""
        claimed, job_type, app = attempt.run.claimed, attempt.job_type, self._shared.app
        if attempt.run.stop_reason is not None:
            return attempt.stopped(attempt.run.stop_reason), None
        if attempt.job.deferredFailure:  # a child of it has failed, in a flow of Node
            return decide(claimed, Fail(attempt.job.deferredFailure), job_type.backoff), None
        if claimed.attempt > claimed.max_attempts:
            times = attempt.job.stalledCounter
            died = Fail(f"the last attempt was used up by a worker that died ({times} times in all)")
            return decide(claimed, died, job_type.backoff), None
        if app.hooks.any:
            await self._call_hooks(app.hooks.started([claimed], self._worker.id))
        if job_type.run == "async":
            call = run_async if app.tracing is None else partial(traced_async, app.tracing)
            task = asyncio.create_task(call(attempt.run, job_type), context=contextvars.copy_context())
            attempt.cancel = task.cancel
            return await task, None
        return await self._run_in_thread(attempt)

    async def _run_in_thread(self, attempt: Attempt) -> tuple[Outcome | None, asyncio.Future[Any] | None]:
        """A thread whose time is over, or whose job is lost, cannot be stopped: it is left behind."""

        def work() -> Outcome | None:
            if (tracing := self._shared.app.tracing) is None:
                return run_sync(attempt.run, attempt.job_type)
            with tracing.running(attempt.run) as ended:
                outcome = run_sync(attempt.run, attempt.job_type)
                ended(outcome)
                return outcome

        loop = asyncio.get_running_loop()
        thread = loop.run_in_executor(self._shared.threads, contextvars.copy_context().run, work)
        await asyncio.wait([thread], timeout=attempt.job_type.timeout)
        if thread.done():
            return thread.result(), thread
        attempt.stop(StopReason.TIMED_OUT)
        claimed = attempt.run.claimed
        log.warning("job %s (%s) timed out in a thread, which cannot be stopped", claimed.id, claimed.type)
        return attempt.stopped(StopReason.TIMED_OUT), thread

    async def _settle(self, attempt: Attempt, token: str, outcome: Outcome | None) -> None:
        """Write it, if the job is still this worker's: each of these commands compares the token of its lock."""
        job, run, worker = attempt.job, attempt.run, self._worker
        if outcome is None:
            log.warning("job %s (%s) was lost: its lock has expired", job.id, job.name)
            return
        await self._report_one(attempt)
        if outcome.written:  # by a transaction of the app's own database
            outcome = run.completed(run.result)
        fields = self._fields(attempt, outcome)
        if outcome.kind is OutcomeKind.COMPLETED:
            await self._shared.bull.aenqueue_many(with_ids(outcome.follow_ups, job, self.queue))
            result = None if outcome.result is None else codec.decode(outcome.result)
            await worker.backend.moveToCompleted(job, result, job.opts.get("removeOnComplete", False), token, False)
        elif outcome.kind in (OutcomeKind.FAILED, OutcomeKind.CANCELLED):
            keep = job.opts.get("removeOnFail", False)
            await worker.backend.moveToFailed(job, outcome.error, keep, token, False, fields)
            await worker.client.delete(cancel_key(worker.backend, job.id))  # if somebody retries it, it runs
        else:
            is_charged = outcome.kind is OutcomeKind.RETRIED
            await self._delay(job, token, milliseconds(outcome.delay), fields, skip=not is_charged)
        if (hooks := self._shared.app.hooks).any:
            raised = {} if run.error is None else {run.claimed.number: run.error}
            events = hooks.ended([(run.claimed, outcome)], clock.now(), worker.id, raised)
            await self._call_hooks(events)

    async def _call_hooks(self, events: Sequence[Event]) -> None:
        hooks = self._shared.app.hooks
        await asyncio.to_thread(dispatch_now, hooks, events, hooks.around)

    def _fields(self, attempt: Attempt, outcome: Outcome) -> dict[str, object]:
        """What is stored in the job's hash together with its outcome."""
        if outcome.kind is OutcomeKind.SNOOZED:
            return {SNOOZES: attempt.run.claimed.snoozes + 1}
        if outcome.error is None:
            return {}
        traces = [*attempt.job.stacktrace, outcome.traceback or outcome.error]
        return {"failedReason": outcome.error, "stacktrace": codec.as_json(traces[-10:])}

    async def _delay(self, job: Any, token: str, delay: int, fields: Mapping[str, object], *, skip: bool) -> None:
        """Let it wait. `skip`: without counting an attempt."""
        now = round(time.time() * 1000)
        await self._worker.backend.moveToDelayed(
            job.id, now, delay, token, {"skipAttempt": skip, "fieldsToUpdate": dict(fields)}
        )
