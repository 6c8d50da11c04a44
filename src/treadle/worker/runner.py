"""Runs one attempt and returns how it ended. Never raises, never settles."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import msgspec

from treadle.context import Context, Run, caller, current_run
from treadle.error_text import hint
from treadle.errors import BadOption, BadPayload, LeaseLost
from treadle.limits import OF_TYPE
from treadle.log_records import keep_records
from treadle.outcome import (
    COMPLETED,
    NOT_COMMITTED,
    Fail,
    Outcome,
    RateLimited,
    Retry,
    StopReason,
    TimedOut,
    after_stop,
    decide,
    describe,
)
from treadle.registry import JobType

log = logging.getLogger("treadle")

NOT_AWAITED = "ctx.acomplete() was not awaited, so that nothing has completed the job; write: await ctx.acomplete(…)"


def run_sync(run: Run, job_type: JobType) -> Outcome | None:
    token = current_run.set(run)
    try:
        if job_type.logs is not None:
            keep_records(run, job_type.logs)
        if job_type.around is None:
            result = _call(run, job_type)
        else:
            result = job_type.around.call(_context(run), partial(_call, run, job_type))
        return _returned(run, job_type, result)
    except BaseException as error:
        return _raised(run, job_type, error)
    finally:
        run.ended = True
        current_run.reset(token)


async def run_async(run: Run, job_type: JobType) -> Outcome | None:
    """Await an async handler. If the worker cancels the task, the outcome is that of the stop. Notes if the handler saw
    CancelledError, swallowed or not."""
    token = current_run.set(run)
    try:
        if job_type.logs is not None:
            keep_records(run, job_type.logs)
        try:
            if job_type.timeout is None:
                result = await (_call(run, job_type) if job_type.around is None else _acall(run, job_type, None))
            else:
                result = await _within(job_type.timeout, run, job_type)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                raise  # the handler's own: it is a failure like any other
            run.stop_seen, result = True, None
        if run.stop_reason is not None:  # a stop cancels the task, so that the handler cannot have missed it
            run.stop_seen = True
        return _returned(run, job_type, result)
    except BaseException as error:
        return _raised(run, job_type, error)
    finally:
        run.ended = True
        current_run.reset(token)


async def _within(seconds: float, run: Run, job_type: JobType) -> Any:
    """Like `asyncio.timeout`, but its expiry differs from a TimeoutError of the handler, and cannot be swallowed."""
    limit, result = asyncio.timeout(seconds), None
    try:
        async with limit:
            result = await (_call(run, job_type) if job_type.around is None else _acall(run, job_type, limit))
    except TimeoutError:
        if not limit.expired():
            raise
    if limit.expired() and not run.completes:
        raise TimedOut.after(seconds)
    return result


async def _acall(run: Run, job_type: JobType, limit: asyncio.Timeout | None) -> Any:
    """What an async handler returns, with its middleware around it."""

    async def handler() -> Any:
        try:
            return await _call(run, job_type)
        except asyncio.CancelledError:
            if limit is None or not limit.expired() or run.completes:
                raise
            raise TimedOut.after(job_type.timeout or 0) from None  # what went wrong, for the middleware

    assert job_type.around is not None
    return await job_type.around.acall(_context(run), handler)


def _call(run: Run, job_type: JobType) -> Any:
    arguments = job_type.signature.decode(run.claimed.payload)
    if job_type.signature.takes_context:
        return job_type.handler(_context(run), **arguments)
    return job_type.handler(**arguments)


def _context(run: Run) -> Context:
    run.owner = caller()
    return Context(run)


def _returned(run: Run, job_type: JobType, result: Any) -> Outcome | None:
    """A handler that saw its stop flag and returned has not completed, unless it said so: its result may be partial."""
    if run.joined:
        return _if_committed(run, job_type, Retry(NOT_COMMITTED))
    if run.written or run.suspension:
        return run.written or run.suspension
    if run.unawaited is not None and not run.completes:
        run.unawaited.close()  # or Python warns, too
        raise Fail(NOT_AWAITED)  # as below: a retry would do the work again
    if run.stop_seen and not run.completes:
        # Without a reason of the worker, the event loop itself is being closed.
        reason = run.stop_reason or StopReason.RELEASED
        return after_stop(run.claimed, reason, job_type.timeout, job_type.backoff)
    try:
        return run.completed(run.result if run.completes else result)
    except BadPayload as error:
        # The work is done, and would be done again by every retry: ending here does the least harm.
        raise Fail(f"the handler returned what cannot be stored: {error}") from error


def _if_committed(run: Run, job_type: JobType, error: BaseException) -> Outcome:
    """Completed if the user's transaction was committed. If not, it is a failed attempt."""
    run.error = error
    return msgspec.structs.replace(COMPLETED, otherwise=decide(run.claimed, error, job_type.backoff))


def _raised(run: Run, job_type: JobType, error: BaseException) -> Outcome | None:
    if run.joined:
        return _if_committed(run, job_type, error)
    if run.written:
        warn_of_late_error(run, describe(error)[0])
        return run.written
    if run.suspension is not None:
        return run.suspension
    if isinstance(error, LeaseLost):
        return None
    run.error = error = _checked(job_type, error)
    return decide(run.claimed, error, job_type.backoff)


def _checked(job_type: JobType, error: BaseException) -> BaseException:
    """What was raised. If it is to hold back a limit that the type does not have, it would hold back nothing."""
    names = [f"{OF_TYPE}{job_type.name}", *(limit.name for limit in job_type.limits)]
    if not isinstance(error, RateLimited) or not error.limit or error.limit in names:
        return error
    way_out = hint(error.limit, names, f"type {job_type.name!r} has {', '.join(names[1:]) or 'no limits'}")
    return BadOption("limit", error.limit, way_out).with_traceback(error.__traceback__)


def warn_of_late_error(run: Run, error: str) -> None:
    text = "job %s raised after its transaction had completed it: %s"
    log.warning(text, run.claimed.id, run.redactor.text(error), extra=run.claimed.about)
