"""Runs handlers in child processes, which can be killed and die alone."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec

from treadle import clock, log_records
from treadle.backoff import backoff_delay
from treadle.context import Run
from treadle.errors import TreadleError
from treadle.middleware import CLOSE_SECONDS
from treadle.outcome import Crash, Outcome, after_crash, decide
from treadle.worker.child_main import ChildAnswer, ChildRequest, find_job, main, names

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from treadle.app import Treadle
    from treadle.registry import JobType
    from treadle.worker.inflight import Inflight, RunningAttempt

log = logging.getLogger("treadle")

_spawn = multiprocessing.get_context("spawn")


START_SECONDS = 300.0
"""How long a child may take to import the app."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
"""Seconds to wait after a child that did not start: longer and longer."""
NOT_STARTED = "its process did not start within {:g} s: does a module of the app wait for something when imported?"

_encode = msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.msgpack.Decoder(ChildAnswer).decode


def can_run(job_type: JobType) -> bool:
    """Whether a child can find the handler: by its module and a name at the top level of it."""
    return find_job(sys.modules.get(job_type.handler.__module__), job_type.name) is not None


def home_of(app: Treadle) -> tuple[str, str]:
    """The module that has the app as a global, and its name there; two empty texts if there is none."""
    modules = sys.modules.copy()  # at once: another thread may be importing
    return next(((path, name) for path, module in modules.items() for name, v in names(module) if v is app), ("", ""))


class ChildNotStarted(Exception):
    """No child could run the handler: this is the machine's fault, or the app's, but not the job's. Try again after
    `pause` seconds."""

    def __init__(self, problem: str, pause: float) -> None:
        super().__init__(problem)
        self.pause = pause


class Child:
    """The child process of a slot. It starts when it is first needed, and again after it was killed or died."""

    def __init__(self, app: Treadle, cells: Inflight) -> None:
        self._home = home_of(app)
        self._has_lifespan = bool(app.registry.lifespans)
        self._cells = cells
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._pause = FIRST_PAUSE

    def run(self, attempt: RunningAttempt) -> Outcome | None:
        """Have the child run one attempt, and wait for its answer."""
        run, job_type = attempt.run, attempt.job_type
        process, pipe = self._process_and_pipe()
        attempt.kill = process.kill
        self._cells.start(run.claimed.number, apart=True)
        try:
            if run.stop_reason is None:
                request = ChildRequest(run.claimed, run.store.url, job_type.handler.__module__, *self._home)
                pipe.send_bytes(_encode(request))
            else:
                process.kill()
            return self._outcome(attempt, pipe)
        except (EOFError, OSError):
            return self._died(attempt, process)
        except BaseException:
            self.close()  # what it still answers is not for the next attempt
            raise
        finally:
            attempt.kill = None
            if run.stop_reason is not None:  # killed, perhaps just after its answer: the next attempt has a new one
                self.close()

    def _outcome(self, attempt: RunningAttempt, pipe: Connection) -> Outcome | None:
        """Wait for the child's outcome, and follow what it reports on the way."""
        run, backoff = attempt.run, attempt.job_type.backoff
        if not pipe.poll(START_SECONDS):
            self.close()
            return decide(run.claimed, Crash(NOT_STARTED.format(START_SECONDS)), backoff)
        while True:
            answer = _decode_answer(pipe.recv_bytes())
            if answer.started:
                self._pause = FIRST_PAUSE
                _handler_started(attempt)
            elif answer.has_stored_step:
                run.has_stored_step()
            elif answer.progress is not None:
                run.report(answer.progress)
            elif answer.line is not None:
                _log(run, *answer.line)
            elif answer.not_started is not None:
                self.close()
                raise self._not_started(answer.not_started)
            elif answer.broken is not None:
                return decide(run.claimed, Crash(answer.broken), backoff)
            else:
                return answer.outcome

    def _process_and_pipe(self) -> tuple[SpawnProcess, Connection]:
        if self._process is None or self._pipe is None or not self._process.is_alive():
            self.close()
            try:
                self._process, self._pipe = _start_process()
            except Exception as error:
                raise self._not_started(f"its process cannot be started: {error}") from error
        return self._process, self._pipe

    def _not_started(self, problem: str) -> ChildNotStarted:
        pause, self._pause = self._pause, min(LONGEST_PAUSE, 2 * self._pause)
        return ChildNotStarted(problem, pause)

    def _died(self, attempt: RunningAttempt, process: SpawnProcess) -> Outcome | None:
        """The child is gone: the worker killed it, or its handler did."""
        process.join(1)
        process.kill()  # if it lives on without its pipe, it is of no use
        process.join()
        how, run = how_it_ended(process.exitcode), attempt.run
        self.close()
        if run.stop_reason is not None:
            return attempt.stopped()
        if attempt.started_at is None:
            raise self._not_started(f"its process {how} before the handler started")
        log.warning("job %s (%s): its process %s", run.claimed.id, run.claimed.type, how, extra=run.claimed.about)
        delay = backoff_delay(attempt.job_type.backoff, run.claimed.failures)
        return after_crash(run.claimed, f"its process {how}", alone=True, delay=delay)

    def end(self) -> None:
        """Let the child end by itself, if it has something to close. For a child that runs nothing."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None and self._has_lifespan:
            self._process.join(CLOSE_SECONDS)
        self.close()

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._pipe = self._process = None


def _start_process() -> tuple[SpawnProcess, Connection]:
    ours, theirs = _spawn.Pipe()
    try:
        process = _spawn.Process(target=main, args=(theirs, os.getpid(), log_records.chosen), daemon=True)
        process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def _handler_started(attempt: RunningAttempt) -> None:
    """Its time counts from here on. If the claim could not set the deadline, because the child had to start or a
    suspect to wait for its turn, it is set now."""
    attempt.started_at = time.monotonic()
    claimed, timeout = attempt.run.claimed, attempt.job_type.timeout
    if timeout is not None and claimed.deadline is None:
        with contextlib.suppress(TreadleError):  # if the lease is lost, settling it says so
            attempt.run.store.extend(claimed, clock.seconds(timeout))


def _log(run: Run, level: str, message: str, dropped: int) -> None:
    """What the child keeps, the worker keeps, too: their bounds are the same."""
    if not dropped:
        run.log(level, message)
    elif run.lines is not None:
        run.lines.dropped = dropped


def how_it_ended(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exited with {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
