"""Run what is due in this process, on the real worker."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Generator
from contextlib import contextmanager

from treadle.app import Treadle
from treadle.clock import Duration, in_seconds
from treadle.errors import BadOption
from treadle.job import Attempt, Job, Status
from treadle.management import every_job
from treadle.results import run_on_a_loop
from treadle.stores.base import ClaimRequest
from treadle.testing.enqueued import call
from treadle.units import plural
from treadle.worker.tick import TickReport, declare_and_fire, next_of, report_of
from treadle.worker.worker import Worker

SHOWN = 5


def drain(td: Treadle, *, raising: bool = True, max_jobs: int = 1000, max_seconds: Duration = 30) -> TickReport:
    """Run everything that is due, in this process: the jobs of schedules and the others, their follow-ups, and retries
    that are due already.

    A retry, a snooze or a sleep that is due later waits: advance the clock, and drain again. So does a job that waits
    for a signal, until you send it. Handlers declared with `run="process"` run in this process too, so that they see
    what the test has patched.

    Raises AssertionError, with all tracebacks, if the last run of a job here failed. With `raising=False` the report
    says how many failed, and `td.attempts(id)` says why. Reaching `max_jobs` (does a job enqueue itself?) or
    `max_seconds` is always an AssertionError.
    """
    seconds = _checked_seconds(max_jobs, max_seconds)
    if (report := td._drained_here(raising, max_jobs, seconds)) is not None:
        return report
    return run_on_a_loop(_adrain(td, raising, max_jobs, seconds))


async def adrain(td: Treadle, *, raising: bool = True, max_jobs: int = 1000, max_seconds: Duration = 30) -> TickReport:
    """`drain` on the running event loop: async handlers may use what the test has opened on it."""
    seconds = _checked_seconds(max_jobs, max_seconds)
    report = await td._to_thread(td._drained_here, raising, max_jobs, seconds)
    return report or await _adrain(td, raising, max_jobs, seconds)


def _checked_seconds(max_jobs: int, max_seconds: Duration) -> float:
    seconds = in_seconds(max_seconds)
    if max_jobs < 1 or seconds <= 0:
        raise BadOption("drain", (max_jobs, seconds), "at least 1 job and more than 0 seconds")
    return seconds


async def _adrain(td: Treadle, raising: bool, max_jobs: int, max_seconds: float) -> TickReport:
    last_before: int = (await asyncio.to_thread(td.store.status))["leases_given"]
    rescued = await asyncio.to_thread(td.rescue)
    fired = await asyncio.to_thread(declare_and_fire, td, max_seconds / 2)
    worker = Worker(td, concurrency=10, grace=0, max_jobs=max_jobs)
    with _in_this_process(td):
        async with worker:
            try:
                await asyncio.wait_for(worker.drained(), max_seconds)
            except TimeoutError:
                raise AssertionError(await asyncio.to_thread(_too_long, td, max_seconds)) from None
    due = await asyncio.to_thread(td.store.due, ClaimRequest(limit=1, types=dict.fromkeys(td.registry.types)))
    if due.now and worker.claimed_total >= max_jobs:
        problem = f"drain ran {max_jobs} jobs and more are due"
        raise AssertionError(f"{problem}; does a job enqueue itself? If not, raise max_jobs")
    failed = await asyncio.to_thread(_failed_since, td, last_before) if raising else []
    if failed:
        raise AssertionError(_failures(failed))
    return report_of(worker, rescued, next_of(due, await asyncio.to_thread(td.store.next_fire)), fired)


@contextmanager
def _in_this_process(td: Treadle) -> Generator[None]:
    """Run no child processes: they would see neither the test's patches nor its temporary database."""
    apart = [job_type for job_type in td.registry.types.values() if job_type.run == "process"]
    for job_type in apart:
        job_type.run = "async" if inspect.iscoroutinefunction(job_type.handler) else "thread"
    try:
        yield
    finally:
        for job_type in apart:
            job_type.run = "process"


def _failed_since(td: Treadle, lease: int) -> list[tuple[Job, Attempt]]:
    """The jobs that failed, or wait to be retried, because of an attempt after that lease."""
    failed: list[tuple[Job, Attempt]] = []
    for job in every_job(td):
        if job.status in (Status.FAILED, Status.PENDING) and job.attempts:
            attempts = td.attempts(job.id)
            if attempts and attempts[-1].lease > lease:
                failed.append((job, attempts[-1]))
    return failed


def _failures(failed: list[tuple[Job, Attempt]]) -> str:
    lines = [f"{plural(len(failed), 'attempt')} failed; to allow that: drain(td, raising=False)"]
    for job, attempt in failed[:SHOWN]:
        left = "failed" if job.status is Status.FAILED else f"is retried at {job.run_at.isoformat()}"
        lines += [f"{call(job.type, job.payload)} {left} (attempt {attempt.attempt} of {job.max_attempts}):"]
        lines += [f"    {line}" for line in (attempt.traceback or attempt.error or "").splitlines()]
    if len(failed) > SHOWN:
        lines.append(f"… and {len(failed) - SHOWN} more")
    return "\n".join(lines)


def _too_long(td: Treadle, seconds: float) -> str:
    running = [call(job.type, job.payload) for job in every_job(td) if job.status is Status.PROCESSING]
    return f"drain has run for {seconds:g} s; still running: {', '.join(running[:SHOWN]) or 'nothing'}"
