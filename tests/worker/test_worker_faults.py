"""A worker works or is gone: lost replies, unreadable errors, a blocked event loop, a store that stays away."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.worker.helpers import Background, ended, is_processing, now, place, working
from treadle import Context, Snooze, Status, Treadle, views
from treadle.context import Run
from treadle.errors import BadOption, StoreUnusable
from treadle.outcome import Outcome
from treadle.reasons import ReasonCode
from treadle.worker import heartbeat, stall
from treadle.worker import worker as worker_module
from treadle.worker.executor import AsyncSlots
from treadle.worker.inflight import Attempts
from treadle.worker.stall import blocking_line


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class SnoozedBadly(Snooze):
    """As by a handler that changes what it raises."""

    def __init__(self) -> None:
        super().__init__(0)
        self.at_most = "3"  # type: ignore[assignment]


@pytest.mark.parametrize("error", [Unprintable, SnoozedBadly])
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_an_error_that_cannot_be_read_is_a_failed_attempt_and_the_slot_is_free_again(
    td: Treadle, error: type[Exception], kind: str
) -> None:
    if kind == "async":

        @td.job(max_attempts=2, backoff=0)
        async def fails() -> None:
            raise error

    else:

        @td.job(max_attempts=2, backoff=0)
        def fails() -> None:
            raise error

    @td.job
    async def works() -> None: ...

    with working(td, concurrency=1):
        first, second = fails.enqueue(), works.enqueue()
        assert ended(td, first).error is not None
        assert error.__name__ in str(now(td, first).error)
        assert ended(td, second).status is Status.COMPLETED
    assert place(td, first) == (Status.FAILED, 2)


class BrokenTracer:
    """It raises when a handler has run."""

    @contextmanager
    def running(self, run: Run) -> Iterator[Callable[[Outcome | None], None]]:
        def ended(outcome: Outcome | None) -> None:
            raise ZeroDivisionError

        yield ended


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_an_attempt_whose_tracer_fails_after_the_handler_is_charged(
    td: Treadle, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A job that is released each time would run for ever."""
    monkeypatch.setattr(worker_module, "PAUSE", 0.05)
    runs: list[int] = []

    async def arun(ctx: Context) -> None:
        runs.append(ctx.attempt)

    def run(ctx: Context) -> None:
        runs.append(ctx.attempt)

    handler = td.job(type="run", max_attempts=2, backoff=0)(arun if kind == "async" else run)
    job = handler.enqueue()
    td.tracing = BrokenTracer()  # type: ignore[assignment]
    with working(td, beat=0.1):
        eventually(lambda: now(td, job).status.is_final or len(runs) > 2)
    td.tracing = None
    assert (place(td, job), now(td, job).error, runs) == ((Status.FAILED, 2), "ZeroDivisionError", [1, 2])


@pytest.mark.parametrize("at_most", ["3", -1, 1.5])
def test_a_snooze_with_a_bad_limit_is_refused_when_it_is_made(at_most: Any) -> None:
    with pytest.raises(BadOption, match="at_most"):
        Snooze(1, at_most=at_most)


def test_leases_of_a_claim_whose_reply_was_lost_are_released_without_charge(
    td: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is committed, but the worker never learns of its jobs. Nothing else would return them."""
    claim, lost = td.store.claim, threading.Event()

    def claim_and_lose(*args: Any) -> Any:
        claimed = claim(*args)
        if claimed and not lost.is_set():
            lost.set()
            raise StoreUnusable(td.store.where, "the connection broke", "wait")
        return claimed

    monkeypatch.setattr(td.store, "claim", claim_and_lose)

    @td.job(max_attempts=1)
    async def works() -> None: ...

    with working(td, beat=0.1):
        job = works.enqueue()
        assert ended(td, job).status is Status.COMPLETED
        assert lost.is_set()
    assert place(td, job) == (Status.COMPLETED, 1)


class Blocking:
    """A handler that blocks its event loop until the test lets it go."""

    def __init__(self, td: Treadle) -> None:
        self.go_on = threading.Event()
        self.runs = 0

        @td.job
        async def blocks() -> None:
            self.runs += 1
            if self.runs == 1:
                self.go_on.wait(60)

        @td.job
        async def works() -> None: ...

        self.blocks, self.works = blocks, works


def test_a_worker_whose_event_loop_is_blocked_is_shown_as_stalled(td: Treadle) -> None:
    blocking = Blocking(td)
    with working(td, beat=0.1, concurrency=2):
        job = blocking.blocks.enqueue()
        eventually(is_processing(td, job))
        later = blocking.works.enqueue()
        eventually(lambda: td.workers()[0].stalled_at is not None)
        shown = views.worker(td.workers()[0], td.store.now())
        assert shown.live
        assert shown.stalled_for is not None
        assert [problem.code for problem in td.problems()] == ["stalled_worker"]
        assert td.why(job.id).reasons[0].code is ReasonCode.WORKER_STALLED
        assert td.why(later.id).reasons[0].code is ReasonCode.WORKER_STALLED
        blocking.go_on.set()
        assert ended(td, job).status is Status.COMPLETED
        assert ended(td, later).status is Status.COMPLETED
        eventually(lambda: td.workers()[0].stalled_at is None)
        assert td.problems() == []
    assert blocking.runs == 1


def test_a_blocked_event_loop_is_logged_once_with_its_line(td: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    blocking = Blocking(td)
    with working(td, beat=0.1, concurrency=2) as background:
        job = blocking.blocks.enqueue()
        eventually(lambda: td.workers()[0].stalled_at is not None)
        before = td.workers()[0].beats
        eventually(lambda: td.workers()[0].beats > before + 2)
        id = background.worker.id
        blocking.go_on.set()
        assert ended(td, job).status is Status.COMPLETED
    [logged] = [record.getMessage() for record in caplog.records if "has been blocked" in record.getMessage()]
    line = rf"{re.escape(__file__)}:\d+, in Blocking\.__init__\.<locals>\.blocks: self\.go_on\.wait\(60\)"
    way_out = "a handler blocks its event loop: make it a plain def, or await what it waits for"
    text = rf"the event loop of worker {id} has been blocked for \S+, at {line}; on it: blocks; {way_out}"
    assert re.match(text, logged), logged


def test_the_line_that_blocks_is_the_handlers_if_the_app_is_an_installed_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocked, go_on, loops = threading.Event(), threading.Event(), list[int]()

    def fetch() -> None:
        blocked.set()
        go_on.wait(60)

    async def handler() -> None:
        loops.append(threading.get_ident())
        fetch()

    thread = threading.Thread(target=lambda: asyncio.run(handler()))
    thread.start()
    assert blocked.wait(60)
    eventually(lambda: blocking_line(loops[0]).endswith("fetch: go_on.wait(60)"))
    monkeypatch.setattr(stall, "_PACKAGES", (str(Path(__file__).parent),))
    assert blocking_line(loops[0]).endswith("handler: fetch()")
    go_on.set()
    thread.join(60)


def test_the_jobs_of_a_worker_that_is_blocked_for_too_long_are_returned_and_it_registers_again(
    td: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is embedded: the process is not its own to end."""
    monkeypatch.setattr(heartbeat, "BLOCKED_SECONDS", 0.5)
    blocking = Blocking(td)
    with working(td, beat=0.1, concurrency=2) as background:
        job, first = blocking.blocks.enqueue(), background.worker.id
        eventually(lambda: td.attempts(job.id))
        assert td.workers() == []
        assert str(td.attempts(job.id)[0].error).startswith("its event loop was blocked for")
        blocking.go_on.set()
        assert ended(td, job).status is Status.COMPLETED
        assert [row.id for row in td.workers()] == [background.worker.id] != [first]
    assert blocking.runs == 2


def test_a_worker_that_cannot_end_its_jobs_in_order_starts_again_all_the_same(
    td: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended one of its parts is still there when it stops."""
    monkeypatch.setattr(worker_module, "PAUSE", 0.05)
    raised = threading.Event()

    def fail(*_: object) -> None:
        raised.set()
        raise RuntimeError("injected")

    @td.job
    async def works() -> None: ...

    with working(td, beat=0.1) as background:
        first = background.worker.id
        with monkeypatch.context() as patch:
            patch.setattr(Attempts, "give_up_all", fail)
            patch.setattr(Attempts, "ended", fail)
            works.enqueue()
            assert raised.wait(60)
            background.worker._parts.fail_from_thread("a part", None)
            eventually(lambda: background.worker.id not in (first, ""))
        job = works.enqueue()
        assert ended(td, job).status is Status.COMPLETED
        eventually(lambda: len(td.workers()) == 1)


def test_a_job_that_no_async_slot_takes_is_released_and_runs_once(td: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "PAUSE", 0.05)
    wake, runs, raised = AsyncSlots._wake, list[str](), list[bool]()

    def fail_twice(slots: AsyncSlots) -> None:
        if len(raised) < 2:
            raised.append(True)
            raise MemoryError
        wake(slots)

    monkeypatch.setattr(AsyncSlots, "_wake", fail_twice)

    @td.job(max_attempts=1)
    async def works(ctx: Context) -> None:
        runs.append(ctx.id)

    with working(td, beat=0.1):
        job = works.enqueue()
        assert ended(td, job).status is Status.COMPLETED
    assert runs == [job.id]
    assert place(td, job) == (Status.COMPLETED, 1)


variable: ContextVar[int] = ContextVar("variable")


def test_a_handler_that_changes_its_context_or_is_cancelled_ends_its_slot_and_not_the_worker(td: Treadle) -> None:
    @td.job
    async def changes_its_context() -> None:
        variable.set(1)

    @td.job(max_attempts=1)
    async def waits() -> None:
        await asyncio.Event().wait()

    with working(td, beat=0.1) as background:
        first = background.worker.id
        assert ended(td, changes_its_context.enqueue()).status is Status.COMPLETED
        cancelled = waits.enqueue()
        eventually(is_processing(td, cancelled))
        td.cancel(cancelled.id)
        assert ended(td, cancelled).status is Status.CANCELLED
        assert ended(td, changes_its_context.enqueue()).status is Status.COMPLETED
        assert not background.worker._parts.failed.done()
        assert background.worker.id == first


def never(*_: object) -> Any:
    raise StoreUnusable("here", "it is gone", "wait")


@pytest.mark.parametrize("verb", ["settle", "claim", "declare_dead"])
def test_a_store_that_stays_away_does_not_keep_a_worker_from_stopping(
    td: Treadle, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(worker_module, "STOP_SECONDS", 0.6)
    let_go = threading.Event()

    @td.job
    async def works(ctx: Context) -> None:
        while not let_go.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    background = Background(td, grace=0.5).start()
    job = works.enqueue()
    eventually(is_processing(td, job))
    with monkeypatch.context() as patch:
        patch.setattr(td.store, verb, never)
        let_go.set()
        background.stop_soon()
        background.join()
    with working(td, beat=0.1):
        assert ended(td, job).status is Status.COMPLETED


@pytest.mark.parametrize("verb", ["settle", "claim", "declare_dead"])
def test_a_store_that_hangs_does_not_keep_a_worker_from_stopping(
    td: Treadle, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Nor does its heartbeat go on, for which nobody would rescue its jobs. When the call returns, its threads end."""
    monkeypatch.setattr(worker_module, "STOP_SECONDS", 0.6)
    before, hangs, let_go = set(threading.enumerate()), threading.Event(), threading.Event()
    call = getattr(td.store, verb)

    def hang(*args: Any, **options: Any) -> Any:
        hangs.set()
        let_go.wait(60)
        return call(*args, **options)

    @td.job
    async def works() -> None: ...

    background = Background(td, grace=0).start()
    with monkeypatch.context() as patch:
        patch.setattr(td.store, verb, hang)
        job = works.enqueue()
        if verb != "declare_dead":  # which is called when it stops
            assert hangs.wait(60)
        background.stop_soon()
        background.join()
        assert hangs.is_set()
        eventually(lambda: not background.worker._heartbeat.is_alive())
        let_go.set()
        eventually(lambda: set(threading.enumerate()) <= before)
    with working(td, beat=0.1):
        assert ended(td, job).status is Status.COMPLETED


def test_a_worker_that_has_started_again_outlives_a_late_end_of_its_parts(
    td: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "STOP_SECONDS", 0.6)
    monkeypatch.setattr(worker_module, "PAUSE", 0.05)
    hangs, let_go, declare_dead = threading.Event(), threading.Event(), td.store.declare_dead

    def hang_once(*args: Any, **options: Any) -> Any:
        if not hangs.is_set():
            hangs.set()
            let_go.wait(60)
        return declare_dead(*args, **options)

    @td.job
    async def works() -> None: ...

    monkeypatch.setattr(td.store, "declare_dead", hang_once)
    with working(td, beat=0.1) as background:
        worker = background.worker
        first, threads = worker.id, worker._settler.thread._threads
        worker._parts.fail_from_thread("a part", None)
        assert hangs.wait(60)
        eventually(lambda: [row.id for row in td.workers()] == [first, worker.id])
        let_go.set()
        eventually(lambda: not any(thread.is_alive() for thread in threads))
        assert ended(td, works.enqueue()).status is Status.COMPLETED
        assert ([row.id for row in td.workers()], worker._heartbeat.is_alive()) == ([worker.id], True)
