"""`drain` and `adrain` for Django's tests: they run jobs in the calling thread, on the connection of the test."""

# Django has no types, and what pyright infers from its code is wrong here.
# pyright: reportGeneralTypeIssues=false, reportFunctionMemberAccess=false

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connections, transaction

from treadle import clock
from treadle.context import Run
from treadle.contrib.django.app import DjangoTreadle, in_callers_thread, project_app
from treadle.errors import BadOption
from treadle.hooks import dispatch_now
from treadle.job import ClaimedJob
from treadle.middleware import Lifespans
from treadle.outcome import UNSUCCESSFUL, Outcome
from treadle.run_steps import StepSaver
from treadle.stores.base import ClaimRequest
from treadle.units import plural
from treadle.worker.runner import run_async, run_sync
from treadle.worker.tick import TickReport

LEASE = 3600 * clock.SECOND
State = Mapping[str, Any]


def drain(*, raising: bool = True, max_jobs: int = 1000) -> TickReport:
    """Run everything that is due, in this thread: the jobs, their follow-ups, and retries that are due already.

    It works in a `TestCase`, whose transaction no other connection sees, and in a `TransactionTestCase`. Raises
    AssertionError, with the tracebacks, if jobs failed; with `raising=False` the report says how many.
    """
    if asyncio._get_running_loop() is not None:
        raise SynchronousOnlyOperation("drain() blocks the event loop; in an async test: await adrain()")
    td = project_app()
    if max_jobs < 1:
        raise BadOption("max_jobs", max_jobs, "at least 1")
    work = partial(_drain, td, raising, max_jobs)
    token = in_callers_thread.set(True)
    try:
        return async_to_sync(_in_lifespans)(td, work) if td.registry.lifespans else work({})
    finally:
        in_callers_thread.reset(token)


async def adrain(*, raising: bool = True, max_jobs: int = 1000) -> TickReport:
    """`drain` in an async test. The jobs run in the thread of the test, as the ORM does."""
    report: TickReport = await sync_to_async(drain)(raising=raising, max_jobs=max_jobs)
    return report


async def _in_lifespans(td: DjangoTreadle, work: Callable[[State], TickReport]) -> TickReport:
    """Do the work in the thread of the test, as asgiref does here, and async handlers on the loop of the lifespans."""
    lifespans = Lifespans(td.registry.lifespans)
    await lifespans.open()
    try:
        report: TickReport = await sync_to_async(work)(lifespans.state)
    finally:
        await lifespans.close()
    return report


def _drain(td: DjangoTreadle, raising: bool, max_jobs: int, state: State) -> TickReport:
    request = ClaimRequest(limit=1, types=dict.fromkeys(td.registry.types), lease_for=LEASE)
    kinds: Counter[str] = Counter()
    failed: dict[str, str] = {}
    while claims := td.store.claim("", request):
        if kinds.total() >= max_jobs:
            raise AssertionError(f"drain ran {max_jobs} jobs and more are due; does a job enqueue itself?")
        [claimed] = claims
        outcome = _run(td, claimed, state)
        failed.pop(claimed.id, None)
        if outcome is not None:
            kinds[outcome.kind.value] += 1
            if outcome.kind in UNSUCCESSFUL:
                failed[claimed.id] = f"{claimed.type} {outcome.kind.value}:\n{outcome.traceback or outcome.error}"
    if failed and raising:
        problem = f"{plural(len(failed), 'job')} failed; to allow that: drain(raising=False)"
        raise AssertionError("\n".join([problem, *failed.values()]))
    counts: dict[str, Any] = dict(kinds)
    return TickReport(ran=kinds.total(), next_due_at=clock.optional_moment(td.store.due(request).next_at), **counts)


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
