"""Hooks get the events that are committed, run separately from the jobs, and cannot harm them."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from tests.eventually import eventually
from tests.stores import rows
from tests.worker import process_jobs
from tests.worker.helpers import ended, now, working
from treadle import Context, Event, Fail, Job, LeaseLost, Snooze, Status, Treadle
from treadle.clock import SECOND
from treadle.errors import BadOption, UnknownEvent
from treadle.hooks import NAMES, Hooks
from treadle.testing import ManualClock, drain


def record_events(td: Treadle) -> list[Event]:
    """A list that gets every event from now on."""
    events: list[Event] = []
    for name in NAMES:
        td.on(name, events.append)
    return events


def names(events: list[Event]) -> list[tuple[str, str]]:
    return sorted((event.type, event.name) for event in events)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short timeout for hooks."""
    monkeypatch.setattr("treadle.hooks.CLOSE_SECONDS", 0.05)
    monkeypatch.setattr("treadle.hooks.BACKLOG", 3)


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """A hook may wait for this. It happens when the test is over."""
    over = threading.Event()
    yield over
    over.set()


def test_every_outcome_has_an_event_after_that_of_its_start(td: Treadle) -> None:
    @td.job
    def completes() -> None: ...

    @td.job(backoff=60)
    async def retries() -> None:
        raise ValueError("not today")

    @td.job
    def snoozes() -> None:
        raise Snooze(60)

    @td.job
    def suspends(ctx: Context) -> None:
        ctx.sleep("nap", 60)

    @td.job
    async def fails() -> None:
        raise Fail("no such thing")

    events = record_events(td)
    for job in (completes, retries, snoozes, suspends, fails):
        job.enqueue()
    drain(td, raising=False)

    kinds = {"completes": "job_completed", "retries": "job_retried", "snoozes": "job_snoozed", "fails": "job_failed"}
    kinds |= {"suspends": "job_suspended"}
    assert names(events) == sorted((type, name) for type, end in kinds.items() for name in ("job_started", end))
    for type in kinds:
        assert next(e.name for e in events if e.type == type) == "job_started"
    errors = {e.type: e.error for e in events if e.error}
    assert errors == {"retries": "ValueError: not today", "fails": "no such thing"}


def test_an_event_has_the_tenant_of_its_job_and_how_long_it_took(timed: Treadle, treadle_clock: ManualClock) -> None:
    @timed.job(max_attempts=7)
    def slow(ctx: Context) -> None:
        treadle_clock.advance(3)

    events = record_events(timed)
    job = slow.using(tenant="acme", subject="call-7", queue="default").enqueue()
    treadle_clock.advance(2)
    drain(timed)

    start, end = events
    assert (start.name, start.waiting, start.busy, start.ended_at) == ("job_started", 2.0, 0.0, None)
    assert (end.id, end.type, end.queue, end.tenant, end.subject) == (job.id, "slow", "default", "acme", "call-7")
    assert (end.attempt, end.max_attempts, end.busy, end.waiting, end.error) == (1, 7, 3.0, 2.0, None)
    found = now(timed, job)
    assert (end.started_at, end.ended_at) == (found.started_at, found.completed_at)
    assert start.lease == end.lease > 0
    assert start.worker_id == end.worker_id != ""


def test_the_events_add_up_to_the_usage(timed: Treadle, treadle_url: str, treadle_clock: ManualClock) -> None:
    @timed.job(max_attempts=2, backoff=0)
    def work(n: int) -> None:
        treadle_clock.advance(0.25)
        if n % 3 == 0:
            raise ValueError(n)

    events = record_events(timed)
    timed.enqueue_many([work.request(n=n) for n in range(10)])
    drain(timed, raising=False)

    ends = [event for event in events if event.ended_at]
    busy, waiting = (round(sum(getattr(e, word) for e in ends) * SECOND) for word in ("busy", "waiting"))
    failures = sum(e.name in ("job_retried", "job_failed") for e in ends)
    sums = ", ".join(f"CAST(sum({name}) AS bigint)" for name in ("runs", "failures", "busy", "waiting"))
    assert rows(treadle_url, f"SELECT {sums} FROM treadle_usage") == [(len(ends), failures, busy, waiting)]
    assert (len(ends), failures) == (14, 8)


def test_a_hook_sees_what_was_committed(td: Treadle) -> None:
    seen: list[Status] = []

    @td.job
    async def quick() -> None: ...

    @td.on("job_completed")
    def look(event: Event) -> None:
        found = td.get(event.id)
        assert found is not None
        seen.append(found.status)

    td.enqueue_many([quick.request() for _ in range(5)])
    assert td.tick().completed == 5
    assert seen == [Status.COMPLETED] * 5


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_job_that_ends_in_its_transaction_has_one_event(
    timed: Treadle, treadle_clock: ManualClock, kind: str
) -> None:
    @timed.job(type="plain")
    def plain(ctx: Context) -> None:
        treadle_clock.advance(3)
        with ctx.transaction():
            pass

    @timed.job(type="async")
    async def asynchronous(ctx: Context) -> None:
        treadle_clock.advance(3)
        async with ctx.atransaction():
            pass

    events = record_events(timed)
    timed.enqueue(kind)
    drain(timed)
    assert [(event.name, event.busy) for event in events] == [("job_started", 0.0), ("job_completed", 3.0)]


def test_the_event_of_a_job_cancelled_meanwhile_is_the_outcome_that_was_written(td: Treadle) -> None:
    @td.job
    def complains(ctx: Context) -> None:
        td.cancel(ctx.id)
        raise ValueError("retry me")

    events = record_events(td)
    job = complains.enqueue()
    drain(td, raising=False)
    assert now(td, job).status is Status.CANCELLED
    assert [event.name for event in events] == ["job_started", "job_cancelled"]


def test_the_outcome_of_a_lost_lease_has_no_event(td: Treadle) -> None:
    @td.job(max_attempts=3)
    def loses(ctx: Context) -> int:
        if ctx.attempt == 1:
            (worker,) = td.workers()
            td.store.declare_dead(worker.id, "a test says so")
        return ctx.attempt

    events = record_events(td)
    with working(td):
        assert ended(td, loses.enqueue()).result == 2
    assert [(e.name, e.attempt) for e in events if e.ended_at] == [("job_completed", 2)]


def test_a_job_that_a_stopping_worker_releases_has_an_event(td: Treadle) -> None:
    started = threading.Event()

    @td.job
    async def waits() -> None:
        started.set()
        await asyncio.sleep(60)

    events = record_events(td)
    waits.enqueue()
    with working(td, grace=0):
        assert started.wait(15)
    assert [event.name for event in events] == ["job_started", "job_released"]


@pytest.mark.sqlite_only
def test_plain_hooks_run_in_a_thread_and_async_hooks_on_the_workers_loop(td: Treadle) -> None:
    where: dict[str, object] = {}

    @td.job
    async def quick() -> None:
        where["handler"] = asyncio.get_running_loop()

    @td.on("job_completed")
    def plain(event: Event) -> None:
        where["plain"] = threading.current_thread().name

    @td.on("job_completed")
    async def asynchronous(event: Event) -> None:
        await asyncio.sleep(0)
        where["async"] = asyncio.get_running_loop()

    class Called:
        async def __call__(self, event: Event) -> None:
            where["object"] = asyncio.get_running_loop()

    td.on("job_completed", Called())
    quick.enqueue()
    drain(td)
    assert where["plain"] == "treadle-hooks"
    assert where["async"] is where["object"] is where["handler"]
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "treadle-hooks"])


@pytest.mark.sqlite_only
def test_a_hook_that_raises_is_logged_and_affects_no_job(td: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    @td.job
    def quick() -> None: ...

    @td.on("job_completed")
    def exits(event: Event) -> None:
        raise SystemExit(3)

    @td.on("job_completed")
    async def breaks(event: Event) -> None:
        raise ValueError("no meter")

    @td.on("job_completed")
    async def cancels(event: Event) -> None:
        raise asyncio.CancelledError

    events = record_events(td)
    first, second = quick.enqueue(), quick.enqueue()
    drain(td)
    assert Counter(event.name for event in events) == {"job_started": 2, "job_completed": 2}
    assert now(td, first).status is now(td, second).status is Status.COMPLETED
    for hook in ("exits", "breaks", "cancels"):
        lines = [r for r in caplog.records if f"{hook} raised on job_completed of job" in r.getMessage()]
        assert len(lines) == 2
        assert all(line.exc_info for line in lines)


@pytest.mark.sqlite_only
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_hook_that_hangs_does_not_stop_jobs_or_the_worker(
    td: Treadle, short: None, hang: threading.Event, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    @td.job
    async def quick() -> None: ...

    async def hangs(event: Event) -> None:
        await asyncio.Event().wait()

    td.on("job_completed", hangs if kind == "async" else lambda event: hang.wait(60))
    with working(td, concurrency=2):
        for _ in range(3):
            jobs = td.enqueue_many([quick.request() for _ in range(10)])
            assert {ended(td, job).status for job in jobs} == {Status.COMPLETED}
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    slow, stops = said
    assert slow == "hooks are too slow: 3 events wait for them, and more are dropped"
    assert re.fullmatch(r"hooks are too slow: the worker stops, and some of [456] events were not delivered", stops)


@pytest.mark.sqlite_only
def test_hooks_that_fell_behind_skip_to_newer_events(
    td: Treadle, monkeypatch: pytest.MonkeyPatch, hang: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("treadle.hooks.BACKLOG", 3)
    received: list[Event] = []

    @td.job
    async def quick() -> None: ...

    @td.on("job_completed")
    def slow(event: Event) -> None:
        hang.wait(60)
        received.append(event)

    with working(td, concurrency=1):
        for job in td.enqueue_many([quick.request() for _ in range(10)]):
            ended(td, job)
        eventually(lambda: "more are dropped" in caplog.text)
        hang.set()
        eventually(lambda: "events were dropped" in caplog.text)
        last = quick.enqueue()
        eventually(lambda: received[-1].id == last.id)
    assert 4 < len(received) + 1 < 11


@pytest.mark.sqlite_only
def test_without_a_hook_no_events_are_created(td: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    @td.job
    def quick() -> None: ...

    def never(*_: Any) -> None:
        raise AssertionError("there is no hook for this event")

    monkeypatch.setattr("treadle.hooks._event", never)
    monkeypatch.setattr("treadle.hooks.HookDispatcher._serve", never)
    quick.enqueue()
    assert drain(td).completed == 1
    td.on("job_failed", never)
    quick.enqueue()
    assert drain(td).completed == 1


def test_events_of_jobs_in_child_processes_come_from_their_worker(
    in_children: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks, events = Hooks(), []
    monkeypatch.setattr(in_children, "hooks", hooks)
    for name in NAMES:
        hooks.on(name, events.append)
    process_jobs.own_pid.enqueue()
    process_jobs.complain.enqueue(about="the weather")
    process_jobs.die.using(max_attempts=1).enqueue(code=3)
    in_children.tick(max_seconds=60)
    assert {e.type: (e.name, e.error) for e in events if e.ended_at} == {
        "own_pid": ("job_completed", None),
        "complain": ("job_failed", "ValueError: the weather"),
        "die": ("job_failed", "its process exited with 3"),
    }


def test_events_of_jobs_settled_by_hand_come_in_the_thread_that_settles(td: Treadle) -> None:
    events, async_too = record_events(td), []

    @td.on("job_completed")
    async def asynchronous(event: Event) -> None:
        async_too.append(event)

    td.enqueue_many([td.request("a"), td.request("b", max_attempts=1), td.request("c"), td.request("d")])
    a, b, c, d = sorted(td.claim(4), key=lambda lease: lease.job.type)
    a.complete()
    b.fail("no")
    c.snooze(60)
    d.release()
    ends = ["job_completed", "job_failed", "job_snoozed", "job_released"]
    assert [event.name for event in events] == ["job_started"] * 4 + ends
    assert {event.worker_id for event in events} == {""}
    assert async_too == [event for event in events if event.name == "job_completed"]
    with pytest.raises(LeaseLost):
        b.complete()
    assert len(events) == 8


@pytest.mark.sqlite_only
def test_what_goes_around_hooks_and_already_done_does_so_in_treadles_own_threads_alone(td: Treadle) -> None:
    """In the caller's thread it would close what the caller is using."""
    is_inside, seen = ContextVar("is_inside", default=False), set[tuple[str, bool]]()

    @contextmanager
    def around() -> Iterator[None]:
        token = is_inside.set(True)
        yield
        is_inside.reset(token)

    @td.job
    def quick() -> None: ...

    @quick.already_done
    def already_done(jobs: Sequence[Job]) -> list[Job]:
        seen.add(("already_done", is_inside.get()))
        return []

    @td.on("job_started")
    @td.on("job_completed")
    def plain(event: Event) -> None:
        seen.add((event.name, is_inside.get()))

    @td.on("job_completed")
    async def asynchronous(event: Event) -> None:
        seen.add(("async", is_inside.get()))

    td.hooks.around = around
    names = ("job_started", "job_completed", "async", "already_done")
    quick.enqueue()
    [lease] = td.claim()
    lease.complete()
    quick.using(delay=3600).enqueue()  # for `already_done`
    td.reconcile()
    assert seen == {(name, False) for name in names}

    seen.clear()
    quick.enqueue()
    with working(td):
        eventually(lambda: len(seen) >= len(names))
    assert seen == {(name, True) for name in names}


@pytest.mark.sqlite_only
def test_an_unknown_event_name_is_refused(td: Treadle) -> None:
    with pytest.raises(UnknownEvent, match="unknown event 'job_complete'; did you mean 'job_completed'"):
        td.on("job_complete", print)  # type: ignore[call-overload]
    with pytest.raises(UnknownEvent, match="known events: job_started, job_completed"):
        td.on(7)  # type: ignore[call-overload]
    with pytest.raises(BadOption, match="a function of one event"):
        td.on("job_failed", "alert")  # type: ignore[call-overload]
    assert not td.hooks.any


@pytest.mark.sqlite_only
def test_a_hook_stays_an_ordinary_function_and_can_get_several_events(td: Treadle) -> None:
    events: list[Event] = []

    @td.on("job_started")
    @td.on("job_completed")
    def count(event: Event) -> None:
        events.append(event)

    assert td.on("job_failed", count) is count
    td.enqueue("by_hand")
    (lease,) = td.claim()
    lease.complete()
    assert [event.name for event in events] == ["job_started", "job_completed"]
