"""Helpers that many tests of the worker share."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.eventually import eventually
from treadle import Job, Status, Treadle
from treadle.worker.worker import Worker


class Background:
    """A worker in a thread of its own, with its own event loop."""

    def __init__(self, td: Treadle, **options: Any) -> None:
        self._td, self._options = td, options
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self.worker: Worker
        self.thread = threading.Thread(target=self._run)

    def start(self) -> Background:
        self.thread.start()
        assert self._ready.wait(60)
        if self._error:
            raise self._error
        return self

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self._td.worker(**self._options) as self.worker:
            self._ready.set()
            await self._stop.wait()

    def stop_soon(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        self.thread.join(30)
        assert not self.thread.is_alive(), "the worker did not stop"
        if self._error:
            raise self._error


@contextmanager
def working(td: Treadle, **options: Any) -> Iterator[Background]:
    """A worker that runs during the block."""
    background = Background(td, **options)
    with running(background):
        yield background


@contextmanager
def running(background: Background) -> Iterator[None]:
    background.start()
    try:
        yield
    finally:
        background.stop_soon()
        background.join()


def ended(td: Treadle, job: Job) -> Job:
    """The job, once it has ended."""

    def has_ended() -> Job | None:
        found = td.get(job.id)
        assert found is not None
        return found if found.status.is_final else None

    return eventually(has_ended)  # type: ignore[return-value]


def now(td: Treadle, job: Job) -> Job:
    """The job as it is now."""
    found = td.get(job.id)
    assert found is not None
    return found


def is_processing(td: Treadle, job: Job) -> Callable[[], bool]:
    return lambda: now(td, job).status is Status.PROCESSING


def place(td: Treadle, job: Job) -> tuple[Status, int]:
    """What most tests check of a job: its status, and its attempts."""
    found = now(td, job)
    return found.status, found.attempts


def is_alive(pid: int) -> bool:
    """Whether the process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
