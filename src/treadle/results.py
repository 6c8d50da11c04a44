"""Waiting for a job to end, and async twins of calls that block."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import sys
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from treadle.context import current_run
from treadle.errors import JobFailed, JobNotFound, ResultTimeout, WaitsForItself
from treadle.group_commit import warn_if_on_loop
from treadle.job import Job, Status
from treadle.settings import checked_id

if TYPE_CHECKING:
    from treadle.stores.base import Store

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def twin(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The async twin of a method: the same call, in a thread, so that the event loop is not blocked."""

    @functools.wraps(method)
    async def in_thread(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        call: Callable[P, T] = getattr(self, method.__name__)  # a subclass may have its own
        app: Any = getattr(self, "_app", self)  # `td.schedules` and the like are parts of an app
        answer: T = await app._to_thread(call, *args, **kwargs)
        return answer

    in_thread.__name__ = f"a{method.__name__}"
    in_thread.__qualname__ = method.__qualname__.removesuffix(method.__name__) + in_thread.__name__
    in_thread.__doc__ = f"`{method.__name__}` without blocking the event loop."
    return in_thread


class WithTwins:
    """Calls that block, with async twins. On a running event loop, each that a `twin` is of warns of that."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, made in list(vars(cls).items()):
            call = vars(cls).get(name.removeprefix("a"), made)
            if _is_twin(made, call):
                setattr(cls, call.__name__, _warning(call))


def _is_twin(made: object, call: object) -> bool:
    return callable(call) and getattr(made, "__wrapped__", None) is call


def _warning(call: Callable[P, T]) -> Callable[P, T]:
    @functools.wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if asyncio._get_running_loop() is not None and not _is_treadles(sys._getframe(1)):
            warn_if_on_loop(f"its twin: a{call.__name__}")
        return call(*args, **kwargs)

    return checked


def _is_treadles(frame: FrameType | None) -> bool:
    """Whether a call of treadle makes this one. Then it has warned already, if its caller is to await another."""
    if frame is not None and frame.f_globals.get("__name__") == "treadle.contrib.django.app":  # around each call there
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "treadle"


class ResultPoller:
    """Looks for the end of one job: often at first, and only after a commit to the database."""

    def __init__(self, store: Store, id: str, timeout: float) -> None:
        run = current_run.get()
        if run is not None and any(job.id == id for job in run.collected.follow_ups) and not run.written:
            raise WaitsForItself(id)
        self._store, self._id, self._timeout = store, id, timeout
        self._deadline = time.monotonic() + timeout
        self._seen: int | None = None
        self._job: Job | None = None
        self._pause = 0.002

    def look(self) -> Job | None:
        changes = self._store.changes()
        if changes != self._seen:
            self._seen, self._job = changes, self._store.get(self._id)
        if self._job is None:
            raise JobNotFound(self._id)
        if self._job.status.is_final:
            return self._job
        if time.monotonic() >= self._deadline:
            raise ResultTimeout(self._id, self._timeout, self._job.status)
        return None

    def pause(self) -> float:
        self._pause = min(self._pause * 1.1, 0.02)
        return max(0.0, min(self._pause, self._deadline - time.monotonic()))


def id_of(job: Job | str) -> str:
    return job.id if isinstance(job, Job) else checked_id(job)


def result_of(job: Job) -> Any:
    if job.status is not Status.COMPLETED:
        raise JobFailed(job.id, job.status, job.error)
    return job.result


def run_on_a_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it on an event loop of its own, in another thread if this one has a running loop."""
    if asyncio._get_running_loop() is None:
        return asyncio.run(coroutine)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
