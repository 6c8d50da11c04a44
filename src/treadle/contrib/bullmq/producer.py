"""`Bull`: stores jobs in Redis, as BullMQ does."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from treadle import clock, codec
from treadle.app import Treadle
from treadle.backoff import DEFAULT
from treadle.contrib.bullmq.translate import cancel_key, options_of
from treadle.contrib.bullmq.unsupported import Without, checked_without, refuse_request, refuse_types
from treadle.errors import MissingExtra
from treadle.group_commit import warn_if_on_loop
from treadle.job import Job, NewJob

try:
    import bullmq  # type: ignore[import-untyped]
    from redis.asyncio import Redis
except ModuleNotFoundError as error:
    raise MissingExtra("treadle.contrib.bullmq", "bullmq", "bullmq") from error

T = TypeVar("T")

KEEP = timedelta(days=7)
"""How long Redis keeps completed jobs, and so refuses to store one with the same id again."""
ASKED_SECONDS = 7 * 86_400
"""How long the request to cancel a running job is kept: its worker may have died, and the next one has to learn of
it."""


class Bull:
    """Stores jobs in Redis for BullMQ's workers: `Bull("redis://…").enqueue(send_mail.request(to="ann"))`.

    `app`: whose types have the backoffs; without it, retries of workers of other languages wait as by default.
    `prefix`: of the keys in Redis. `keep`: how long completed jobs are kept; None keeps them forever.
    `without`: what you do without, of "limits", "fair", "schedules" and so on.
    """

    def __init__(
        self,
        redis_url: str,
        app: Treadle | None = None,
        *,
        prefix: str = "bull",
        keep: timedelta | None = KEEP,
        without: Without = (),
    ) -> None:
        self.redis_url, self.prefix, self.without = redis_url, prefix, checked_without(without)
        self._app, self._keep = app, keep
        self._lock = threading.Lock()
        self._pid: int | None = None

    def enqueue(self, request: NewJob) -> Job:
        """Store a job. It is as durable as Redis is. If its id exists, or a job holds its key, nothing is stored."""
        [job] = self.enqueue_many([request])
        return job

    async def aenqueue(self, request: NewJob) -> Job:
        """`enqueue` without blocking the event loop."""
        [job] = await self.aenqueue_many([request])
        return job

    def enqueue_many(self, requests: Sequence[NewJob]) -> list[Job]:
        """Store all requests or none, in one transaction of Redis."""
        warn_if_on_loop()
        return self._start(self._add(self._checked(requests))).result()

    async def aenqueue_many(self, requests: Sequence[NewJob]) -> list[Job]:
        """`enqueue_many` without blocking the event loop."""
        return await asyncio.wrap_future(self._start(self._add(self._checked(requests))))

    def cancel(self, job: Job | str, queue: str = "default") -> bool:
        """Cancel a job, or the one with this id in this queue. If it waits, it is removed. If it runs, a worker of
        treadle asks it to stop, within about a second. False if it has ended, or there is none."""
        warn_if_on_loop()
        return self._start(self._cancel(job, queue)).result()

    async def acancel(self, job: Job | str, queue: str = "default") -> bool:
        """`cancel` without blocking the event loop."""
        return await asyncio.wrap_future(self._start(self._cancel(job, queue)))

    def close(self) -> None:
        """Close the connection. If you use it again, it reconnects."""
        with self._lock:
            if self._pid != os.getpid():
                return
            self._pid = None
            loop, thread = self._loop, self._thread
        asyncio.run_coroutine_threadsafe(self._redis.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _checked(self, requests: Sequence[NewJob]) -> Sequence[NewJob]:
        for request in requests:
            refuse_request(request, self.without)
            known = None if self._app is None else self._app.registry.get(request.type)
            if known is not None:
                refuse_types([known], self.without)
        return requests

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it on the event loop of this object: a connection belongs to one, and callers have many or none."""
        with self._lock:
            if self._pid != os.getpid():  # the first call, or after a fork
                self._loop, self._queues = asyncio.new_event_loop(), dict[str, Any]()
                self._redis = Redis.from_url(self.redis_url, decode_responses=True)
                self._thread = threading.Thread(target=self._loop.run_forever, name="treadle-bullmq", daemon=True)
                self._thread.start()
                self._pid = os.getpid()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _add(self, requests: Sequence[NewJob]) -> list[Job]:
        if not requests:
            return []
        now = clock.now()
        jobs = [self._theirs(request, now) for request in requests]
        ids: list[str] = await jobs[0].backend.addFlow([{"job": job} for job in jobs])
        return [
            msgspec.structs.replace(request.as_stored(now), id=id) for request, id in zip(requests, ids, strict=True)
        ]

    async def _cancel(self, job: Job | str, queue: str) -> bool:
        """BullMQ has no word for that: one that waits is removed, and one that runs is asked to stop."""
        id, theirs = (job.id, self._queue(job.queue)) if isinstance(job, Job) else (job, self._queue(queue))
        stored, ended = await self._redis.hmget(theirs.toKey(id), ["timestamp", "finishedOn"])
        if stored is None or ended is not None:
            return False
        removed = await theirs.remove(id, {"removeChildren": False})
        if removed == 0:  # a worker holds its lock
            await self._redis.set(cancel_key(theirs, id), 1, ex=ASKED_SECONDS)
        return bool(removed >= 0)

    def _queue(self, name: str) -> Any:
        if name not in self._queues:
            self._queues[name] = bullmq.Queue(name, {"connection": self._redis, "prefix": self.prefix})
        return self._queues[name]

    def _theirs(self, request: NewJob, now: int) -> Any:
        known = None if self._app is None else self._app.registry.get(request.type)
        options: Any = options_of(request, known.backoff if known else DEFAULT, self._keep, now)
        return bullmq.Job(self._queue(request.queue), request.type, codec.decode(request.payload), options)
