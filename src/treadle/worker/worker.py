"""The worker: claim → run → settle.

`Worker` registers, claims and stops. It gives each claimed job to the executor, which runs it. The settler commits the
outcomes, and the heartbeat keeps the leases. All of them share `Attempts`, the table of what is in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from treadle.errors import BadOption, StoreBusy, StoreUnusable, TreadleError, WorkerLost
from treadle.hooks import HookDispatcher
from treadle.job import ClaimedJob
from treadle.outcome import OutcomeKind, StopReason
from treadle.settings import at_least_one
from treadle.stores.base import ClaimRequest, Engine, Watch, WorkerRow
from treadle.version import __version__
from treadle.worker import host
from treadle.worker.chores import declare_local_dead, do_chores
from treadle.worker.executor import Executor
from treadle.worker.heartbeat import Heartbeat, LeaseCheck
from treadle.worker.inflight import Attempts, CellOwner, Inflight
from treadle.worker.settler import PAUSE, Settler

if TYPE_CHECKING:
    from treadle.app import Treadle

log = logging.getLogger("treadle")

POLL = 1.0
"""Seconds after which an idle worker looks by itself. Everything that wakes it earlier is a hint."""
SWITCH = 0.0005
"""Seconds for which Python code may keep the interpreter from a thread that comes back from the database. A settle
comes back many times: with Python's own 5 ms, it would wait until the running handlers have ended."""
REPLACE_ME = 75
"""The exit code of a worker whose threads are stuck: it has released its jobs and wants to be replaced."""


class Worker:
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
    ) -> None:
        self.app = app
        self.store = app.store
        self.concurrency = at_least_one("concurrency", concurrency)
        self.queues = queues
        if grace < 0 or beat <= 0:
            raise BadOption("grace, beat", (grace, beat), "seconds: a grace of 0 or more, a beat of more than 0")
        self.grace = grace
        self.id = self.name = ""
        self.claimed_total = 0
        self.outcomes: dict[OutcomeKind, int] = dict.fromkeys(OutcomeKind, 0)
        self._every = beat
        self._max_jobs = max_jobs
        self._inflight = inflight or Inflight.create(2 * self.concurrency)
        self._supervisor = self._inflight.supervisor
        self._hurry = asyncio.Event()
        """Set by a second signal: do not wait for what runs."""
        self._stop: asyncio.Event | None = None
        self._stopping = False
        self._registering = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    # Start and stop

    def run(self) -> int:
        """Work until SIGTERM or SIGINT: then stop claiming, finish what runs, release the rest. A second signal
        hurries. The exit code: 0, or REPLACE_ME."""
        sys.setswitchinterval(SWITCH)  # the process is ours
        return host.run_loop(self._run())

    async def _run(self) -> int:
        if self._supervisor is not None:
            host.raise_oom_score()
        self._stop = stop = host.until_signalled(again=self._hurry.set)
        async with self:
            while not stop.is_set() and not self._threads_are_stuck() and self._supervisor in (None, os.getppid()):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 1.0)
            log.info("worker %s stops; %d jobs are running", self.name, len(self._attempts.running))
            return REPLACE_ME if self._threads_are_stuck() else 0  # decided now: its threads may end while it stops

    def _threads_are_stuck(self) -> bool:
        """Too many threads were given up: only a new process has them back."""
        return self._supervisor is not None and len(self._attempts.given_up) > self.concurrency // 2

    async def __aenter__(self) -> Self:
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        self._loop = asyncio.get_running_loop()
        self._claimer = ThreadPoolExecutor(1, "treadle-claim")
        self._wakeup = Wakeup()
        self._idle = asyncio.Event()
        self._hooks = HookDispatcher(self.app.hooks, self.store.now)
        self._attempts = Attempts(self._inflight, self.outcomes)
        self._executor = Executor(self.app, self.concurrency, self._attempts)
        self._settler = Settler(self.store, self._attempts, self._hooks, self._wakeup.hint)
        self._leases = LeaseCheck(self.store, self._attempts, self._settler.thread)
        self._heartbeat = Heartbeat(self.store, self._every, self._attempts.time_left)
        await self._register_in_time()
        await self._wakeup.open(self.store)
        self._heartbeat.start()
        self.app._wakers.add(self._wakeup.wake)
        chores = do_chores(self.app, self._every)
        loops = self._claim_loop(), self._settler.run(), self._leases.run(), self._heartbeat_loop(), chores
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop claiming, let what runs end within `grace`, release the rest, and leave the database."""
        if not self._tasks:
            return
        claim, *others = self._tasks
        self._tasks = []
        self._stopping = True
        self.app._wakers.discard(self._wakeup.wake)
        self._wakeup.hint.set()
        self._attempts.changed.set()
        try:
            await self._wind_down(claim, others)
        except BaseException:  # the event loop is being closed, and cancels all of its tasks
            self._heartbeat.stop()  # its jobs no longer run: workers that see no beat rescue them
            self._wakeup.close()
            raise

    async def _wind_down(self, claim: asyncio.Task[None], others: Sequence[asyncio.Task[None]]) -> None:
        """In this order: the last claim, what runs, its outcomes, their hooks, the other tasks, the threads."""
        await claim
        await self._attempts.all_ended(self.grace, self._hurry)
        self._attempts.stop(StopReason.RELEASED, self._attempts.running)
        await self._attempts.all_ended(1.0)
        self._attempts.give_up_all()
        await self._attempts.all_settled()
        await self._hooks.close()
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.to_thread(self._leave)

    def _leave(self) -> None:
        """Delete this worker from the database and from the cells, and end the threads."""
        self._heartbeat.stop()
        self._heartbeat.join()
        self._wakeup.close()
        with contextlib.suppress(TreadleError):
            self.store.declare_dead(self.id, "its worker stopped", started=())
            self._inflight.clear()  # so that the supervisor does not take this exit for a crash
        self._executor.close()
        for thread in (self._claimer, self._settler.thread, self._wakeup.thread):
            thread.shutdown()
        if self._supervisor is None:  # then no other process has it, and a tick makes a new one each time
            self._inflight.close()

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
            except StoreUnusable as error:
                wanted = self._stop is not None and not self._stop.is_set()
                if not (wanted and self._inflight.has_predecessor and self._supervisor == os.getppid()):
                    raise
                log.warning("not registered yet: %s", error)
                await asyncio.sleep(PAUSE)

    def _register(self) -> None:
        """Appear in the database and in the cells, with an id that no worker has had before."""
        declare_local_dead(self.store)
        self._types = types = self.app.registry.types
        self.store.publish([job_type.policy for job_type in types.values()])
        id, slots, here = str(uuid.uuid4()), self.concurrency, host.identity(self._supervisor)
        self._inflight.sign(CellOwner(id, self.store.url))
        names = tuple(sorted(types))
        self.store.register(
            WorkerRow(
                id=id,
                name=self.name,
                concurrency=slots,
                queues=self.queues,
                types=names,
                host=here,
                version=__version__,
            )
        )
        self.id = self._heartbeat.worker = self._leases.worker = self._hooks.worker = id
        self._timeouts = {
            name: None if job_type.run == "process" else job_type.policy.timeout  # a child may take long to start
            for name, job_type in types.items()
        }

    async def _heartbeat_loop(self) -> None:
        """Follow what the heartbeat finds."""
        while True:
            news = await self._heartbeat.news.get()
            if isinstance(news, WorkerLost):
                await self._register_again(news.worker)
            else:
                self._leases.compare(news)

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
            free = self._room()
            if free <= 0:
                if self._max_jobs is not None and self._attempts.none_left:
                    self._idle.set()
                await self._attempts.change()
                continue
            self._wakeup.hint.clear()
            self._attempts.claiming = True
            claimed = await self._claim(free)
            if self.app.hooks.any:
                self._hooks.started(claimed)
            for job in claimed:
                self._executor.start(job, self._types[job.type])
            self._attempts.claiming = False
            await asyncio.sleep(0)  # handlers that never wait have ended after this, and their slots are free again
            if len(claimed) < free and not self._stopping:
                await self._until_due()

    def _room(self) -> int:
        """The number of jobs that may be claimed: one per free slot, unless too many are not settled yet."""
        if self._attempts.unsettled > self.concurrency:
            return 0
        free = self.concurrency - len(self._attempts.running) - len(self._attempts.given_up)
        return free if self._max_jobs is None else min(free, self._max_jobs - self.claimed_total)

    async def _claim(self, limit: int) -> list[ClaimedJob]:
        request = ClaimRequest(limit=limit, types=self._timeouts, queues=self.queues)
        try:
            claimed = await self._loop.run_in_executor(self._claimer, self.store.claim, self.id, request)
        except WorkerLost as error:
            await self._register_again(error.worker)
            return []
        except (StoreBusy, StoreUnusable) as error:
            log.warning("the claim failed: %s", error)
        except Exception:
            log.exception("the claim failed")
        else:
            self.claimed_total += len(claimed)
            return claimed
        await asyncio.sleep(PAUSE)
        return []

    async def _until_due(self) -> None:
        """Wait until there may be something to claim: a hint, a job that becomes due, or the next poll."""
        request = ClaimRequest(limit=1, types=self._timeouts, queues=self.queues)
        try:
            due = await self._loop.run_in_executor(self._claimer, self.store.due, request)
        except Exception as error:
            log.warning("the look for due jobs failed: %s", error)
            await asyncio.sleep(PAUSE)
            return
        if due.now or self._wakeup.hint.is_set():  # set during the look: what was settled may have follow-ups
            return
        if self._attempts.none_left:
            self._idle.set()
        await self._wakeup.wait(POLL if due.in_seconds is None else min(POLL, due.in_seconds))


class Wakeup:
    """Ends the wait of an idle worker: another process committed, this one enqueued, or a settle made room."""

    def __init__(self) -> None:
        self.hint = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.thread = ThreadPoolExecutor(1, "treadle-watch")
        self._watch: Watch | None = None
        self._watching: asyncio.Future[bool] | None = None

    async def open(self, store: Engine) -> None:
        self._watch = await self._loop.run_in_executor(self.thread, store.watch)

    def wake(self) -> None:
        """Give a hint, from any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self.hint.set)

    async def wait(self, seconds: float) -> None:
        """Until there is a hint, for at most this long. Meanwhile a thread watches for commits."""
        if self._watch is not None and (self._watching is None or self._watching.done()):
            self._watching = self._loop.run_in_executor(self.thread, self._watch.wait, POLL)
            self._watching.add_done_callback(lambda _: self.hint.set())
        timer = self._loop.call_later(seconds, self.hint.set)
        try:
            await self.hint.wait()
        finally:
            timer.cancel()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
