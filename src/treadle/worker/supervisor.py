"""The supervisor: keeps worker processes alive, and returns the jobs of those that die.

It runs none of the user's code, and no threads but those that answer probes, so that what kills a worker does not kill
it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import NamedTuple

from treadle.stores import open_store
from treadle.units import plural
from treadle.worker import host
from treadle.worker.child import how_it_ended
from treadle.worker.health import VARIABLE as REPORT_VARIABLE
from treadle.worker.health import ReportFile, answer
from treadle.worker.health_server import Answer, HealthServer, parse
from treadle.worker.inflight import VARIABLE, CellOwner, Inflight
from treadle.worker.settler import PAUSE
from treadle.worker.worker import STOP_SECONDS

log = logging.getLogger("treadle")

SHORT_LIFE = 1.0
"""Seconds: a worker that dies sooner has probably done nothing."""
LONGEST_PAUSE = 2.0
"""Seconds between two starts of a worker that dies at once."""
KILL_MARGIN = STOP_SECONDS + 5.0
"""Seconds after the grace at which a worker that was asked to stop is killed."""


class DeadWorker(NamedTuple):
    """A worker that has died and still holds its leases."""

    owner: CellOwner
    how: str
    started: frozenset[int]
    outside: bool

    def declare_dead(self) -> bool:
        """Return its jobs. False if the store cannot be used now."""
        reason = f"its worker {self.how}"
        try:
            with contextlib.closing(open_store(self.owner.url)) as store:
                returned = store.declare_dead(self.owner.worker, reason, started=self.started, outside=self.outside)
        except Exception as error:  # even one of a driver: only this process replaces its workers
            log.warning("a worker process %s; its jobs will be returned later: %s", self.how, str(error) or repr(error))
            return False
        log.warning("a worker process %s; %s returned", self.how, plural(returned, "job"))
        return True


class ProcessSlot:
    """A slot for one worker process after another, and the in-flight cells that outlive each of them."""

    def __init__(self, command: Sequence[str], cells: int, reports: ReportFile | None = None) -> None:
        self._command = list(command)
        self.reports = reports
        self.inflight = Inflight.create(cells)
        self.process: subprocess.Popen[bytes] | None = None
        self.start_at: float | None = 0.0
        """When to start the next worker, by `time.monotonic()`; None: one runs, or no other is to come."""
        self.was_killed = False
        """By the supervisor, because it did not stop."""
        self._started_at = 0.0
        self._memory_kills: int | None = None
        self._pause = 0.0

    def start(self, *, has_predecessor: bool) -> None:
        """Start a worker, in a process group of its own: the supervisor passes on a Ctrl-C."""
        self.inflight.clear()
        self._started_at = time.monotonic()
        self._memory_kills = host.out_of_memory_kills()
        self.start_at = None
        environment = {**os.environ, VARIABLE: self.inflight.for_child(has_predecessor=has_predecessor)}
        fds = [self.inflight.fd]
        if self.reports is not None:
            self.reports.clear()
            environment[REPORT_VARIABLE] = str(self.reports.fd)
            fds.append(self.reports.fd)
        try:
            self.process = subprocess.Popen(
                self._command, env=environment, pass_fds=fds, stdin=subprocess.DEVNULL, process_group=0
            )
        except OSError as error:  # too many processes, or no memory
            log.warning("a worker process cannot be started now: %s", error)
            self.start_at = time.monotonic() + PAUSE

    def send(self, number: int) -> None:
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def ended(self, code: int, *, again: bool) -> None:
        """The worker has ended. The next one starts at once, or later and later if each dies at once."""
        if self.process:
            self.process.returncode = code  # it was waited for already
        self.process = None
        lived = time.monotonic() - self._started_at
        self._pause = 0.0 if lived > SHORT_LIFE else min(LONGEST_PAUSE, max(0.05, self._pause * 2))
        self.start_at = time.monotonic() + self._pause if again else None

    def dead_worker(self, owner: CellOwner, code: int) -> DeadWorker:
        """The worker that has died, and the leases to charge: only what it had started, and none if it was stopped."""
        if self.was_killed:
            return DeadWorker(owner, "did not stop in time and was killed", frozenset(), outside=True)
        # A SIGKILL comes from outside, unless the kernel sent it because memory ran out: a job may have caused that.
        kills = host.out_of_memory_kills()
        outside = code == -signal.SIGKILL and kills is not None and kills == self._memory_kills
        started = self.inflight.started(apart=outside)  # what ran in a child of its own did not kill the worker
        return DeadWorker(owner, how_it_ended(code), frozenset(started), outside)


class Supervisor:
    """Keeps `processes` children running `command`, each with this many in-flight cells, and stops them together.

    Each has `grace` seconds to end its jobs. One that does not stop is killed a while after that.
    """

    def __init__(
        self, command: Sequence[str], processes: int, cells: int, grace: float, health: str | None = None
    ) -> None:
        probed = health is not None
        self._slots = [ProcessSlot(command, cells, ReportFile.create() if probed else None) for _ in range(processes)]
        self.health = None if health is None else HealthServer(parse(health), self._answer)
        self._grace = grace
        self._stopping = False
        self._any_registered = False
        self._dead: list[DeadWorker] = []
        self._retry_at = 0.0

    def run(self) -> int:
        """Until a signal stops it, or all workers have ended by themselves. Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._stop(number))
        signal.signal(signal.SIGALRM, lambda *_: self._kill())
        if self.health is not None:
            self.health.start()
        code = 0
        while self._start_workers():
            self._declare_dead()
            waiting = bool(self._dead) or any(slot.start_at is not None for slot in self._slots)
            if ended := _next_exit(wait=not waiting):
                code = self._handle_exit(*ended) or code
            elif waiting:
                time.sleep(0.02)
        return code

    def _answer(self, path: str) -> Answer | None:
        return answer(path, [slot.reports.read() for slot in self._slots if slot.reports is not None])

    def _start_workers(self) -> bool:
        """Start what is due. Whether there is a worker to wait for."""
        for slot in self._slots:
            if slot.start_at is not None and time.monotonic() >= slot.start_at and not self._stopping:
                slot.start(has_predecessor=self._any_registered)
                if self._stopping:  # the signal came while it was being started
                    self._stop(signal.SIGTERM)
        return any(slot.process or (slot.start_at is not None and not self._stopping) for slot in self._slots)

    def _handle_exit(self, pid: int, code: int) -> int:
        """Return the jobs of a worker that died, and start another one, unless it ended on purpose."""
        slot = next((slot for slot in self._slots if slot.process and slot.process.pid == pid), None)
        if slot is None:
            return 0
        registered = any(slot.inflight.owner() is not None for slot in self._slots)
        self._any_registered |= registered or code == host.REPLACE_ME
        owner = slot.inflight.owner()
        if owner is not None:  # it did not leave, whatever its exit code says: a handler may have ended it
            self._dead.append(slot.dead_worker(owner, code))
            self._retry_at = 0.0
            self._declare_dead()
            slot.ended(code, again=True)
        elif code > 0 and code != host.REPLACE_ME and not self._stopping and not self._any_registered:
            # It could not register, and the next one could not either. (Once one did, it may be the store's fault.)
            slot.ended(code, again=False)
            self._stop(signal.SIGTERM)
            return code
        else:
            slot.ended(code, again=code != 0)
        return 0

    def _declare_dead(self) -> None:
        """Only the supervisor knows what they had started: others would charge and suspect all of their jobs."""
        if self._dead and time.monotonic() >= self._retry_at:
            self._dead = [worker for worker in self._dead if not worker.declare_dead()]
            self._retry_at = time.monotonic() + PAUSE

    def _stop(self, number: int) -> None:
        """Start no more workers, and pass the signal on to those that run. They have until the alarm."""
        if not self._stopping:
            self._stopping = True
            signal.setitimer(signal.ITIMER_REAL, self._grace + KILL_MARGIN)
        for slot in self._slots:
            slot.send(number)

    def _kill(self) -> None:
        """End the workers that did not stop: a handler may block their event loop."""
        for slot in self._slots:
            if slot.process:
                log.error("worker process %d did not stop in time and is killed", slot.process.pid)
                slot.was_killed = True
                slot.send(signal.SIGKILL)


def _next_exit(*, wait: bool) -> tuple[int, int] | None:
    """Any child that has ended: its pid and its exit code, negative for a signal."""
    try:
        pid, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None
