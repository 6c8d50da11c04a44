"""Attempts that end before their handler does: timeouts, cancels, and a worker that stops."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.worker import process_jobs
from tests.worker.helpers import ended, is_alive, is_processing, now, place, working
from treadle import Context, Job, Status, Treadle, WrongStatus
from treadle.context import Run
from treadle.outcome import OutcomeKind, StopReason
from treadle.stores.base import ClaimRequest
from treadle.testing import drain
from treadle.worker import child
from treadle.worker.inflight import Inflight, RunningAttempt

# Timeouts


def test_an_async_handler_is_cancelled_at_its_timeout(td: Treadle) -> None:
    seen: list[str] = []

    @td.job(timeout=0.05, max_attempts=1)
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    job = slow.enqueue()
    with working(td):
        assert ended(td, job).error == "timed out after 0.05 s"
    assert seen == ["cancelled"]
    assert now(td, job).status is Status.FAILED


def test_a_timeout_is_a_failure_that_is_retried(td: Treadle) -> None:
    @td.job(timeout=0.05, max_attempts=2, backoff=0)
    async def slow_at_first(ctx: Context) -> str:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "quick"

    job = slow_at_first.enqueue()
    with working(td):
        assert td.result(job.id) == "quick"
    assert [attempt.error for attempt in td.attempts(job.id)] == ["timed out after 0.05 s"]


def test_a_handlers_own_timeout_error_is_not_taken_for_the_jobs(td: Treadle) -> None:
    @td.job(timeout=30, max_attempts=1)
    async def asks() -> None:
        raise TimeoutError("the server does not answer")

    job = asks.enqueue()
    with working(td):
        assert ended(td, job).error == "TimeoutError: the server does not answer"


def test_an_async_handler_may_clean_up_at_its_timeout(td: Treadle) -> None:
    cleaned = threading.Event()

    @td.job(timeout=0.05, max_attempts=1)
    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.set()

    job = tidy.enqueue()
    with working(td):
        assert ended(td, job).status is Status.FAILED
    assert cleaned.is_set()


def test_a_thread_is_abandoned_at_its_timeout_and_keeps_its_slot_until_it_ends(td: Treadle) -> None:
    let_go, cancelled = threading.Event(), threading.Event()

    @td.job(timeout=0.05, max_attempts=1)
    def stubborn(ctx: Context) -> str:
        eventually(lambda: ctx.cancelled)
        cancelled.set()
        let_go.wait(15)
        return "too late"

    @td.job
    def quick() -> None: ...

    with working(td, concurrency=1):
        job = stubborn.enqueue()
        assert ended(td, job).error == "timed out after 0.05 s"
        assert cancelled.wait(15)
        waiting = quick.enqueue()
        with pytest.raises(TimeoutError):
            td.result(waiting.id, timeout=0.2)
        assert place(td, waiting) == (Status.PENDING, 0)
        let_go.set()
        assert ended(td, waiting).status is Status.COMPLETED
    assert now(td, job).result is None  # its late result is ignored


def test_an_abandoned_thread_does_not_keep_the_next_job_from_a_free_slot(td: Treadle) -> None:
    let_go = threading.Event()

    @td.job(timeout=0.05, max_attempts=1)
    def stubborn() -> None:
        let_go.wait(60)

    @td.job
    def quick() -> str:
        return "done"

    with working(td, concurrency=2):
        assert ended(td, stubborn.enqueue()).error == "timed out after 0.05 s"
        assert td.result(quick.enqueue().id) == "done"
        let_go.set()


def test_a_child_is_killed_at_its_timeout_and_the_next_job_has_a_new_one(in_children: Treadle, tmp_path: Path) -> None:
    with working(in_children, concurrency=1):
        first = in_children.result(process_jobs.own_pid.enqueue().id)  # the child runs now, and has imported everything
        job = process_jobs.hang_with_timeout.enqueue(path=str(tmp_path / "pid"))
        assert ended(in_children, job).error == "timed out after 3 s"
        assert int((tmp_path / "pid").read_text()) == first
        assert not is_alive(first)
        assert in_children.result(process_jobs.own_pid.enqueue().id) != first


def deadline_of(td: Treadle, job: Job) -> int | None:
    situation = td.store.job_facts(job.id)
    return situation.deadline if situation else None


def test_the_deadline_of_a_job_in_a_child_counts_from_its_start(
    in_children: Treadle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child may import for longer than the timeout: it is not stuck, and no other worker may get the job."""
    monkeypatch.setenv(process_jobs.SLOW, str(tmp_path / "imported"))
    with working(in_children):
        job = process_jobs.in_time.enqueue(path=str(tmp_path / "end"))
        eventually(is_processing(in_children, job))
        assert deadline_of(in_children, job) is None
        (tmp_path / "imported").touch()
        eventually(lambda: deadline_of(in_children, job))
        (tmp_path / "end").touch()
        assert ended(in_children, job).status is Status.COMPLETED


def test_a_child_that_never_starts_is_an_error_that_says_so(
    in_children: Treadle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(process_jobs.SLOW, str(tmp_path / "never"))
    monkeypatch.setattr(child, "START_SECONDS", 0.5)
    job = process_jobs.in_time.using(max_attempts=1).enqueue(path=str(tmp_path / "end"))
    with working(in_children):
        failed = ended(in_children, job)
    assert failed.status is Status.FAILED
    assert "did not start within 0.5 s: does a module of the app wait" in str(failed.error)


def test_killing_a_child_after_its_outcome_arrived_does_not_affect_the_next_attempt(
    in_children: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout or a cancel may come while the outcome is being sent."""
    slot, job_type = child.Child(in_children, Inflight.create(10)), process_jobs.own_pid.job_type
    for _ in range(5):
        process_jobs.own_pid.enqueue(), process_jobs.own_pid.enqueue()
        first, second = (
            RunningAttempt(Run(claimed, in_children.store), job_type)
            for claimed in in_children.store.claim("", ClaimRequest(limit=2))
        )

        def kill_it_late(attempt: RunningAttempt, first: RunningAttempt = first) -> None:
            if attempt is first:
                assert slot._pipe is not None
                assert slot._pipe.poll(60)
                first.stop(StopReason.CANCELLED)

        monkeypatch.setattr(child, "_handler_started", kill_it_late)
        outcomes = [slot.run(first), slot.run(second)]
        assert [outcome and outcome.kind for outcome in outcomes] == [OutcomeKind.COMPLETED] * 2
    slot.close()


# Cancels


def test_an_async_handler_that_is_cancelled_gets_cancelled_error(td: Treadle) -> None:
    seen: list[str] = []

    @td.job
    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @td.job
    async def quick() -> str:
        return "still here"

    with working(td, concurrency=1):
        job = wait.enqueue()
        eventually(is_processing(td, job))
        assert td.cancel(job.id).status is Status.PROCESSING
        cancelled = ended(td, job)
        assert td.result(quick.enqueue().id) == "still here"
    assert (cancelled.status, cancelled.attempts, cancelled.error) == (Status.CANCELLED, 0, "cancelled")
    assert seen == ["cancelled"]


def test_a_thread_sees_that_it_was_cancelled(td: Treadle) -> None:
    began = threading.Event()

    @td.job
    def wait(ctx: Context) -> None:
        began.set()
        eventually(lambda: ctx.cancelled)
        raise InterruptedError

    with working(td):
        job = wait.enqueue()
        assert began.wait(60)
        td.cancel(job.id)
        cancelled = ended(td, job)
    assert (cancelled.status, cancelled.error) == (Status.CANCELLED, "InterruptedError")


def test_a_cancelled_child_is_killed(in_children: Treadle, tmp_path: Path) -> None:
    with working(in_children):
        job = process_jobs.hang.enqueue(path=str(tmp_path / "pid"))
        eventually((tmp_path / "pid").exists)
        in_children.cancel(job.id)
        cancelled = ended(in_children, job)
    assert (cancelled.status, cancelled.attempts) == (Status.CANCELLED, 0)
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_each_job_ends_once_if_a_cancel_races_the_end_of_its_handler(td: Treadle) -> None:
    ran: list[int] = []

    @td.job
    async def short(n: int) -> None:
        await asyncio.sleep(random.uniform(0, 0.03))
        ran.append(n)

    with working(td, concurrency=20):
        jobs = [short.enqueue(n=n) for n in range(60)]
        for job in random.sample(jobs, len(jobs)):
            with contextlib.suppress(WrongStatus):  # it has completed
                td.cancel(job.id)
        ends = [ended(td, job) for job in jobs]
    assert {job.status for job in ends} <= {Status.COMPLETED, Status.CANCELLED}
    completed = {job.payload["n"] for job in ends if job.status is Status.COMPLETED}
    assert completed <= set(ran)
    assert len(ran) == len(set(ran))


def test_a_waiting_job_that_is_cancelled_never_runs(td: Treadle) -> None:
    ran: list[int] = []

    @td.job
    def note() -> None:
        ran.append(1)

    job = note.enqueue()
    assert td.cancel(job.id).status is Status.CANCELLED
    drain(td)
    assert ran == []
