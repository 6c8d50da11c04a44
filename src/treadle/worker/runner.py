"""Run one attempt and say how it ended. Never raises, never settles."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from treadle.context import Context, Run, current_run
from treadle.errors import BadPayload, LeaseLost
from treadle.outcome import Fail, Outcome, TimedOut, decide

if TYPE_CHECKING:
    from treadle.registry import JobType

log = logging.getLogger("treadle")


def run_sync(run: Run, job_type: JobType) -> Outcome | None:
    """Call a plain handler, here and now."""
    token = current_run.set(run)
    try:
        args, kwargs = _arguments(run, job_type)
        return _returned(run, job_type.handler(*args, **kwargs))
    except BaseException as error:
        return _raised(run, job_type, error)
    finally:
        run.ended = True
        current_run.reset(token)


async def run_async(run: Run, job_type: JobType) -> Outcome | None:
    """Await an async handler. A cancellation of the Task that awaits this is raised again, for that to explain."""
    token = current_run.set(run)
    try:
        args, kwargs = _arguments(run, job_type)
        if job_type.timeout is None:
            return _returned(run, await job_type.handler(*args, **kwargs))
        return _returned(run, await _within(job_type.timeout, job_type.handler(*args, **kwargs)))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            if run.written:
                return run.written
            raise
        return _raised(run, job_type, error)  # the handler's own: it is a failure like any other
    except BaseException as error:
        return _raised(run, job_type, error)
    finally:
        run.ended = True
        current_run.reset(token)


async def _within(seconds: float, awaitable: Any) -> Any:
    """Like `asyncio.timeout`, but its own expiry can be told from a TimeoutError of the handler."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await awaitable
    except TimeoutError:
        if limit.expired():
            raise TimedOut.after(seconds) from None
        raise


def _arguments(run: Run, job_type: JobType) -> tuple[tuple[Any, ...], dict[str, Any]]:
    arguments = job_type.signature.decode(run.claimed.payload)
    return ((Context(run),) if job_type.signature.takes_context else ()), arguments


def _returned(run: Run, result: Any) -> Outcome:
    if run.written:
        return run.written
    try:
        return run.completed(result)
    except BadPayload as error:
        # The work is done, and would be done again by every retry: ending here does the least harm.
        raise Fail(f"the handler returned what cannot be stored: {error}") from error


def _raised(run: Run, job_type: JobType, error: BaseException) -> Outcome | None:
    if run.written:
        log.warning("job %s raised after its transaction had completed it: %r", run.claimed.id, error)
        return run.written
    if isinstance(error, LeaseLost):
        return None
    return decide(run.claimed, error, job_type.backoff)
