"""Stores new jobs: in the caller's transaction, with the running job's completion, or in a commit of their own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from treadle import clock
from treadle.batch import refuse_rejects
from treadle.context import Run, Tracing, current_run
from treadle.function import Options
from treadle.group_commit import GroupCommit, warn_if_on_loop
from treadle.job import Job, NewJob
from treadle.results import WithTwins
from treadle.run_steps import StepSaver
from treadle.stores.base import Store
from treadle.stores.user_connections import is_async, run_on_async
from treadle.waits import refuse_parent

if TYPE_CHECKING:
    from treadle.registry import Registry

P = ParamSpec("P")
T = TypeVar("T")

STORED_LATER = "a follow-up is stored when its handler completes; choose another mode, or using(detached=True)"


class Producer(WithTwins):
    """The part of an app that stores new jobs, and wakes the workers of this process for them."""

    store: Store
    registry: Registry
    tracing: Tracing | None
    _wakers: set[Callable[[], None]]
    """Wake the workers of this process when a job may be due."""

    async def _to_thread(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Where calls that block are made for the event loop."""
        return await asyncio.to_thread(call, *args, **kwargs)

    def _wake(self) -> None:
        for wake in tuple(self._wakers):
            wake()

    def _waking(self, stored: T) -> T:
        """What was stored, after the workers of this process were woken for it."""
        self._wake()
        return stored

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._group = GroupCommit[Sequence[NewJob], list[Job]](self.store.insert_groups)
        self._step_saver = StepSaver(self.store)
        self._wakers.clear()

    def _submit(self, jobs: Sequence[NewJob], options: Options) -> list[Job]:
        """Store requests, inside the `enqueuing` of the tracer if there is one."""
        if not jobs:
            return []
        if self.tracing is None:
            return self._store_jobs(jobs, options)
        with self.tracing.enqueuing(jobs) as traced:
            return self._store_jobs(traced, options)

    async def _asubmit(self, jobs: Sequence[NewJob], options: Options) -> list[Job]:
        if not jobs:
            return []
        if self.tracing is None:
            return await self._astore_jobs(jobs, options)
        with self.tracing.enqueuing(jobs) as traced:
            return await self._astore_jobs(traced, options)

    def _store_jobs(self, jobs: Sequence[NewJob], options: Options) -> list[Job]:
        """Store requests in the caller's transaction, with the running job's step or completion, or now."""
        if (run := current_run.get()) is not None:
            jobs = self._subjobs(run, jobs)
        if (connection := self._connection(options)) is not None:
            return self.store.insert(jobs, connection)
        if run is not None and self._joins(run, options):
            refuse_rejects("mode", jobs, STORED_LATER)
            self._refuse_missing_parents(run, jobs)
            run.collecting.follow_ups.extend(jobs)
            return [job.as_stored(clock.now()) for job in jobs]
        warn_if_on_loop()
        stored = self._insert(jobs)
        if self._wakers:
            self._wake()
        return stored

    def _connection(self, options: Options) -> Any:
        """The connection whose open transaction a write belongs to, if there is one."""
        return options.get("connection")

    async def _astore_jobs(self, jobs: Sequence[NewJob], options: Options) -> list[Job]:
        connection, run = options.get("connection"), current_run.get()
        if connection is not None and is_async(connection):
            theirs = jobs if run is None else self._subjobs(run, jobs)
            return await run_on_async(connection, lambda driver: self.store.insert(theirs, driver))
        if connection is not None or (run is not None and self._joins(run, options)):
            return self._store_jobs(jobs, options)
        stored = await self._ainsert(jobs if run is None else self._subjobs(run, jobs))
        self._wake()
        return stored

    def _joins(self, run: Run, options: Options) -> bool:
        """Whether an enqueue inside a running handler is a follow-up of its job."""
        return not (run.ended or run.written or options.get("detached")) and run.store is self.store

    def _subjobs(self, run: Run, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """The jobs, with the one that runs as their origin."""
        return jobs if run.store is not self.store else [job.started_by(run.claimed.id) for job in jobs]

    def _refuse_missing_parents(self, run: Run, follow_ups: Sequence[NewJob]) -> None:
        """A follow-up is stored after the handler has returned: then it waits, even if its parent is gone."""
        if not (wanted := [(id, job) for job in follow_ups for id in job.after]):
            return
        known = {job.id: job.tenant for job in (*run.collected.follow_ups, *run.collecting.follow_ups, *follow_ups)}
        for id, child in wanted:
            if id not in known and (parent := self.store.get(id)) is not None:
                known[id] = parent.tenant
            refuse_parent(id, known.get(id), child)

    def _insert(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Store now, in one commit with the other callers of this process."""
        if self._pid != os.getpid():  # after a fork: do not wait for the parent's callers
            self._start_over()
        if self.store.dedupe_may_block and _has_key(jobs):
            return self.store.insert(jobs)
        return self._group.store(jobs)

    async def _ainsert(self, jobs: Sequence[NewJob]) -> list[Job]:
        if self._pid != os.getpid():
            self._start_over()
        if self.store.dedupe_may_block and _has_key(jobs):
            return await self._to_thread(self.store.insert, jobs)
        return await self._group.astore(jobs)


def _has_key(jobs: Sequence[NewJob]) -> bool:
    """Whether these may have to wait for another transaction with the same key. Other callers must not wait too."""
    return any(job.dedupe is not None for job in jobs)
