"""Runs handlers in child processes, which can be killed and die alone."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import importlib
import inspect
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import msgspec

from treadle import clock
from treadle.backoff import backoff_delay
from treadle.context import Run
from treadle.errors import TreadleError, UnknownType
from treadle.function import AnyJob, JobFunction
from treadle.job import ClaimedJob, Progress
from treadle.outcome import Crash, Outcome, after_crash, decide
from treadle.stores import open_store
from treadle.worker import host
from treadle.worker.runner import run_async, run_sync

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from treadle.app import Treadle
    from treadle.registry import JobType
    from treadle.worker.inflight import Inflight, RunningAttempt

log = logging.getLogger("treadle")

_spawn = multiprocessing.get_context("spawn")


class ChildRequest(msgspec.Struct, array_like=True):
    """What the worker sends: an attempt, its database, and the modules of its handler and of its app."""

    claimed: ClaimedJob
    url: str
    handler: str
    app: str
    name: str
    """The app's name in its module; '' if it has none."""


class ChildAnswer(msgspec.Struct, array_like=True):
    """What a child sends: news on the way, and at the end an outcome (None: the lease was lost)."""

    started: bool = False
    has_stored_step: bool = False
    progress: Progress | None = None
    outcome: Outcome | None = None
    broken: str | None = None
    line: tuple[str, str, int] | None = None
    """What the handler has logged: the level and the text of a line, or how many were too many."""


START_SECONDS = 300.0
"""How long a child may take to import the app."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
"""Seconds to wait after a child that did not start: longer and longer."""
TELL_DROPPED = 1_000
"""A child tells its worker of the first line that it drops, and then of every so many."""
NOT_STARTED = "its process did not start within {:g} s: does a module of the app wait for something when imported?"

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(ChildRequest).decode
_decode_answer = msgspec.msgpack.Decoder(ChildAnswer).decode


def can_run(job_type: JobType) -> bool:
    """Whether a child can find the handler: by its module and a name at the top level of it."""
    return _find(sys.modules.get(job_type.handler.__module__), job_type.name) is not None


def home_of(app: Treadle) -> tuple[str, str]:
    """The module that has the app as a global, and its name there; two empty texts if there is none."""
    modules = sys.modules.copy()  # at once: another thread may be importing
    return next(((path, name) for path, module in modules.items() for name, v in _names(module) if v is app), ("", ""))


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
        log.warning("job %s (%s): its process %s", run.claimed.id, run.claimed.type, how)
        delay = backoff_delay(attempt.job_type.backoff, run.claimed.failures)
        return after_crash(run.claimed, f"its process {how}", alone=True, delay=delay)

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
        process = _spawn.Process(target=_main, args=(theirs, os.getpid()), daemon=True)
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
    """An exit code in words."""
    if code is None or code >= 0:
        return f"exited with {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _main(pipe: Connection, parent: int) -> None:
    """The main function of a child: one attempt after another, until the pipe closes."""
    host.raise_oom_score(1000)  # the worker knows which job to charge for the death of a child, but not for its own
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the worker decides
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(_encode(_attempt(pipe, _decode_request(pipe.recv_bytes()))))


class ChildRun(Run):
    """An attempt in a child process: the worker learns of its progress and its logs, and that it has stored a step."""

    __slots__ = ("_pipe", "_sending")

    def __init__(self, claimed: ClaimedJob, app: Treadle, pipe: Connection) -> None:
        super().__init__(claimed, app.store, app.redactor, app._step_saver, typed=app.registry.result)
        self._pipe, self._sending = pipe, threading.RLock()

    def report(self, progress: Progress) -> None:
        self._send(ChildAnswer(progress=progress))

    def has_stored_step(self) -> None:
        before = self.claimed.forgiven
        super().has_stored_step()
        if self.claimed.forgiven != before:
            self._send(ChildAnswer(has_stored_step=True))

    def log(self, level: str, message: str) -> None:
        with self._sending:  # so that they have the same numbers there
            super().log(level, message)
            if not self.ended and self.lines is not None and self.lines.dropped % TELL_DROPPED < 2:
                self._send(ChildAnswer(line=(level, message, self.lines.dropped)))

    def _send(self, answer: ChildAnswer) -> None:
        """From any thread, one by one. What comes after the outcome would be taken for the next attempt's."""
        with self._sending:
            if not self.ended:
                self._pipe.send_bytes(_encode(answer))

    def end(self, outcome: Outcome | None) -> ChildAnswer:
        """The last answer, which nothing follows."""
        with self._sending:
            if self.lines is not None and self.lines.dropped:
                self._pipe.send_bytes(_encode(ChildAnswer(line=("", "", self.lines.dropped))))
        return ChildAnswer(outcome=outcome)


def _attempt(pipe: Connection, request: ChildRequest) -> ChildAnswer:
    try:
        app, function = _import(request)
        if app.store.url != request.url:  # the worker uses another database than the module names
            app._use(open_store(request.url))
    except BaseException as error:
        return ChildAnswer(broken=f"its process could not import {request.handler}: {type(error).__name__}: {error}")

    run, job_type = ChildRun(request.claimed, app, pipe), function.job_type
    pipe.send_bytes(_encode(ChildAnswer(started=True)))
    with contextlib.nullcontext() if app.tracing is None else app.tracing.inside(run):
        if inspect.iscoroutinefunction(job_type.handler):
            return run.end(asyncio.run(run_async(run, job_type)))
        return run.end(contextvars.copy_context().run(run_sync, run, job_type))


def _import(request: ChildRequest) -> tuple[Treadle, AnyJob]:
    """The app and the job, in this process."""
    app: Treadle | None = getattr(importlib.import_module(request.app), request.name) if request.name else None
    type = request.claimed.type
    function = _find(importlib.import_module(request.handler), type)
    if function is None:
        raise UnknownType(type, ())
    if function.registry.app is None and app is not None:  # only the worker's own code includes it
        app.include(function.registry)
    if function.registry.app is None:
        raise TreadleError(f"the app of {type!r} has no name at the top of a module")
    return function.registry.app, function


def _find(module: Any, type: str) -> AnyJob | None:
    """The job of that type among a module's names."""
    return next((v for _, v in _names(module) if isinstance(v, JobFunction) and v.job_type.name == type), None)


def _names(module: Any) -> list[tuple[str, Any]]:
    return list(getattr(module, "__dict__", {}).items())


def _die_with(parent: int) -> None:
    """A killed worker cannot kill its children. On Linux the kernel does; elsewhere they notice the new parent."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
