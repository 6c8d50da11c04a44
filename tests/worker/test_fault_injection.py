"""Each part of a worker is made to raise once, to raise for a while, and to hang. Afterwards the worker works.

The worker is embedded: it must never end its host. `script/torture` has the long faults.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.eventually import eventually
from tests.worker import process_jobs
from tests.worker.helpers import working
from treadle import Context, Job, Retry, Status, Treadle
from treadle.stores.postgres.store import PostgresStore
from treadle.stores.shared.store import SQLStore

BEAT = 0.15
TORTURE = "TREADLE_TEST_TORTURE" in os.environ
RAISES, HANGS = (10.0, 60.0) if TORTURE else (0.5, 0.5)
"""Seconds."""

STORE = "treadle.stores.shared.store.SQLStore."
WORKER = "treadle.worker."


@pytest.fixture(autouse=True)
def _pauses_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("settler.PAUSE", "worker.PAUSE", "child.FIRST_PAUSE"):
        monkeypatch.setattr(WORKER + place, 0.05)


class Point(NamedTuple):
    """A function of a part, in which the fault happens before or after it has done its work."""

    path: str
    after: bool = False

    def __str__(self) -> str:
        return f"{self.path.removeprefix('treadle.')}{' (after)' * self.after}"


STORE_CALLS = [
    *(Point(STORE + name) for name in ("claim", "settle", "beat", "cancelled", "save_progress", "rescue")),
    Point(WORKER + "chores._prune"),
    *(Point(STORE + name, after=True) for name in ("claim", "settle", "beat")),
]
PARTS = [
    Point(WORKER + "watch.Wakeup.wait"),
    Point(WORKER + "watch.Wakeup._hear"),
    Point(WORKER + "worker.Worker._room"),
    Point(WORKER + "worker.Worker._claim"),
    Point(WORKER + "worker.Worker._until"),
    Point(WORKER + "executor.Executor.start"),
    Point(WORKER + "executor.Executor.prepare"),
    Point(WORKER + "executor.Executor._check_timeout"),
    Point(WORKER + "executor.AsyncSlots.put"),
    Point(WORKER + "executor.AsyncSlots._wake"),
    Point(WORKER + "executor.AsyncSlots._serve"),
    Point(WORKER + "executor.AsyncSlots._execute"),
    Point(WORKER + "executor.ThreadSlots.put"),
    Point(WORKER + "executor.ThreadSlots._serve"),
    Point(WORKER + "executor.ThreadSlots._execute"),
    Point(WORKER + "executor.ThreadSlots._run_in_thread"),
    Point(WORKER + "inflight.Attempts.end"),
    Point(WORKER + "inflight.Attempts.end", after=True),
    Point(WORKER + "inflight.Attempts.ended"),
    Point(WORKER + "inflight.Attempts.settled"),
    Point(WORKER + "inflight.Attempts.new_progress"),
    Point(WORKER + "inflight.Inflight.start"),
    Point(WORKER + "inflight.Inflight.end"),
    Point(WORKER + "inflight.log_outcome"),
    Point(WORKER + "settler.Settler._settle"),
    Point(WORKER + "heartbeat.Heartbeat._beat"),
    Point(WORKER + "heartbeat.Heartbeat._report"),
    Point(WORKER + "heartbeat.Heartbeat._stood_still"),
    Point(WORKER + "heartbeat.Heartbeat._stalled_for"),
    Point(WORKER + "heartbeat.LeaseCheck._look_at_flags"),
    Point(WORKER + "heartbeat.LeaseCheck.compare"),
    Point("treadle.hooks.HookDispatcher._dispatch"),
    Point("treadle.hooks.HookDispatcher._serve"),
    Point("treadle.hooks.HookDispatcher.started"),
    Point("treadle.hooks.HookDispatcher.ended"),
    Point("threading.Thread.start"),
]
CHILDREN = [
    Point(WORKER + "child._start_process"),
    Point(WORKER + "child._start_process", after=True),
    Point(WORKER + "child.Child.run"),
    Point(WORKER + "child.Child._outcome"),
    Point(WORKER + "child._handler_started"),
]
POINTS = [*STORE_CALLS, *PARTS]
KINDS = ("claim", "settle", "beat", "Worker._until", "AsyncSlots._execute", "ThreadSlots._execute")
KINDS += ("Attempts.end", "_look_at_flags", "HookDispatcher._serve", "Thread.start")
LONG = [point for point in POINTS if TORTURE or (point.path.endswith(KINDS) and not point.after)]
"""Those that also last a while: in `script/test` one of each kind."""


class Fault:
    """What happens at a point, once it is armed."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.happened, self.over = threading.Event(), threading.Event()
        self._armed = False
        self._until = math.inf

    def arm(self) -> None:
        self._armed = True

    def hang(self) -> None:
        if seconds := self.strike():
            time.sleep(seconds)
            self.over.set()

    async def ahang(self) -> None:
        if seconds := self.strike():
            await asyncio.sleep(seconds)
            self.over.set()

    def strike(self) -> float:
        """Raise, or say for how long to hang. The time of the fault begins with its first strike."""
        if not self._armed or time.monotonic() > self._until:
            return 0.0
        self._armed = self.mode == "raises for a while"
        self._until = min(self._until, time.monotonic() + RAISES)
        self.happened.set()
        if self.mode == "hangs":
            return HANGS
        raise RuntimeError("injected")

    def wrap(self, function: Callable[..., Any], point: Point) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if point.path == "threading.Thread.start" and not args[0].name.startswith("treadle-"):
                return function(*args, **kwargs)
            if not point.after:
                self.hang()
            result = function(*args, **kwargs)
            if point.after:
                self.hang()
            return result

        async def acall(*args: Any, **kwargs: Any) -> Any:
            if not point.after:
                await self.ahang()
            return await function(*args, **kwargs)

        return acall if inspect.iscoroutinefunction(function) else call


def inject(monkeypatch: pytest.MonkeyPatch, point: Point, mode: str) -> Fault:
    fault, (path, _, name) = Fault(mode), point.path.rpartition(".")
    try:
        owner: Any = importlib.import_module(path)
    except ImportError:
        module, _, cls = path.rpartition(".")
        owner = getattr(importlib.import_module(module), cls)
    for place in (owner, PostgresStore) if owner is SQLStore else (owner,):
        if name in vars(place):
            monkeypatch.setattr(place, name, fault.wrap(getattr(place, name), point))
    return fault


class Handlers:
    """Jobs of every kind, and how often each has run."""

    def __init__(self, td: Treadle) -> None:
        self.td = td
        self.runs: Counter[str] = Counter()
        self.events: Counter[str] = Counter()

        @td.job(backoff=0)
        async def on_the_loop(ctx: Context) -> None:
            self.runs[ctx.id] += 1
            ctx.progress(0.5, "half")
            await asyncio.sleep(0.02)

        @td.job(backoff=0, timeout=60)
        def in_a_thread(ctx: Context) -> str:
            self.runs[ctx.id] += 1
            return "done"

        @td.job(backoff=0)
        async def fails_once(ctx: Context) -> None:
            self.runs[ctx.id] += 1
            if self.runs[ctx.id] == 1:
                raise Retry("once")

        @td.job(backoff=0, timeout=0.05, max_attempts=100)
        def times_out_once(ctx: Context) -> None:
            self.runs[ctx.id] += 1
            while self.runs[ctx.id] == 1 and not ctx.cancelled:
                time.sleep(0.002)

        @on_the_loop.already_done
        def none_yet(jobs: Any) -> list[Job]:
            return []

        @td.on("job_started")
        def started(event: Any) -> None:
            self.events[event.id] += 1

        self.types = [on_the_loop, in_a_thread, fails_once, times_out_once]

    def enqueue(self) -> list[Job]:
        return [function.enqueue() for function in self.types for _ in range(2)]


def all_complete(td: Treadle, jobs: list[Job]) -> bool:
    found = [td.get(job.id) for job in jobs]
    return all(job is not None and job.status is Status.COMPLETED for job in found)


def check(td: Treadle, fault: Fault, enqueue: Callable[[], list[Job]], runs: Counter[str] | None) -> None:
    with working(td, beat=BEAT, concurrency=4, grace=5) as background:
        fault.arm()
        jobs = enqueue()
        for _ in range(120):
            if fault.happened.wait(0.5):
                break
            jobs += enqueue()  # some functions are called only if a worker looks while a handler runs
        assert fault.happened.is_set(), "nothing calls this function"
        assert fault.mode != "hangs" or fault.over.wait(HANGS + 60)  # a stop would wait for what hangs
        eventually(lambda: all_complete(td, jobs), within=120 + HANGS)
        last = enqueue()
        eventually(lambda: all_complete(td, last))
        eventually(lambda: len(td.workers()) == 1)  # and those that have ended have left
        assert background.thread.is_alive()
    if runs is not None:
        for job in (td.get(job.id) for job in (*jobs, *last)):
            assert job is not None
            assert 1 <= job.attempts <= runs[job.id], "an attempt that did not run was counted"


@pytest.mark.parametrize("point", POINTS, ids=str)
@pytest.mark.not_libsql
def test_a_worker_works_after_a_part_has_raised(td: Treadle, monkeypatch: pytest.MonkeyPatch, point: Point) -> None:
    handlers = Handlers(td)
    check(td, inject(monkeypatch, point, "raises once"), handlers.enqueue, handlers.runs)


@pytest.mark.parametrize("mode", ["raises for a while", "hangs"])
@pytest.mark.parametrize("point", LONG, ids=str)
@pytest.mark.sqlite_only
def test_a_worker_works_after_a_part_has_raised_for_a_while_or_hung(
    td: Treadle, monkeypatch: pytest.MonkeyPatch, point: Point, mode: str
) -> None:
    handlers = Handlers(td)
    check(td, inject(monkeypatch, point, mode), handlers.enqueue, handlers.runs)


@pytest.mark.parametrize("point", CHILDREN, ids=str)
@pytest.mark.not_libsql
def test_a_worker_works_after_the_start_of_a_child_has_failed(
    in_children: Treadle, monkeypatch: pytest.MonkeyPatch, point: Point
) -> None:
    check_children(in_children, inject(monkeypatch, point, "raises once"))


@pytest.mark.parametrize("mode", ["raises for a while", "hangs"])
@pytest.mark.parametrize("point", CHILDREN if TORTURE else CHILDREN[:1], ids=str)
@pytest.mark.sqlite_only
def test_a_worker_works_after_the_start_of_a_child_has_failed_for_a_while_or_hung(
    in_children: Treadle, monkeypatch: pytest.MonkeyPatch, point: Point, mode: str
) -> None:
    check_children(in_children, inject(monkeypatch, point, mode))


def check_children(td: Treadle, fault: Fault) -> None:
    def enqueue() -> list[Job]:
        return [process_jobs.own_pid.using(max_attempts=1).enqueue() for _ in range(2)]

    check(td, fault, enqueue, None)
