"""A worker inside a program without an event loop, such as a Flask app: in a thread that has one."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Self

from treadle.worker import host

if TYPE_CHECKING:
    from treadle.worker.worker import Worker

log = logging.getLogger("treadle")


class WorkerThread:
    """What `td.worker().start()` returns. It stops by `stop()`, at the end of a `with`, or when the program ends."""

    def __init__(self, worker: Worker) -> None:
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
