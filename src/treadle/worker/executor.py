"""What a worker has in hand: the attempts that run in its slots, each until it has an outcome."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from treadle import clock
from treadle.context import Run
from treadle.errors import TreadleError
from treadle.job import ClaimedJob, Progress
from treadle.outcome import Outcome
from treadle.worker import child
from treadle.worker.log import job_ref, log
from treadle.worker.slots import AsyncSlots, Execute, RunningAttempt, StopReason, ThreadSlots, in_this_thread

if TYPE_CHECKING:
    from treadle.app import Treadle
    from treadle.registry import JobType
    from treadle.worker.inflight import Inflight


class Executor:
    """Begins attempts where they belong, and says of each how it ended.

    `ended` is told of every claimed job once: with its outcome, or None if there is nothing to settle. `freed` is told
    when the thread of one that was given up has come to its end.
    """

    def __init__(
        self,
        app: Treadle,
        concurrency: int,
        board: Inflight,
        ended: Callable[[ClaimedJob, Outcome | None], None],
        freed: Callable[[], None],
    ) -> None:
        self._store = app.store
        self._ended = ended
        self._freed = freed
        self._loop = asyncio.get_running_loop()
        self._async_slots = AsyncSlots(self._left_its_slot, board, app.tracing)
        self._thread_slots = self._threads(app, lambda: in_this_thread(board), concurrency)
        self._process_slots = self._threads(app, lambda: child.Child(app, board), concurrency)
        # A crowd of them at once could be what killed the worker, and each costs the start of a process.
        self._suspect_slots = self._threads(app, lambda: child.Child(app, board), os.cpu_count() or 1)
        self.running: dict[int, RunningAttempt] = {}
        self.given_up: set[int] = set()
        """Attempts that timed out in a thread. They are settled; their slots are still taken."""
        self._progress: dict[int, tuple[ClaimedJob, Progress]] = {}

    @property
    def taken(self) -> int:
        """How many slots are."""
        return len(self.running) + len(self.given_up)

    def begin(self, claimed: ClaimedJob, job_type: JobType) -> None:
        running = RunningAttempt(Run(claimed, self._store, self._report), job_type)
        self.running[claimed.number] = running
        slots = self._slots_for(claimed, job_type)
        if (timeout := job_type.timeout) is not None and slots is not self._async_slots:
            running.started = lambda: self._loop.call_soon_threadsafe(self._started, running, timeout)
        slots.put(running)

    def stop(self, why: StopReason, number: int | None = None) -> None:
        """Make one attempt end, or all of them."""
        for running in [r for n, r in self.running.items() if number in (None, n)]:
            running.stop(why)

    def let_go(self) -> None:
        """Give up what does not end. A thread cannot be stopped, but its job can be given back."""
        for running in list(self.running.values()):
            self._end(running, running.stopped())

    def newest_progress(self) -> list[tuple[ClaimedJob, Progress]]:
        """What handlers have reported since the last call."""
        progress, self._progress = self._progress, {}
        return list(progress.values())

    def close(self) -> None:
        for slots in (self._async_slots, self._thread_slots, self._process_slots, self._suspect_slots):
            slots.close()

    def _threads(self, app: Treadle, execute: Callable[[], Execute], limit: int) -> ThreadSlots:
        return ThreadSlots(self._left_its_slot, execute, limit, app.tracing)

    def _slots_for(self, claimed: ClaimedJob, job_type: JobType) -> AsyncSlots | ThreadSlots:
        if claimed.suspicion and child.can_run(job_type):
            return self._suspect_slots
        if job_type.run == "process":
            return self._process_slots
        return self._async_slots if job_type.run == "async" else self._thread_slots

    def _report(self, claimed: ClaimedJob, progress: Progress) -> None:
        self._progress[claimed.number] = (claimed, progress)

    def _started(self, running: RunningAttempt, timeout: float) -> None:
        if running.ended:
            return
        running.timer = self._loop.call_later(timeout, self._timed_out, running)
        if running.run.claimed.deadline is None:  # its child had to start, or a suspect to wait for its turn
            self._loop.run_in_executor(None, self._set_deadline, running.run.claimed, timeout)

    def _set_deadline(self, claimed: ClaimedJob, timeout: float) -> None:
        with contextlib.suppress(TreadleError):  # if the lease is lost, settling it will say so
            self._store.extend(claimed, clock.seconds(timeout))

    def _timed_out(self, running: RunningAttempt) -> None:
        """A child is killed. A thread is given up: its job is settled now, its slot stays taken until it ends."""
        can_kill = running.kill is not None
        running.stop(StopReason.TIMED_OUT)
        if not can_kill and not running.ended:
            self.given_up.add(running.run.claimed.number)
            log.warning("job %s (%s) timed out in a thread, which cannot be stopped", *job_ref(running.run.claimed))
            self._end(running, running.stopped())

    def _left_its_slot(self, running: RunningAttempt, outcome: Outcome | None) -> None:
        number = running.run.claimed.number
        if number in self.given_up:
            self.given_up.discard(number)
            self._freed()
        elif number in self.running:
            self._end(running, outcome)

    def _end(self, running: RunningAttempt, outcome: Outcome | None) -> None:
        claimed = running.run.claimed
        del self.running[claimed.number]
        self._progress.pop(claimed.number, None)
        if running.timer is not None:
            running.timer.cancel()
        self._ended(claimed, outcome)
