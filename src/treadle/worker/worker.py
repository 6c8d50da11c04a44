"""The worker: claim → run → settle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar

from treadle.errors import BadOption, StoreBusy, StoreUnusable, TreadleError, WorkerLost
from treadle.hooks import HookDispatcher
from treadle.job import ClaimedJob
from treadle.outcome import Outcome, OutcomeKind
from treadle.settings import at_least_one
from treadle.stores.base import Beat, ClaimRequest, Settled
from treadle.worker import host
from treadle.worker.chores import do_chores
from treadle.worker.executor import Executor
from treadle.worker.heartbeat import Heartbeat
from treadle.worker.inflight import Inflight
from treadle.worker.log import log, log_outcome
from treadle.worker.register import register
from treadle.worker.settler import PAUSE, Ended, Settler
from treadle.worker.signals import run_loop, until_signalled
from treadle.worker.slots import StopReason

if TYPE_CHECKING:
    from treadle.app import Treadle

T = TypeVar("T")

POLL = 1.0
"""Seconds after which an idle worker looks by itself. Everything that wakes it earlier is a hint."""
FLAGS = 0.5
"""Seconds between two looks for cancelled jobs, and between two writes of progress."""
SWITCH = 0.0005
"""Seconds for which Python code may keep the interpreter from a thread that comes back from the database. A settle
comes back many times: with Python's own 5 ms, it would wait until the handlers that run beside it have ended."""
WORN_OUT = 75
"""The exit code of a worker whose threads are stuck: it has released its jobs and wants to be started anew."""


class Worker:
    """One incarnation of a process that claims and runs.

    `concurrency`: how many jobs at once. `grace`: seconds that running jobs have to end when the worker stops; what
    is left is released without burning an attempt. `beat`: seconds between two heartbeats.
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
        board: Inflight | None = None,
    ) -> None:
        self.app = app
        self.store = app.store
        self.concurrency = at_least_one("concurrency", concurrency)
        self.queues = queues
        if grace < 0 or beat <= 0:
            raise BadOption("grace, beat", (grace, beat), "seconds: a grace of 0 or more, a beat of more than 0")
        self.grace = grace
        self.id = ""
        self.claimed_total = 0
        self.outcomes: dict[OutcomeKind, int] = dict.fromkeys(OutcomeKind, 0)
        self._every = beat
        self._max_jobs = max_jobs
        self._supervised = board is not None
        self._claiming = False
        self._board = board or Inflight.create(2 * self.concurrency)
        self._verbose = log.isEnabledFor(logging.INFO)
        self._hurry = asyncio.Event()
        self._stop: asyncio.Event | None = None
        self._stopping = False
        self._reborn = False
        self._unheld: set[int] = set()
        self._missing: set[int] = set()
        self._listening: asyncio.Future[bool] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # Life

    def run(self) -> int:
        """Work until SIGTERM or SIGINT: then stop claiming, finish what runs, release the rest. A second signal
        hurries. The exit code: 0, or WORN_OUT."""
        sys.setswitchinterval(SWITCH)  # the process is ours
        return run_loop(self._run())

    async def _run(self) -> int:
        supervisor = self._board.supervisor
        if self._supervised:
            host.raise_oom_score()
        self._stop = stop = until_signalled(again=self.hurry)
        async with self:
            while not stop.is_set() and not self._worn_out() and supervisor in (None, os.getppid()):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 1.0)
            log.info("worker %s stops; %d jobs are running", self.name, len(self._hands.running))
            return WORN_OUT if self._worn_out() else 0  # decided now: its threads may end while it stops

    @property
    def name(self) -> str:
        return host.name()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._work, self._freed, self._idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._claimer = ThreadPoolExecutor(1, "treadle-claim")
        self._watcher = ThreadPoolExecutor(1, "treadle-watch")
        self._settler = Settler(self.store, self._written, self._settled)
        self._teller = HookDispatcher(self.app.hooks, self.store.now)
        self._hands = Executor(self.app, self.concurrency, self._board, self._ended, self._freed.set)
        self._keeper = Heartbeat(self.store, self._every, self._from_thread(self._heard), self._from_thread(self._lost))
        await self._arrive_in_time()
        self._watch = await self._in(self._watcher, self.store.watch)
        self._keeper.start(self.id)
        self.app.wakers.add(self._wake)
        loops = [self._claim_loop(), self._settler.run(), self._flags_loop(), do_chores(self.app, self._every)]
        self._tasks = [self._loop.create_task(coroutine) for coroutine in loops]
        return self

    async def _arrive_in_time(self) -> None:
        """Who comes for one that died waits for the store; who comes first has to say that it cannot be used."""
        while True:
            try:
                return await self._in(self._claimer, self._arrive)
            except StoreUnusable as error:
                if not self._may_wait():
                    raise
                log.warning("not registered yet: %s", error)
                await asyncio.sleep(PAUSE)

    def _may_wait(self) -> bool:
        wanted = self._stop is not None and not self._stop.is_set() and self._board.supervisor == os.getppid()
        return wanted and self._board.in_turn

    def _arrive(self) -> None:
        self.id = register(self.app, self._board, self.name, self.concurrency, self.queues)
        self._types = {
            name: None if job_type.run == "process" else job_type.policy.timeout  # a child may take long to start
            for name, job_type in self.app.registry.types.items()
        }

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop claiming, let what runs end within `grace`, release the rest, and be gone from the database."""
        if not self._tasks:
            return
        claim, *others = self._tasks
        self._tasks = []
        self._stopping = True
        self._work.set()
        self._freed.set()
        try:
            await self._wind_down(claim, others)
        except BaseException:  # the loop is torn down around us, and cancels all it has
            self._fall_silent()
            raise

    async def _wind_down(self, claim: asyncio.Task[None], others: Sequence[asyncio.Task[None]]) -> None:
        await claim
        await self._hands_free(self.grace, self._hurry)
        self._hands.stop(StopReason.RELEASED)
        await self._hands_free(1.0)
        self._hands.let_go()
        await self._settler.none_left()
        await self._teller.close()
        self.app.wakers.discard(self._wake)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.to_thread(self._leave)

    def _fall_silent(self) -> None:
        """Nobody runs our jobs any more, so that no heart may say otherwise: whoever hears none rescues them."""
        self._keeper.fall_silent()
        self._watch.close()
        self.app.wakers.discard(self._wake)

    def hurry(self) -> None:
        """Do not wait for what runs."""
        self.grace = 0.0
        self._hurry.set()

    def _leave(self) -> None:
        self._keeper.stop()
        self._watch.close()
        with contextlib.suppress(TreadleError):
            self.store.declare_dead(self.id, "its worker stopped", started=())
            self._board.clear()  # so that the supervisor knows this exit from one that a handler made
        self._hands.close()
        for thread in (self._claimer, self._settler.thread, self._watcher):
            thread.shutdown()
        if not self._supervised:  # then nobody else has it, and a tick makes a new one each time
            self._board.close()

    async def _hands_free(self, seconds: float, hurry: asyncio.Event | None = None) -> None:
        """Until nothing runs, at most so long."""
        deadline = time.monotonic() + seconds
        while self._hands.running and time.monotonic() < deadline and not (hurry and hurry.is_set()):
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._freed.wait(), min(0.2, max(0.0, deadline - time.monotonic())))

    async def drained(self) -> None:
        """Until nothing runs, nothing waits to be settled, and nothing is due (or enough was claimed)."""
        self._idle.clear()
        self._work.set()
        await self._idle.wait()

    def _worn_out(self) -> bool:
        """Too many threads were given up: a new process is the only way to get them back."""
        return self._supervised and len(self._hands.given_up) > self.concurrency // 2

    # Claim

    async def _claim_loop(self) -> None:
        while not self._stopping:
            free = self._room()
            if free <= 0:
                self._freed.clear()
                if self._room() <= 0:
                    await self._freed.wait()
                continue
            self._work.clear()
            self._claiming = True
            claimed = await self._claim(free)
            if self.app.hooks:
                self._teller.add(self.app.hooks.started(claimed, self.id))
            for job in claimed:
                self._hands.begin(job, self.app.registry[job.type])
            self._claiming = False
            await asyncio.sleep(0)  # handlers that never wait have ended after this, and their slots are free again
            if len(claimed) < free and not self._stopping:
                await self._until_due()

    def _room(self) -> int:
        """How many more jobs may be taken: a free slot each, unless too many are not settled yet."""
        room = self.concurrency - self._hands.taken if len(self._settler) <= self.concurrency else 0
        if self._max_jobs is not None:
            room = min(room, self._max_jobs - self.claimed_total)
            if room <= 0:
                self._tell_if_idle()
        return room

    async def _claim(self, limit: int) -> list[ClaimedJob]:
        try:
            claimed = await self._in(self._claimer, self.store.claim, self.id, self._wanted(limit))
        except WorkerLost as error:
            await self._reincarnate(error.worker)
            return []
        except (StoreBusy, StoreUnusable) as error:
            log.warning("nothing claimed: %s", error)
        except Exception:
            log.exception("nothing claimed")
        else:
            self.claimed_total += len(claimed)
            return claimed
        await asyncio.sleep(PAUSE)
        return []

    def _wanted(self, limit: int) -> ClaimRequest:
        return ClaimRequest(limit=limit, types=self._types, queues=self.queues)

    async def _until_due(self) -> None:
        """Wait until there may be something to claim: a hint, a job that becomes due, or the next poll."""
        try:
            due = await self._in(self._claimer, self.store.due, self._wanted(1))
        except Exception as error:
            log.warning("nothing seen: %s", error)
            await asyncio.sleep(PAUSE)
            return
        if due.now or self._work.is_set():  # set meanwhile: there may be follow-ups of what was settled
            return
        self._tell_if_idle()
        self._hear_of_commits()
        seconds = POLL if due.in_seconds is None else min(POLL, due.in_seconds)
        timer = self._loop.call_later(seconds, self._work.set)
        try:
            await self._work.wait()
        finally:
            timer.cancel()

    def _hear_of_commits(self) -> None:
        """Have a thread wait for commits while there is nothing to claim; it says so by setting `_work`."""
        if self._listening is None or self._listening.done():
            self._listening = self._loop.run_in_executor(self._watcher, self._watch.wait, POLL)
            self._listening.add_done_callback(lambda _: self._work.set())

    def _tell_if_idle(self) -> None:
        if not self._hands.running and not len(self._settler):
            self._idle.set()

    # Run and settle

    def _ended(self, claimed: ClaimedJob, outcome: Outcome | None) -> None:
        """A slot is free; its outcome, if there is one to write, will be settled with those that pile up meanwhile."""
        if outcome is not None:
            self.outcomes[outcome.kind] += 1
            if outcome.kind is not OutcomeKind.COMPLETED or self._verbose:
                log_outcome(claimed, outcome)
        if outcome is None or outcome.written:
            self._board.end(claimed.number)
            if outcome is not None and self.app.hooks:
                self._teller.add(self.app.hooks.ended([(claimed, outcome)], None, self.id))
            self._work.set()  # its follow-ups are there already, and a limited type may have room now
        else:
            self._settler.add(claimed, outcome)
        self._freed.set()

    def _written(self, settled: Settled) -> None:
        if self.app.hooks:
            self._teller.add(self.app.hooks.ended(settled.written, settled.at, self.id))

    def _settled(self, batch: Sequence[Ended]) -> None:
        for claimed, _ in batch:
            self._board.end(claimed.number)
        self._work.set()  # a limited type may have room now
        self._freed.set()

    # What others want

    async def _flags_loop(self) -> None:
        """Look for what others want of the jobs in hand, and tell how far those are."""
        while True:
            await asyncio.sleep(FLAGS)
            if self._hands.running:
                with contextlib.suppress(TreadleError):
                    await self._look_at_flags()

    async def _look_at_flags(self) -> None:
        if progress := self._hands.newest_progress():
            await self._in(self._settler.thread, self.store.save_progress, progress)
        for number in await self._in(self._settler.thread, self.store.cancelled, self.id):
            self._hands.stop(StopReason.CANCELLED, number)

    def _heard(self, beat: Beat) -> None:
        """What the heartbeat found in our name: cancelled jobs, leases we do not know of, and leases that are gone."""
        running = self._hands.running
        unheld = beat.mine.keys() - running.keys() - self._settler.numbers
        # A lease that was just settled may look wrong at one beat; not at two. One that is being claimed may do so
        # at many, if a handler blocks the loop.
        if not self._claiming:
            if lost_replies := unheld & self._unheld:
                self._settler.thread.submit(self.store.release_unheld, self.id, lost_replies)
            self._unheld = unheld
        for number, cancelled in beat.mine.items():
            if cancelled:
                self._hands.stop(StopReason.CANCELLED, number)
        missing = {number for number in running.keys() - beat.mine.keys() if not running[number].run.written}
        for number in missing & self._missing:
            self._hands.stop(StopReason.LOST, number)
        self._missing = missing

    def _lost(self, worker: str) -> None:
        self._loop.create_task(self._reincarnate(worker))

    async def _reincarnate(self, worker: str) -> None:
        """Declared dead: what runs is somebody else's now. Drop it, and start over under a new name."""
        if self._stopping or self._reborn or worker != self.id:  # others may have noticed too, and told us later
            return
        self._reborn = True
        try:
            self._hands.stop(StopReason.LOST)
            await self._in(self._claimer, self._arrive)
            self._keeper.worker = self.id
            log.warning("worker %s goes on as %s", self.name, self.id)
        except TreadleError as error:
            log.warning("not registered anew yet: %s", error)
            await asyncio.sleep(PAUSE)
        finally:
            self._reborn = False

    # Threads

    async def _in(self, executor: ThreadPoolExecutor, call: Callable[..., T], *args: Any) -> T:
        return await self._loop.run_in_executor(executor, call, *args)

    def _from_thread(self, call: Callable[..., None]) -> Callable[..., None]:
        def threadsafe(*args: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call, *args)

        return threadsafe

    def _wake(self) -> None:
        """May be called from any thread."""
        self._from_thread(self._work.set)()
