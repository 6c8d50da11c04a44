"""The supervisor: keeps worker processes alive, and returns the jobs of those that die.

It runs none of the user's code and has no threads, so that what kills a worker does not kill it.
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

from treadle.errors import TreadleError
from treadle.stores import open_store
from treadle.worker import host
from treadle.worker.child import how_it_ended
from treadle.worker.inflight import VARIABLE, Inflight, Owner
from treadle.worker.settler import PAUSE
from treadle.worker.worker import WORN_OUT

log = logging.getLogger("treadle")

SHORT_LIFE = 1.0
"""Seconds: a child that dies sooner did not get far."""
LONGEST_PAUSE = 2.0


class DeadWorker(NamedTuple):
    """A worker that has died, and whose jobs are still in its hands."""

    owner: Owner
    how: str
    started: frozenset[int]
    outside: bool

    def declare_dead(self) -> bool:
        """Return its jobs. False if the store cannot be used now."""
        store = open_store(self.owner.url)
        try:
            returned = store.declare_dead(
                self.owner.worker, f"its worker {self.how}", started=self.started, outside=self.outside
            )
            log.warning("a worker process %s; %d jobs returned", self.how, returned)
        except TreadleError as error:
            log.warning("a worker process %s; its jobs will be returned later: %s", self.how, error)
            return False
        finally:
            store.close()
        return True


class ProcessSlot:
    """One place for a worker process: the board that outlives it, and who sits there now."""

    def __init__(self, command: Sequence[str], cells: int) -> None:
        self._command = list(command)
        self.board = Inflight.create(cells)
        self.process: subprocess.Popen[bytes] | None = None
        self.vacant_until: float | None = 0.0
        """When to start the next worker here; None: never again."""
        self._started_at = 0.0
        self._memory_kills: int | None = None
        self._pause = 0.0

    def fill(self, *, in_turn: bool) -> None:
        """Start a worker, in a process group of its own: a Ctrl-C is for the supervisor to pass on."""
        self.board.clear()
        self._started_at = time.monotonic()
        self._memory_kills = host.out_of_memory_kills()
        self.vacant_until = None
        environment = {**os.environ, VARIABLE: self.board.for_a_child(in_turn=in_turn)}
        self.process = subprocess.Popen(
            self._command, env=environment, pass_fds=(self.board.fd,), stdin=subprocess.DEVNULL, process_group=0
        )

    def leave(self, code: int, *, again: bool) -> None:
        """The worker has ended. If it died, the next one comes at once, or later and later if they all die at once."""
        if self.process:
            self.process.returncode = code  # it was waited for already
        self.process = None
        lived = time.monotonic() - self._started_at
        self._pause = 0.0 if lived > SHORT_LIFE else min(LONGEST_PAUSE, max(0.05, self._pause * 2))
        self.vacant_until = time.monotonic() + self._pause if again else None

    def death(self, owner: Owner, code: int) -> DeadWorker:
        """What is to be done for a worker that has died: only what it had started is charged."""
        outside = self._from_outside(code)
        started = self.board.started(apart=outside)  # what ran in a child of its own did not kill the worker
        return DeadWorker(owner, how_it_ended(code), frozenset(started), outside)

    def _from_outside(self, code: int) -> bool:
        """A SIGKILL is somebody's decision, unless the kernel's for want of memory: that may be a job's doing."""
        kills = host.out_of_memory_kills()
        return code == -signal.SIGKILL and kills is not None and kills == self._memory_kills


class Supervisor:
    """Starts workers, starts them again, and stops them together."""

    def __init__(self, command: Sequence[str], processes: int, cells: int) -> None:
        self._seats = [ProcessSlot(command, cells) for _ in range(processes)]
        self._stopping = False
        self._anybody_worked = False
        self._unburied: list[DeadWorker] = []
        self._bury_again_at = 0.0

    def run(self) -> int:
        """Until a signal stops it, or all workers have ended by themselves. The exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._stop(number))
        code = 0
        while self._fill_seats():
            self._bury_again()
            waiting = bool(self._unburied) or any(seat.vacant_until is not None for seat in self._seats)
            if ended := _next_to_end(wait=not waiting):
                code = self._mind(*ended) or code
            elif waiting:
                time.sleep(0.02)
        return code

    def _fill_seats(self) -> bool:
        """Whether there is anybody to mind."""
        for seat in self._seats:
            if seat.vacant_until is not None and time.monotonic() >= seat.vacant_until and not self._stopping:
                seat.fill(in_turn=self._anybody_worked)
                if self._stopping:  # the signal came while it was being started
                    self._pass_on(signal.SIGTERM)
        return any(seat.process or (seat.vacant_until is not None and not self._stopping) for seat in self._seats)

    def _mind(self, pid: int, code: int) -> int:
        """One child has ended: bury it, and fill its seat unless it ended on purpose."""
        seat = next((seat for seat in self._seats if seat.process and seat.process.pid == pid), None)
        if seat is None:
            return 0
        self._anybody_worked |= any(seat.board.owner() is not None for seat in self._seats)
        owner = seat.board.owner()
        if owner is not None:  # it did not leave, whatever its exit code says: a handler may have made it
            self._bury(seat.death(owner, code))
            seat.leave(code, again=True)
        elif code > 0 and code != WORN_OUT and not self._stopping and not self._anybody_worked:
            # It never got to work: the next one would not either. (Once somebody did, it may be the store's fault.)
            seat.leave(code, again=False)
            self._stop(signal.SIGTERM)
            return code
        else:
            seat.leave(code, again=code != 0)
        return 0

    def _bury(self, death: DeadWorker) -> None:
        if not death.declare_dead():
            self._unburied.append(death)
            self._bury_again_at = time.monotonic() + PAUSE

    def _bury_again(self) -> None:
        """Nobody else knows what they had started: others would charge and suspect all of their jobs."""
        if self._unburied and time.monotonic() >= self._bury_again_at:
            deaths, self._unburied = self._unburied, []
            for death in deaths:
                self._bury(death)

    def _stop(self, number: int) -> None:
        self._stopping = True
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        for seat in self._seats:
            if seat.process:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(seat.process.pid, number)


def supervise(command: Sequence[str], processes: int, cells: int) -> int:
    """Keep `processes` children running `command`, each with a board of `cells`. Returns the exit code."""
    return Supervisor(command, processes, cells).run()


def _next_to_end(*, wait: bool) -> tuple[int, int] | None:
    """Any child that has ended: its pid and its exit code, negative for a signal."""
    try:
        pid, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None
