"""`BullWorker`: runs the handlers of an app as a worker of BullMQ.

Jobs, locks, delays and stalled jobs are BullMQ's own, by its package. How an attempt ends is decided as in a worker of
treadle, by the same functions.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, cast

from treadle.app import Treadle
from treadle.clock import Duration, in_seconds
from treadle.contrib.bullmq.consumer import Consumer, Shared
from treadle.contrib.bullmq.producer import Bull
from treadle.contrib.bullmq.store import BullStore
from treadle.contrib.bullmq.unsupported import Without, refuse_handlers, refuse_queue, refuse_types
from treadle.errors import BadOption
from treadle.middleware import Lifespans, check_middleware
from treadle.stores.base import Store

log = logging.getLogger("treadle")


class BullWorker:
    """Runs the jobs of BullMQ's queues with the handlers of an app. As long as it runs, the app stores in Redis, too.

    `queues`: default those of the app's types. `concurrency`: jobs at once, of each queue. `grace`: seconds that
    running jobs have to end when it stops. `lock`: seconds after which a job of a worker that died may be found.
    `without`: what you do without, of "limits", "fair", "schedules", "reconcile" and "transactions".
    """

    def __init__(
        self,
        app: Treadle,
        redis_url: str,
        *,
        queues: Sequence[str] = (),
        concurrency: int = 10,
        grace: Duration = 30.0,
        lock: Duration = 30.0,
        prefix: str = "bull",
        without: Without = (),
    ) -> None:
        self._app, self._grace, lock_seconds = app, in_seconds(grace), in_seconds(lock)
        if concurrency < 1 or self._grace < 0 or lock_seconds < 1:
            way_out = "concurrency and lock are at least 1, grace at least 0 seconds"
            raise BadOption("BullWorker", (concurrency, grace, lock), way_out)
        self._bull = Bull(redis_url, app, prefix=prefix, without=without)
        types = app.registry.types.values()
        refuse_types(types, self._bull.without)
        refuse_handlers(types, self._bull.without)
        check_middleware(types)
        self.queues = tuple(queues) or tuple(sorted({one.policy.queue for one in types}))
        if not types:
            raise BadOption("app", app, "it has no jobs: nothing is declared with @td.job when its module is imported")
        for queue in self.queues:
            refuse_queue(queue)
        self._settings = concurrency, lock_seconds

    def run(self, ready: Callable[[], None] = lambda: None) -> int:
        """Work until SIGTERM or SIGINT. Returns the exit code: 1 if handlers had to be left behind. `ready` is called
        when signals are obeyed."""
        return asyncio.run(self._until_signal(ready))

    async def _until_signal(self, ready: Callable[[], None]) -> int:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        ready()
        return await self.serve(stop)

    async def serve(self, stop: asyncio.Event) -> int:
        """Work until the event is set."""
        app, own = self._app, self._app.store
        threads = ThreadPoolExecutor(self._settings[0] * len(self.queues), "treadle-bullmq-slot")
        lifespans = Lifespans(app.registry.lifespans)
        app._use(cast(Store, BullStore(self._bull, own)))
        try:
            await lifespans.open()
            shared = Shared(app, self._bull, threads, lifespans.state)
            return await self._consume(shared, stop)
        finally:
            await lifespans.close()
            app._use(own)
            threads.shutdown(wait=False)
            self._bull.close()

    async def _consume(self, shared: Shared, stop: asyncio.Event) -> int:
        async with asyncio.TaskGroup() as group:
            consumers = [Consumer(queue, shared, *self._settings) for queue in self.queues]
            working = {one: group.create_task(one.work()) for one in consumers}
            await stop.wait()
            log.info("stopping: %d running", sum(len(one.running) for one in consumers))
            left = await asyncio.gather(*(one.stop(self._grace, task) for one, task in working.items()))
        return 1 if any(left) else 0

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        """`async with worker.working():` in a program of your own. It stops at the end of the block."""
        stop = asyncio.Event()
        task: asyncio.Task[Any] = asyncio.create_task(self.serve(stop))
        try:
            yield
        finally:
            stop.set()
            await task
