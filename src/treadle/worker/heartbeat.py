"""The heartbeat: counts up, declares dead the workers whose count stops, and checks this worker's leases."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from treadle import clock
from treadle.diagnosis import UNBLOCK
from treadle.errors import TreadleError, WorkerLost
from treadle.job import ClaimedJob
from treadle.outcome import StopReason
from treadle.stores.base import Engine, Store
from treadle.stores.rows import Beat
from treadle.units import format_duration, plural
from treadle.worker import host
from treadle.worker.inflight import Attempts, Inflight
from treadle.worker.parts import Parts
from treadle.worker.stall import blocking_line

log = logging.getLogger("treadle")

STILL = 3
"""Beats of this worker during which another worker's count must not change before that worker is dead."""
AGAIN = 0.5
"""Seconds after which a failed beat is tried again. If it waited for the next one, other workers could declare this one
dead."""
BLOCKED_SECONDS = 300.0
"""After this long, a worker whose event loop is blocked is as good as dead."""
FLAGS = 0.5
"""Seconds between two looks for cancelled jobs, and between two writes of progress."""


TimeLeft = Sequence[tuple[ClaimedJob, int]]
"""Leases, and the microseconds until their timeouts."""


class Heartbeat(threading.Thread):
    """A thread of its own, so that a handler that blocks the event loop does not stop the heartbeat.

    Each beat vouches for the leases of `time_left`: if the database's clock steps, their deadlines follow. It puts into
    `news` what it found: this worker's leases, or that this worker was declared dead. It also asks the event loop for
    an answer. While there is none, the worker claims nothing, each beat says that it is stalled, and what `give_up`
    names is released: jobs that wait for a slot. The log has the line that blocks it, and the types `on_loop`.

    No clocks are compared: a worker is dead if its count did not change during three successful beats of this one.
    After an outage or a suspend every worker's first beat comes late, and none is counted as more than one.
    """

    def __init__(
        self,
        store: Engine,
        every: float,
        time_left: Callable[[], TimeLeft],
        give_up: Callable[[], Collection[int]],
        on_loop: Callable[[], Collection[str]],
        inflight: Inflight,
        parts: Parts,
    ) -> None:
        super().__init__(name="treadle-heartbeat", daemon=True)
        self._inflight = inflight
        self._parts = parts
        self.worker = ""
        self.news: asyncio.Queue[Beat | WorkerLost] = asyncio.Queue()
        self._store = store
        self._every = every
        self._time_left = time_left
        self._give_up, self._on_loop = give_up, on_loop
        self._stopping = threading.Event()
        self._seen: dict[str, tuple[int, int]] = {}
        """The count of each worker, and for how many beats it has not changed."""
        self._loop, self._thread_of_loop = asyncio.get_running_loop(), threading.get_ident()
        self._has_stalled = False
        """Whether the loop was blocked at the last beat."""
        self._asked_at: float | None = None
        """When the event loop was asked for an answer that it has not given yet, by `time.monotonic()`."""
        self._beaten_at = time.monotonic()
        """When the last beat was stored."""
        self._failing = False
        self._buried: str | None = None
        """The id under which this worker has declared itself dead."""

    def stop(self) -> None:
        """Stop, without waiting for a beat that is under way."""
        self._stopping.set()

    @property
    def trouble(self) -> str:
        """That the database does not answer, or '': without where it is, because probes are public."""
        late = time.monotonic() - self._beaten_at > STILL * self._every
        return "the database cannot be used" if self._failing or late else ""

    def run(self) -> None:
        try:
            self._beat_until_stopped()
        except BaseException as error:
            self._parts.fail_from_thread("the heartbeat", error)

    def _beat_until_stopped(self) -> None:
        pause = self._every
        while not self._stopping.wait(pause * random.uniform(0.9, 1.1)):
            pause = self._every
            try:
                if self.worker != self._buried:
                    self._report(self._beat())
                    self._beaten_at, self._failing = time.monotonic(), False
            except WorkerLost as error:
                log.warning("%s", error)
                self._seen.clear()
                self._report(error)
            except TreadleError as error:
                log.warning("no heartbeat: %s", error)
                self._failing = True
                pause = min(AGAIN, self._every)
            except Exception:
                log.exception("no heartbeat")

    def _report(self, news: Beat | WorkerLost) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self.news.put_nowait, news)

    def _beat(self) -> Beat:
        """Count up, and declare dead the workers whose count has stopped."""
        stalled_for = self._stalled_for()
        if stalled_for > BLOCKED_SECONDS:
            self._end(f"its event loop was blocked for {stalled_for:.0f} s")
        was_stalled, self._has_stalled = self._has_stalled, stalled_for > 0
        if self._has_stalled and not was_stalled:
            self._log_stall(stalled_for)
        if stalled_for and (unstarted := self._give_up()):
            self._store.release_unheld(self.worker, unstarted)
        beat = self._store.beat(self.worker, self._time_left(), clock.seconds(stalled_for))
        for worker in self._stood_still(beat):
            returned = self._store.declare_dead(worker, "its worker stopped beating", beats=beat.workers[worker])
            jobs = plural(returned, "job")
            log.warning("worker %s is dead: its heartbeat stopped; %s returned", worker, jobs)
        return beat

    def _stalled_for(self) -> float:
        """Seconds for which the event loop has been blocked, if that is longer than a beat; else 0."""
        waited = 0.0 if self._asked_at is None else time.monotonic() - self._asked_at
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._answer)
        return waited if waited > 0.5 * self._every else 0.0

    def _log_stall(self, seconds: float) -> None:
        line, types = blocking_line(self._thread_of_loop), ", ".join(self._on_loop()) or "no jobs"
        text = "the event loop of worker %s has been blocked for %s, at %s; on it: %s; %s"
        log.warning(text, self.worker, format_duration(seconds), line or "an unknown line", types, UNBLOCK)

    def _answer(self) -> None:
        self._asked_at = None

    def _end(self, reason: str) -> None:
        """Return the jobs of this worker. If it has a supervisor, end the process; else it registers again when its
        event loop goes on."""
        log.error("worker %s ends: %s", self.worker, reason)
        started = self._inflight.started(apart=False)
        self._store.declare_dead(self.worker, reason, started=started)
        if self._inflight.supervisor is not None:
            os._exit(host.REPLACE_ME)
        self._buried = self.worker
        raise WorkerLost(self.worker)

    def _stood_still(self, beat: Beat) -> Collection[str]:
        seen: dict[str, tuple[int, int]] = {}
        for worker, count in beat.workers.items():
            before, still = self._seen.get(worker, (-1, 0))
            seen[worker] = (count, still + 1 if count == before else 0)
        self._seen = seen
        return [worker for worker, (_, still) in seen.items() if still >= STILL and worker != self.worker]


class LeaseCheck:
    """Compares the leases in the database with the attempts that run: cancelled, lost, or unknown to this worker.

    Its writes share the settler's thread, so that they never wait for a settle's writer.
    """

    def __init__(self, store: Store, attempts: Attempts, thread: ThreadPoolExecutor) -> None:
        self._store = store
        self._attempts = attempts
        self._thread = thread
        self._unheld: set[int] = set()
        self._missing: set[int] = set()
        self.worker = ""

    async def run(self) -> None:
        """Until cancelled: look at the flags of what runs."""
        while True:
            await asyncio.sleep(FLAGS)
            if self._attempts.running:
                try:
                    await self._look_at_flags()
                except TreadleError as error:
                    log.debug("no look for cancelled jobs: %s", error)
                except Exception:
                    log.exception("no look for cancelled jobs")

    async def _look_at_flags(self) -> None:
        """Store new progress and lines of logs, and stop what was cancelled."""
        loop = asyncio.get_running_loop()
        if progress := self._attempts.new_progress():
            await loop.run_in_executor(self._thread, self._store.save_progress, progress)
        if logged := self._attempts.new_lines():
            new = [(claimed, lines) for claimed, _, lines in logged]
            await loop.run_in_executor(self._thread, self._store.save_logs, new)
            for _, buffer, lines in logged:
                buffer.saved(lines)
        cancelled = await loop.run_in_executor(self._thread, self._store.cancelled, self.worker)
        self._attempts.stop(StopReason.CANCELLED, cancelled)

    def compare(self, beat: Beat) -> None:
        """Stop what a beat shows to be cancelled or lost, and release leases that this worker does not know of."""
        running = self._attempts.running
        unheld = beat.leases.keys() - self._attempts.numbers
        # A lease that was just settled may look wrong at one beat, but not at two. One that is being claimed may do so
        # at many, if a handler blocks the event loop.
        if not self._attempts.claiming:
            if lost_replies := unheld & self._unheld:
                self._thread.submit(self._store.release_unheld, self.worker, lost_replies)
            self._unheld = unheld
        self._attempts.stop(StopReason.CANCELLED, [number for number, cancelled in beat.leases.items() if cancelled])
        missing = {number for number in running.keys() - beat.leases.keys() if not running[number].run.written}
        self._attempts.stop(StopReason.LOST, missing & self._missing)
        self._missing = missing
