"""A worker inside a program without an event loop, such as a Flask app: in a thread that has one."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Self

from treadle.errors import BadStart
from treadle.worker import host

log = logging.getLogger("treadle")

IN_A_PROGRAM = "use `async with td.worker():`, or without an event loop `with td.worker().start():`"


class WorkerThread:
    """What `td.worker().start()` returns. It stops by `stop()`, at the end of a `with`, or when the program ends."""

    def __init__(self, worker: AbstractAsyncContextManager[Any]) -> None:
        self._worker = worker
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="treadle-worker", daemon=True)
        self._thread.start()
        self._loop = self._started.result()  # raises what has kept the worker from starting
        # Not atexit: that comes after Python has ended the pools of threads, without which no worker can stop.
        threading._register_atexit(self.stop)  # type: ignore[attr-defined]

    def _run(self) -> None:
        try:
            host.run_loop(self._work())
        except BaseException as error:
            if self._started.done():
                log.exception("the worker has ended")
            else:
                self._started.set_exception(error)

    async def _work(self) -> None:
        async with self._worker:
            self._started.set_result(asyncio.get_running_loop())
            await self._stop.wait()

    def stop(self) -> None:
        """Stop claiming, let what runs end within `grace`, release the rest, and leave the database."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ThreadStarter(AbstractAsyncContextManager[Any]):
    """What a worker has for a program without an event loop."""

    _thread: WorkerThread | None = None

    def start(self) -> WorkerThread:
        """Work in a thread of this program, which needs no event loop. `.stop()` ends it, and so does the program."""
        self._thread = WorkerThread(self)
        return self._thread

    def stop(self) -> None:
        """End the thread that `start` has begun: stop claiming, let what runs end within `grace`, release the rest."""
        if self._thread is None:
            way_out = "the end of the block stops `async with td.worker():`, and SIGTERM or SIGINT stops run()"
            raise BadStart("stop() stops what start() has started, and this worker was not started by it", way_out)
        self._thread.stop()

    if not TYPE_CHECKING:  # checkers refuse `with td.worker():` by themselves

        def __enter__(self) -> NoReturn:
            raise BadStart("a worker has no sync block", IN_A_PROGRAM)

        def __exit__(self, *_: object) -> None: ...
