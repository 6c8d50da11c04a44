"""The worker: claim → run → settle.

`Worker` registers, claims and stops. It gives each claimed job to the executor, which runs it. The settler commits the
outcomes, and the heartbeat keeps the leases. All of them share `Attempts`, the table of what is in flight.

A worker works or is gone: if one of its parts ends, it stops. Then its supervisor replaces it, or, without one, it
starts again by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from treadle.errors import BadOption, BadStart, StoreBusy, StoreUnusable, TreadleError, WorkerLost, WorkerQuiet
from treadle.hooks import HookDispatcher
from treadle.ids import new_worker_id
from treadle.middleware import Lifespans, check_middleware
from treadle.outcome import OutcomeKind, StopReason
from treadle.settings import at_least_one
from treadle.stores.base import ClaimRequest
from treadle.stores.rows import Claim, Due
from treadle.worker import host, parts
from treadle.worker.ahead import Ahead
from treadle.worker.chores import declare_local_dead, do_chores
from treadle.worker.executor import Executor
from treadle.worker.firing import fire_schedules
from treadle.worker.health import Health
from treadle.worker.heartbeat import Heartbeat, LeaseCheck
from treadle.worker.inflight import Attempts, CellOwner, Inflight
from treadle.worker.parts import Parts, started_thread
from treadle.worker.registration import register, timeouts_of
from treadle.worker.settler import PAUSE, Settler
from treadle.worker.thread import IN_A_PROGRAM, ThreadStarter
from treadle.worker.watch import Wakeup

if TYPE_CHECKING:
    from treadle.app import Treadle

log = logging.getLogger("treadle")

SWITCH = 0.0005
"""Seconds for which Python code may keep the interpreter from a thread that comes back from the database. A settle
comes back many times: with Python's own 5 ms, it would wait until the running handlers have ended."""
STOP_SECONDS = 30.0
"""Seconds, in addition to the grace, in which a worker that stops stores its last outcomes and leaves the database."""


class Worker(ThreadStarter):
    """One incarnation of a process that claims and runs.

    `concurrency`: how many jobs at once. `grace`: seconds that running jobs have to end when the worker stops; what
    is left is released without using up an attempt. `beat`: seconds between two heartbeats.
    """

    def __init__(
        self,
        app: Treadle,
        *,
        concurrency: int = 10,
        queues: tuple[str, ...] = (),
        grace: float = 30.0,
        beat: float = 5.0,
        max_jobs: int | None = None,
        inflight: Inflight | None = None,
        health: Health | None = None,
    ) -> None:
        self.app, self.store = app, app.store
        self.concurrency = at_least_one("concurrency", concurrency)
        self.queues = queues
        if grace < 0 or beat <= 0:
            raise BadOption("grace, beat", (grace, beat), "seconds: a grace of 0 or more, a beat of more than 0")
        self.grace = grace
        self.id, self.name, self.claimed_total = "", "", 0
        self.outcomes = dict.fromkeys(OutcomeKind, 0)
        self._every, self._max_jobs = beat, max_jobs
        self._inflight = inflight or Inflight.create(2 * self.concurrency)
        self._supervisor = self._inflight.supervisor
        self._health = health
        self._hurry = asyncio.Event()
        """Set by a second signal: do not wait for what runs."""
        self._stop: asyncio.Event | None = None
        self._stopping = self._wanted_no_more = self._quiet = False
        self._idle = asyncio.Event()
        self._registering, self._changing = asyncio.Lock(), asyncio.Lock()
        self._guard: asyncio.Task[None] | None = None

    # Start and stop

    def run(self) -> int:
        """Work until SIGTERM or SIGINT: then stop claiming, finish what runs, release the rest. A second signal
        hurries. The exit code: 0, or REPLACE_ME."""
        if asyncio._get_running_loop() is not None:
            raise BadStart("run() needs an event loop of its own, and one is running here", IN_A_PROGRAM)
        sys.setswitchinterval(SWITCH)  # the process is ours
        return host.run_loop(self._run())

    async def _run(self) -> int:
        if self._supervisor is not None:
            host.raise_oom_score()
        self._stop = stop = host.until_signalled(again=self._hurry.set)
        async with self:
            while not stop.is_set() and not self._must_be_replaced() and self._supervisor in (None, os.getppid()):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 1.0)
            return host.REPLACE_ME if self._must_be_replaced() else 0  # decided now: threads may end while it stops

    def _must_be_replaced(self) -> bool:
        """Too many threads were given up, which only a new process has back; or a part has ended."""
        stuck = len(self._attempts.given_up) > self.concurrency // 2
        return self._supervisor is not None and (stuck or self._parts.failed.done())

    async def __aenter__(self) -> Self:
        if self._guard is not None or self._wanted_no_more:
            raise BadStart("this worker has been started before, and starts only once", "make another: td.worker(…)")
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        self._loop = asyncio.get_running_loop()
        check_middleware(self.app.registry.types.values())
        self._lifespans = Lifespans(self.app.registry.lifespans)
        await self._lifespans.open()
        try:
            await self._start()
            if self._health is not None:
                self._health.start(self)
        except BaseException:
            await self._lifespans.close()
            raise
        self._guard = asyncio.create_task(self._guard_parts())
        return self

    async def _start(self) -> None:
        """Make the parts, register, and let them work."""
        self._stopping, self.id = False, ""
        self._inflight.clear()
        self._parts = Parts()
        self._claimer = started_thread("treadle-claim")
        self._on_loop = self.store.claims_on_loop(self._claimer)
        self._wakeup = Wakeup(self.store)
        self._hooks = HookDispatcher(self.app.hooks, self.store.now, self._parts.fail_from_thread)
        self._attempts = Attempts(self._inflight, self.outcomes, self._parts, self._health)
        shared = self._attempts, self._parts
        self._executor = Executor(self.app, self.concurrency, *shared, self._lifespans.state, self._hooks.started)
        self._settler = Settler(self.store, self._attempts, self._hooks, self._wakeup.hint)
        self._leases = LeaseCheck(self.store, self._attempts, self._settler.thread)
        self._ahead = Ahead(*shared, self._free, self._executor.start, allowed=self._max_jobs is None)
        duties = self._attempts.time_left, self._ahead.give_up, self._executor.types_on_loop
        self._heartbeat = Heartbeat(self.store, self._every, *duties, self._inflight, self._parts)
        try:
            await self._register_in_time()
            await self._wakeup.open()
            self._heartbeat.start()
        except BaseException:
            await self._loop.run_in_executor(self._settler.thread, self._leaving())
            raise
        self.app._wakers.add(self._wakeup.wake)
        self._parts.start("claim", self._claim_loop())
        self._parts.start("settle", self._settler.run())
        self._parts.start("lease check", self._leases.run())
        self._parts.start("heartbeat news", self._heartbeat_loop())
        self._parts.start("chores", do_chores(self.app, self._every))
        self._parts.start("schedules", fire_schedules(self.store, self._wakeup.hint.set))

    async def _guard_parts(self) -> None:
        """If a part ends, start again, unless there is a supervisor: then `_run` ends, and the process is replaced."""
        while self._supervisor is None:
            await asyncio.wait([self._parts.failed])
            async with self._changing:
                log.error("worker %s releases its jobs, and starts again", self.name)
                await self._end(0.0)
                while not self._wanted_no_more:
                    await asyncio.sleep(PAUSE)  # the next one may end as soon
                    try:
                        await self._start()
                        break
                    except Exception as error:
                        log.warning("worker %s has not started again yet: %s", self.name, error)

    async def __aexit__(self, *_: object) -> None:
        """Stop claiming, let what runs end within `grace`, release the rest, and leave the database."""
        if self._guard is None:
            return
        guard, self._guard = self._guard, None
        self._wanted_no_more = True
        async with self._changing:  # not while it starts again
            guard.cancel()
            if not self._stopping:
                await self._end(0.0 if self._parts.failed.done() else self.grace)
        await self._lifespans.close()
        if self._supervisor is None:  # then no other process has it, and a tick makes a new one each time
            self._inflight.close()
        if self._health is not None:
            self._health.stop()

    async def _end(self, grace: float) -> None:
        """End all parts. If the store or a handler does not let them, go on without it: a stop has a bound."""
        self._stopping = True
        self._parts.stopping()
        self.app._wakers.discard(self._wakeup.wake)
        self._wakeup.hint.set()
        self._ahead.release()
        self._attempts.changed.set()
        deadline = time.monotonic() + grace + STOP_SECONDS
        try:
            await self._wind_down(grace, deadline)
        except Exception:  # what ended the worker may still be there
            log.exception("worker %s could not end all of its jobs", self.name)
        except BaseException:  # the event loop is being closed, and cancels all of its tasks
            self._heartbeat.stop()  # its jobs no longer run: workers that see no beat rescue them
            self._wakeup.close()
            raise
        leaving = self._loop.run_in_executor(self._settler.thread, self._leaving())
        await asyncio.wait([leaving], timeout=deadline - time.monotonic())
        if not leaving.done():
            self._heartbeat.stop()  # nobody rescues while it beats, and what hangs may be in the thread that leaves
            log.warning("worker %s stops without leaving the database: its jobs will be rescued", self.name)

    async def _wind_down(self, grace: float, deadline: float) -> None:
        """In this order: the last claim, what runs, its outcomes, their hooks, the other tasks."""
        tasks = self._parts.tasks
        await asyncio.wait([tasks["claim"]], timeout=STOP_SECONDS / 3)
        if tasks["settle"].done():
            self._parts.start("settle", self._settler.run())  # for the last outcomes
        if not self._attempts.running:
            log.info("worker %s stops", self.name)
        elif grace:
            log.warning("worker %s stops, and waits up to %g s for %s", self.name, grace, self._attempts.described())
        await self._attempts.all_ended(grace, self._hurry)
        self._attempts.stop(StopReason.RELEASED, self._attempts.running)
        await self._attempts.all_ended(1.0)
        self._attempts.give_up_all()
        await self._attempts.all_settled(deadline - time.monotonic() - STOP_SECONDS / 3, tasks["settle"])
        await self._hooks.close()
        await self._parts.cancel(1.0)
        if self._on_loop is not None:
            self._on_loop.close()

    def _leaving(self) -> Callable[[], None]:
        """A function that deletes this worker from the database and from the cells, and ends the threads.

        It has its own names for the parts: if the store hangs, it may end after the worker has started again.
        """
        heartbeat, wakeup, executor = self._heartbeat, self._wakeup, self._executor
        claimer, settler = self._claimer, self._settler.thread

        def leave() -> None:
            heartbeat.stop()
            if heartbeat.is_alive():
                heartbeat.join()
            wakeup.close()
            if id := heartbeat.worker:
                with contextlib.suppress(TreadleError):
                    self.store.declare_dead(id, "its worker stopped", started=())
                    if self.id == id:
                        self._inflight.clear()  # so that the supervisor does not take this exit for a crash
            executor.close()
            for thread in (claimer, wakeup.thread):
                thread.shutdown()
            settler.shutdown(wait=False)  # this runs there

        return leave

    async def drained(self) -> None:
        """Wait until nothing runs, nothing is unsettled, and nothing is due (or enough was claimed)."""
        self._idle.clear()
        self._wakeup.hint.set()
        await self._idle.wait()

    # Register

    async def _register_in_time(self) -> None:
        """A worker that replaces a dead one waits for the store. The first one fails if the store cannot be used."""
        while True:
            try:
                return await self._loop.run_in_executor(self._claimer, self._register)
            except (StoreBusy, StoreUnusable) as error:
                wanted = self._stop is not None and not self._stop.is_set()
                if not (wanted and self._inflight.has_predecessor and self._supervisor == os.getppid()):
                    raise
                log.warning("not registered yet: %s", error)
                await asyncio.sleep(PAUSE)

    def _register(self) -> None:
        """Appear in the database and in the cells, with an id that no worker has had before."""
        declare_local_dead(self.store)
        self._types, id = self.app.registry.types, new_worker_id(self.name)
        self._inflight.sign(CellOwner(id, self.store.url))
        register(self, host.identity(self._supervisor), id)
        self.id = self._heartbeat.worker = self._leases.worker = self._hooks.worker = id
        self._quiet, self._timeouts = False, timeouts_of(self._types)

    async def _heartbeat_loop(self) -> None:
        while True:
            news = await self._heartbeat.news.get()
            if isinstance(news, WorkerLost):
                await self._register_again(news.worker)
            else:
                self._leases.compare(news)
                self._set_quiet(news.quiet)

    def _set_quiet(self, quiet: bool) -> None:
        """Somebody wants this worker to claim nothing, or lets it claim again."""
        if quiet != self._quiet:
            self._quiet = quiet
            log.info("worker %s %s", self.name, "is quiet, and finishes what runs" if quiet else "claims again")
            if quiet:
                self._ahead.release()
            self._attempts.changed.set()

    async def _register_again(self, worker: str) -> None:
        """Declared dead: what runs is another worker's now. Drop it, and start over with a new id."""
        async with self._registering:
            if self._stopping or worker != self.id:  # claims and beats may both notice it
                return
            self._attempts.stop(StopReason.LOST, self._attempts.running)
            try:
                await self._loop.run_in_executor(self._claimer, self._register)
                log.warning("worker %s has registered again, as %s", self.name, self.id)
            except TreadleError as error:
                log.warning("not registered again yet: %s", error)
                await asyncio.sleep(PAUSE)

    # Claim

    async def _claim_loop(self) -> None:
        """Claim a job for each free slot, and start it. If fewer were due than slots are free, wait until more are."""
        while not self._stopping:
            free = 0 if self._quiet else self._room()
            if free <= 0:
                if self._max_jobs is not None and self._attempts.none_left:
                    self._idle.set()
                await self._attempts.change()
                continue
            self._wakeup.hint.clear()
            self._attempts.claiming = True
            claimed = await self._claim(free)
            attempts = self._executor.prepare(claimed, self._types)
            if self._ahead.is_on:
                started = self._ahead.add(attempts, may_wait=not self._stopping and not self._quiet)
            else:
                started = self._executor.start(attempts)
            self._attempts.claiming = False
            self._ahead.is_on = len(claimed) == free or bool(self._ahead.waiting)
            # Handlers that never wait have ended after this, and their slots are free again. If a claim goes ahead of
            # them, they run during that.
            if not started or self._room() <= 0:
                await asyncio.sleep(0 if started else PAUSE)
            if claimed.due is not None and not self._stopping:
                await self._until(claimed.due)

    def _room(self) -> int:
        free = self._free()
        room = self._ahead.room(free) if self._ahead.is_on else free
        return room if self._max_jobs is None else min(room, self._max_jobs - self.claimed_total)

    def _free(self) -> int:
        """Free slots, unless too many outcomes are unsettled: each has a cell, and so has what runs."""
        executing = len(self._attempts.running) - len(self._ahead.waiting)
        slots = self.concurrency - executing - len(self._attempts.given_up)
        return min(slots, 2 * self.concurrency - executing - self._attempts.unsettled)

    async def _claim(self, limit: int) -> Claim:
        request = ClaimRequest(limit=limit, types=self._timeouts, queues=self.queues)
        try:
            on_loop = self._on_loop if self._attempts.none_left else None  # no thread has to wake up, nobody waits
            claimed = None if on_loop is None else await on_loop.claim(self.id, request)
            if claimed is None:
                claimed = await self._loop.run_in_executor(self._claimer, self.store.claim, self.id, request)
        except WorkerLost as error:
            await self._register_again(error.worker)
            return Claim()
        except WorkerQuiet:
            self._set_quiet(True)
            return Claim()
        except (StoreBusy, StoreUnusable) as error:
            parts.warn("the claim failed: %s", error)
        except Exception:
            log.exception("the claim failed")
        else:
            self.claimed_total += len(claimed)
            return claimed
        await asyncio.sleep(PAUSE)
        return Claim()

    async def _until(self, due: Due) -> None:
        """Wait until there may be something to claim: a hint, a job that becomes due, or the next poll."""
        if self._wakeup.hint.is_set():  # set during the claim: what was settled may have follow-ups
            return
        if self._attempts.none_left and not due.now:
            self._idle.set()
        await self._wakeup.wait(due.in_seconds)
