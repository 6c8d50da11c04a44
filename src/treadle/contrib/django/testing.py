"""`drain` and `adrain` for Django's tests: they run jobs in the calling thread, on the connection of the test."""

# Django has no types, and what pyright infers from its code is wrong here.
# pyright: reportGeneralTypeIssues=false, reportFunctionMemberAccess=false

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVar

import msgspec
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connections, transaction

from treadle import clock
from treadle.context import Run
from treadle.contrib.django.app import DjangoTreadle, in_callers_thread, project_app
from treadle.contrib.django.store import borrowed
from treadle.errors import BadOption
from treadle.hooks import dispatch_now
from treadle.job import ClaimedJob
from treadle.middleware import Lifespans
from treadle.outcome import UNSUCCESSFUL, Outcome
from treadle.run_steps import StepSaver
from treadle.stores.base import ClaimRequest
from treadle.units import plural
from treadle.worker.chores import expire
from treadle.worker.runner import run_async, run_sync
from treadle.worker.tick import TickReport, declare_and_fire, next_due

LEASE = 3600 * clock.SECOND
State = Mapping[str, Any]
T = TypeVar("T")


def drain(*, raising: bool = True, max_jobs: int = 1000) -> TickReport:
    """Run everything that is due, in this thread: the jobs, their follow-ups, and retries that are due already.

    It works in a `TestCase`, whose transaction no other connection sees, and in a `TransactionTestCase`. Raises
    AssertionError, with the tracebacks, if jobs failed; with `raising=False` the report says how many.
    """
    return drain_here(project_app(), raising, max_jobs)


async def adrain(*, raising: bool = True, max_jobs: int = 1000) -> TickReport:
    """`drain` in an async test. The jobs run in the thread of the test, as the ORM does."""
    report: TickReport = await sync_to_async(drain)(raising=raising, max_jobs=max_jobs)
    return report


async def _in_lifespans(td: DjangoTreadle, work: Callable[[State], T]) -> T:
    """Do the work in the thread of the test, as asgiref does here, and async handlers on the loop of the lifespans."""
    lifespans = Lifespans(td.registry.lifespans)
    await lifespans.open()
    try:
        done: T = await sync_to_async(work)(lifespans.state)
    finally:
        await lifespans.close()
    return done


def drain_here(td: DjangoTreadle, raising: bool, max_jobs: int) -> TickReport:
    if max_jobs < 1:
        raise BadOption("max_jobs", max_jobs, "at least 1")
    done = _in_this_thread(td, partial(_run_due, td, max_jobs, inf), "drain()", "adrain()")
    return _drained(td, done, raising, max_jobs, inf)


def drain_and_fire(td: DjangoTreadle, raising: bool, max_jobs: int, max_seconds: float) -> TickReport:
    """`treadle.testing.drain` in a test: it also fires schedules. Time is checked between jobs."""
    done, first = _in_this_thread(td, partial(_fire_and_run, td, max_jobs, max_seconds), "drain()", "adrain()")
    report = _drained(td, done, raising, max_jobs, max_seconds)
    return first.added_to(msgspec.structs.replace(report, next_due_at=clock.optional_moment(next_due(td))))


def _drained(td: DjangoTreadle, done: Done, raising: bool, max_jobs: int, max_seconds: float) -> TickReport:
    """The report. Raises AssertionError if more is due, or if jobs failed."""
    due = td.store.due(_request(td))
    if due.now and done.ran < max_jobs:
        raise AssertionError(f"drain has run for {max_seconds:g} s, and more jobs are due")
    if due.now:
        raise AssertionError(f"drain ran {max_jobs} jobs and more are due; does a job enqueue itself?")
    if done.failed and raising:
        problem = f"{plural(len(done.failed), 'job')} failed; to allow that: drain(raising=False)"
        raise AssertionError("\n".join([problem, *done.failed.values()]))
    return done.report(due.next_at)


def tick_here(td: DjangoTreadle, max_jobs: int, max_seconds: float) -> TickReport:
    """`td.tick()` in a test."""
    if max_jobs < 1 or max_seconds <= 0:
        raise BadOption("tick", (max_jobs, max_seconds), "at least 1 job and more than 0 seconds")
    with borrowed(str(td.alias)):  # the dashboard ticks in a thread of its own
        work = partial(_fire_and_run, td, max_jobs, max_seconds)
        done, first = _in_this_thread(td, work, "td.tick()", "td.atick()")
        return first.added_to(done.report(next_due(td)))


def _in_this_thread(td: DjangoTreadle, work: Callable[[State], T], name: str, twin: str) -> T:
    if asyncio._get_running_loop() is not None:
        raise SynchronousOnlyOperation(f"{name} blocks the event loop; in an async test: await {twin}")
    token = in_callers_thread.set(True)
    try:
        return async_to_sync(_in_lifespans)(td, work) if td.registry.lifespans else work({})
    finally:
        in_callers_thread.reset(token)


class Done(NamedTuple):
    """What was run."""

    kinds: Counter[str]
    """How many attempts had this outcome."""
    failed: dict[str, str]
    """The jobs whose last attempt here failed, and why."""

    @property
    def ran(self) -> int:
        return self.kinds.total()

    def report(self, next_at: int | None) -> TickReport:
        counts: dict[str, Any] = dict(self.kinds)
        return TickReport(ran=self.ran, next_due_at=clock.optional_moment(next_at), **counts)


class First(NamedTuple):
    """What was done before the jobs were run."""

    expired: int
    rescued: int
    fired: int

    def added_to(self, report: TickReport) -> TickReport:
        cancelled = report.cancelled + self.expired
        return msgspec.structs.replace(report, cancelled=cancelled, rescued=self.rescued, fired=self.fired)


def _fire_and_run(td: DjangoTreadle, max_jobs: int, max_seconds: float, state: State) -> tuple[Done, First]:
    expired, rescued = expire(td.store), td.store.rescue()
    first = First(expired, rescued, declare_and_fire(td, max_seconds / 2))
    return _run_due(td, max_jobs, max_seconds, state), first


def _request(td: DjangoTreadle) -> ClaimRequest:
    return ClaimRequest(limit=1, types=dict.fromkeys(td.registry.types), lease_for=LEASE)


def _run_due(td: DjangoTreadle, max_jobs: int, max_seconds: float, state: State) -> Done:
    done, until = Done(Counter(), {}), time.monotonic() + max_seconds
    while done.ran < max_jobs and time.monotonic() < until and (claims := td.store.claim("", _request(td))):
        [claimed] = claims
        outcome = _run(td, claimed, state)
        done.failed.pop(claimed.id, None)
        if outcome is not None:
            done.kinds[outcome.kind.value] += 1
            if outcome.kind in UNSUCCESSFUL:
                done.failed[claimed.id] = f"{claimed.type} {outcome.kind.value}:\n{outcome.traceback or outcome.error}"
    return done


def _run(td: DjangoTreadle, claimed: ClaimedJob, state: State) -> Outcome | None:
    store, job_type = td.store, td.registry[claimed.type]
    run = Run(claimed, store, td.redactor, StepSaver(store), state, td.registry.result)
    dispatch_now(td.hooks, td.hooks.started([claimed], ""))
    outcome: Outcome | None = None
    with _savepoint(td.alias):
        if inspect.iscoroutinefunction(job_type.handler):
            outcome = async_to_sync(run_async)(run, job_type)
        else:
            outcome = run_sync(run, job_type)
    if outcome is not None and not outcome.written:
        settled = store.settle([(claimed, run.with_logs(outcome))])
        raised = {} if run.error is None else {claimed.number: run.error}
        dispatch_now(td.hooks, td.hooks.ended(settled.written, settled.at, "", raised))
    return outcome


@contextmanager
def _savepoint(alias: str | None) -> Generator[None]:
    """Around a handler, if the test has a transaction: a statement that fails must not fail the test with it.

    To Django it is a part of the test, so that `durable` blocks and follow-ups are as they are outside of tests.
    """
    if alias is None or not connections[alias].in_atomic_block:
        yield
        return
    block = transaction.atomic(using=alias)
    block._from_testcase = True
    try:
        with block:
            yield
    except DatabaseError:  # the handler has swallowed one, and the database refuses to go on: it is rolled back now
        pass
