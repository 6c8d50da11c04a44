"""A handler that sees its stop flag and returns has not completed, unless it says so with `ctx.complete`."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from tests.eventually import eventually
from tests.worker import process_jobs
from tests.worker.helpers import ended, now, place, working
from treadle import Context, Job, Status, Treadle
from treadle.errors import TransactionOver
from treadle.testing import drain


@pytest.fixture
def started() -> threading.Event:
    """Set by a handler when it starts."""
    return threading.Event()


@pytest.fixture
def looping(td: Treadle, started: threading.Event) -> Job:
    """A job whose handler is the loop that the guide recommends. It returns a partial result."""

    @td.job
    def crunch(ctx: Context, rows: int) -> int:
        started.set()
        done = 0
        while done < rows and not ctx.cancelled:
            time.sleep(0.001)
            done += 1
        return done

    return crunch.enqueue(rows=1_000_000)


def swallowing(td: Treadle, started: threading.Event, completes: bool, **options: Any) -> Job:
    """A job whose async handler catches its cancellation, and may complete then."""

    @td.job(**options)
    async def wait(ctx: Context) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if completes:
                ctx.complete("finished anyway")
        return "partial"

    return wait.enqueue()


def cancel_while_running(td: Treadle, job: Job, started: threading.Event) -> Job:
    """Cancel the job when its handler has started. Return it once it has ended."""
    with working(td):
        assert started.wait(15)
        td.cancel(job.id)
        return ended(td, job)


def stop_while_running(td: Treadle, started: threading.Event) -> None:
    """Stop the worker when the handler has started, as SIGTERM does when the grace period is over."""
    with working(td, grace=0):
        assert started.wait(15)


def test_the_loop_of_the_guide_is_released_when_the_worker_stops(
    td: Treadle, looping: Job, started: threading.Event
) -> None:
    """The next worker must run the whole job."""
    stop_while_running(td, started)
    assert place(td, looping) == (Status.PENDING, 0)
    assert td.attempts(looping.id) == []


def test_the_loop_of_the_guide_is_cancelled_by_a_cancel(td: Treadle, looping: Job, started: threading.Event) -> None:
    found = cancel_while_running(td, looping, started)
    assert (found.status, found.result, found.attempts) == (Status.CANCELLED, None, 0)


@pytest.mark.parametrize("completes", [False, True])
def test_an_async_handler_that_swallows_its_cancellation_has_not_completed(
    td: Treadle, started: threading.Event, completes: bool
) -> None:
    @td.job
    async def quick() -> str:
        await asyncio.sleep(0.001)
        return "still here"

    job = swallowing(td, started, completes)
    with working(td, concurrency=1):
        assert started.wait(15)
        td.cancel(job.id)
        end = ended(td, job)
        assert td.result(quick.enqueue().id) == "still here"
    wanted = (Status.COMPLETED, "finished anyway") if completes else (Status.CANCELLED, None)
    assert (end.status, end.result) == wanted


def test_an_async_handler_that_swallows_its_cancellation_is_released_when_the_worker_stops(
    td: Treadle, started: threading.Event
) -> None:
    job = swallowing(td, started, completes=False)
    stop_while_running(td, started)
    assert place(td, job) == (Status.PENDING, 0)


@pytest.mark.parametrize("completes", [False, True])
def test_an_async_handler_that_swallows_its_timeout_has_timed_out(
    td: Treadle, started: threading.Event, completes: bool
) -> None:
    job = swallowing(td, started, completes, timeout=0.05, max_attempts=1)
    drain(td, raising=False)
    found = now(td, job)
    if completes:
        assert (found.status, found.result) == (Status.COMPLETED, "finished anyway")
    else:
        assert (found.status, found.error) == (Status.FAILED, "timed out after 0.05 s")


def test_an_async_handler_that_completes_and_raises_its_cancellation_again_has_completed(
    td: Treadle, started: threading.Event
) -> None:
    @td.job
    async def wait(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ctx.complete({"rows": 7})
            raise

    found = cancel_while_running(td, wait.enqueue(), started)
    assert (found.status, found.result) == (Status.COMPLETED, {"rows": 7})


def test_a_thread_that_completes_after_the_flag_has_completed(td: Treadle, started: threading.Event) -> None:
    @td.job
    def crunch(ctx: Context) -> str:
        started.set()
        eventually(lambda: ctx.cancelled)
        ctx.complete("what there is")
        return "partial"

    found = cancel_while_running(td, crunch.enqueue(), started)
    assert (found.status, found.result) == (Status.COMPLETED, "what there is")


def test_a_thread_that_never_looked_at_the_flag_has_completed(td: Treadle, started: threading.Event) -> None:
    go = threading.Event()

    @td.job
    def crunch(ctx: Context) -> str:
        started.set()
        assert go.wait(15)
        return "all of it"

    with working(td) as background:
        job = crunch.enqueue()
        assert started.wait(15)
        td.cancel(job.id)
        [attempt] = background.worker._attempts.running.values()
        eventually(lambda: attempt.run.stop_reason is not None)
        go.set()
        assert td.result(job.id) == "all of it"


def test_reading_the_flag_while_it_is_false_changes_nothing(td: Treadle) -> None:
    @td.job
    def crunch(ctx: Context) -> bool:
        return ctx.cancelled

    job = crunch.enqueue()
    assert drain(td).completed == 1
    assert td.result(job.id) is False


def test_complete_stores_its_result_and_the_follow_ups_that_come_later(td: Treadle) -> None:
    @td.job
    def after() -> None: ...

    @td.job
    async def first(ctx: Context) -> str:
        ctx.complete("mine")
        after.enqueue()
        return "not this"

    job = first.enqueue()
    assert drain(td).completed == 2
    assert td.result(job.id) == "mine"


def test_a_handler_that_raises_after_it_completed_has_failed(td: Treadle) -> None:
    @td.job(max_attempts=1)
    def first(ctx: Context) -> None:
        ctx.complete("mine")
        raise ValueError("not quite")

    job = first.enqueue()
    drain(td, raising=False)
    assert (now(td, job).status, now(td, job).error) == (Status.FAILED, "ValueError: not quite")


def test_completing_twice_is_an_error(td: Treadle) -> None:
    @td.job
    def first(ctx: Context) -> None:
        ctx.complete(1)
        with pytest.raises(TransactionOver, match="completed already"):
            ctx.complete(2)

    @td.job
    def second(ctx: Context) -> None:
        with ctx.transaction():
            pass
        with pytest.raises(TransactionOver, match="completed already"):
            ctx.complete(2)

    job = first.enqueue()
    second.enqueue()
    assert drain(td).completed == 2
    assert td.result(job.id) == 1


def test_a_child_completes_with_the_result_that_it_passes(in_children: Treadle) -> None:
    job = process_jobs.completes.enqueue(result="mine")
    assert in_children.tick().completed == 1
    assert in_children.result(job.id) == "mine"
