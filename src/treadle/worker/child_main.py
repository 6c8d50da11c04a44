"""The inside of a child process: one attempt after another, until its worker closes the pipe."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import importlib
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Self

import msgspec

from treadle.context import Run
from treadle.errors import TreadleError, UnknownType
from treadle.function import AnyJob, JobFunction
from treadle.job import ClaimedJob, Progress
from treadle.log_records import LogSettings
from treadle.middleware import LifespanFailed, Lifespans
from treadle.outcome import Outcome
from treadle.stores import open_store
from treadle.worker import host
from treadle.worker.runner import run_async, run_sync

if TYPE_CHECKING:
    from treadle.app import Treadle


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
    not_started: str | None = None
    """Why no handler can run in this child now: this is not the job's fault."""
    line: tuple[str, str, int] | None = None
    """What the handler has logged: the level and the text of a line, or how many were too many."""


TELL_DROPPED = 1_000
"""A child tells its worker of the first line that it drops, and then of every so many."""

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(ChildRequest).decode


def main(pipe: Connection, parent: int, logs: LogSettings | None) -> None:
    host.raise_oom_score(1000)  # the worker knows which job to charge for the death of a child, but not for its own
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the worker decides
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    with ChildProcess(pipe, logs) as process, contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(_encode(process.attempt(_decode_request(pipe.recv_bytes()))))


class ChildRun(Run, kw_only=True, eq=False):
    """An attempt in a child process: the worker learns of its progress and its logs, and that it has stored a step."""

    pipe: Connection
    sending: Any = msgspec.field(default_factory=threading.RLock)

    def report(self, progress: Progress) -> None:
        self._send(ChildAnswer(progress=progress))

    def has_stored_step(self) -> None:
        before = self.claimed.forgiven
        super().has_stored_step()
        if self.claimed.forgiven != before:
            self._send(ChildAnswer(has_stored_step=True))

    def log(self, level: str, message: str) -> None:
        with self.sending:  # so that they have the same numbers there
            super().log(level, message)
            if not self.ended and self.lines is not None and self.lines.dropped % TELL_DROPPED < 2:
                self._send(ChildAnswer(line=(level, message, self.lines.dropped)))

    def _send(self, answer: ChildAnswer) -> None:
        """From any thread, one by one. What comes after the outcome would be taken for the next attempt's."""
        with self.sending:
            if not self.ended:
                self.pipe.send_bytes(_encode(answer))

    def end(self, outcome: Outcome | None) -> ChildAnswer:
        """The last answer, which nothing follows."""
        with self.sending:
            if self.lines is not None and self.lines.dropped:
                self.pipe.send_bytes(_encode(ChildAnswer(line=("", "", self.lines.dropped))))
        return ChildAnswer(outcome=outcome)


class ChildProcess:
    """The inside of a child: an event loop, and what the lifespans have opened, for one attempt after another."""

    def __init__(self, pipe: Connection, logs: LogSettings | None) -> None:
        self._pipe, self._logs = pipe, logs
        self._runner = asyncio.Runner()
        self._lifespans: Lifespans | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lifespans is not None:
            self._runner.run(self._lifespans.close())
        self._runner.close()

    def attempt(self, request: ChildRequest) -> ChildAnswer:
        """Run the handler. Its outcome is the last answer."""
        try:
            app, function = _import(request)
            if self._logs is not None:  # after the import, in which an app may set up its own
                self._logs.set_up()
                self._logs = None
            if app.store.url != request.url:  # the worker uses another database than the module names
                app._use(open_store(request.url))
        except BaseException as error:
            problem = f"its process could not import {request.handler}: {type(error).__name__}: {error}"
            return ChildAnswer(broken=problem)
        try:
            state = self._state(app)
        except LifespanFailed as error:
            return ChildAnswer(not_started=str(error))

        of_app = app.store, app.redactor, app._step_saver, state, app.registry.result
        run, job_type = ChildRun(request.claimed, *of_app, pipe=self._pipe), function.job_type
        self._pipe.send_bytes(_encode(ChildAnswer(started=True)))
        with contextlib.nullcontext() if app.tracing is None else app.tracing.inside(run):
            if inspect.iscoroutinefunction(job_type.handler):
                return run.end(self._run(run_async(run, job_type)))
            return run.end(contextvars.copy_context().run(run_sync, run, job_type))

    def _state(self, app: Treadle) -> Mapping[str, Any]:
        """What the app's lifespans have opened in this process."""
        if self._lifespans is None and (declared := app.registry.lifespans):
            lifespans = Lifespans(declared)
            self._runner.run(lifespans.open())
            self._lifespans = lifespans
        return {} if self._lifespans is None else self._lifespans.state

    def _run(self, handler: Coroutine[Any, Any, Outcome | None]) -> Outcome | None:
        """On the one loop of this process: what a module has opened, such as a pool of connections, is bound to it."""
        return self._runner.run(self._alone(handler), context=contextvars.copy_context())

    async def _alone(self, handler: Coroutine[Any, Any, Outcome | None]) -> Outcome | None:
        """No task outlives its attempt, unless there are lifespans, which may have tasks."""
        try:
            return await handler
        finally:
            if self._lifespans is None:
                left = asyncio.all_tasks() - {asyncio.current_task()}
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)


def _import(request: ChildRequest) -> tuple[Treadle, AnyJob]:
    app: Treadle | None = getattr(importlib.import_module(request.app), request.name) if request.name else None
    type = request.claimed.type
    function = find_job(importlib.import_module(request.handler), type)
    if function is None:
        raise UnknownType(type, ())
    if function.registry.app is None and app is not None:  # only the worker's own code includes it
        app.include(function.registry)
    if function.registry.app is None:
        raise TreadleError(f"the app of {type!r} has no name at the top of a module")
    return function.registry.app, function


def find_job(module: Any, type: str) -> AnyJob | None:
    return next((v for _, v in names(module) if isinstance(v, JobFunction) and v.job_type.name == type), None)


def names(module: Any) -> list[tuple[str, Any]]:
    return list(getattr(module, "__dict__", {}).items())


def _die_with(parent: int) -> None:
    """A killed worker cannot kill its children. On Linux the kernel does; on macOS they notice the new parent;
    on Windows they end when they wait for their next attempt, and find the pipe closed."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
