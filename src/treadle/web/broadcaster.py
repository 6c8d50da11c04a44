"""/api/events notifies every open page of changes. One thread per mount waits for commits, however many are open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response as RawResponse
from starlette.responses import StreamingResponse

from treadle import views
from treadle.app import Treadle
from treadle.errors import TreadleError
from treadle.web.problem import HTTPProblem
from treadle.web.route import Request, get

DEBOUNCE = 0.25
"""Seconds between two hints. Changes in between are part of the next."""
POLL_SECONDS = 1.0
"""Seconds between two queries of a database that does not notify of commits."""
MAX_STREAMS = 200
"""Streams of one mount."""
KEEPALIVE = 15.0
"""Seconds of silence after which a comment keeps proxies from closing the stream."""
TENANT_SECONDS = 2.0
"""Seconds between two hints for a caller bound to a tenant, whatever happens."""

Hint = dict[str, Any]
log = logging.getLogger("treadle.web")


class Subscriber:
    """One open stream. At most one hint waits in it: the newest."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._newest: Hint | None = None

    def send(self, hint: Hint | None) -> None:
        """From any thread. None ends the stream."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._set, hint)

    def _set(self, hint: Hint | None) -> None:
        self._newest = hint
        self._ready.set()

    async def next(self, seconds: float) -> Hint | None:
        """The newest hint. TimeoutError if none comes within this time."""
        await asyncio.wait_for(self._ready.wait(), seconds)
        self._ready.clear()
        return self._newest


class Broadcaster:
    """Waits for commits while there are subscribers, and only then."""

    def __init__(self, app: Treadle) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._subscribers: set[Subscriber] = set()
        self._thread: threading.Thread | None = None
        self._complete_since = -math.inf
        """What was read since then contains all changes that were noticed."""
        self._due: set[float] = set()
        """When to send again, even if no further commit is noticed."""

    @property
    def is_full(self) -> bool:
        return len(self._subscribers) >= MAX_STREAMS

    def subscribe(self) -> Subscriber:
        subscriber = Subscriber()
        with self._lock:
            self._subscribers.add(subscriber)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="treadle-events", daemon=True)
                self._thread.start()
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.discard(subscriber)

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        with self._lock:
            subscribers, self._subscribers = self._subscribers, set()
        for subscriber in subscribers:
            subscriber.send(None)

    def served(self, made: float, until: float) -> None:
        """A page was served from a cache entry. If that may lack a change, a hint follows when the entry expires."""
        with self._lock:
            if made < self._complete_since:
                self._due.add(until)

    def hint(self) -> Hint:
        return views.hint(self._app.counts(("status",)))

    def _work(self) -> None:
        """Until there are no subscribers. A database that is gone for a while is tried again."""
        while self._has_subscribers():
            try:
                self._watch()
            except TreadleError as error:
                log.warning("no live updates for the open pages: %s", error)
                time.sleep(POLL_SECONDS)

    def _watch(self) -> None:
        watch, last, sent_at = self._app.store.watch(), None, -math.inf
        changed = True  # something may have changed before the watch began
        try:
            while self._has_subscribers():
                if not self._app.store.notices_commits:
                    before, last = last, self.hint()
                    changed = changed or last != before
                if changed:
                    self._repeat_later()
                if self._is_due() or changed:
                    time.sleep(max(0.0, sent_at + DEBOUNCE - time.monotonic()))
                    sent_at = time.monotonic()
                    self._broadcast(self.hint())
                changed = watch.wait(self._pause())
        finally:
            watch.close()

    def _repeat_later(self) -> None:
        """A notification may come before its commit is visible."""
        with self._lock:
            self._due.discard(self._complete_since)
            self._complete_since = time.monotonic() + POLL_SECONDS
            self._due.add(self._complete_since)

    def _is_due(self) -> bool:
        with self._lock:
            due = {at for at in self._due if at <= time.monotonic()}
            self._due -= due
            return bool(due)

    def _pause(self) -> float:
        with self._lock:
            return max(0.0, min(POLL_SECONDS, min(self._due, default=math.inf) - time.monotonic()))

    def _has_subscribers(self) -> bool:
        with self._lock:
            if not self._subscribers:
                self._thread = None
            return self._thread is not None

    def _broadcast(self, hint: Hint) -> None:
        with self._lock:
            subscribers = list(self._subscribers)
        for subscriber in subscribers:
            subscriber.send(hint)


@get("/api/events", "Hints of changes, as server-sent events", returns="text/event-stream", stream=True)
async def events(request: Request) -> RawResponse:
    """Callers bound to a tenant get empty hints at fixed times: when and what others change is not theirs to know."""
    if request.web.broadcaster.is_full:
        raise HTTPProblem(503, "too many pages are open", "close some of them", headers={"Retry-After": "10"})
    return StreamingResponse(_stream(request), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _stream(request: Request) -> AsyncIterator[str]:
    """Ends when the page closes, when the mount closes, and when the caller is no longer let in."""
    subscriber = request.web.broadcaster.subscribe()
    try:
        bound = request.caller.tenant is not None
        yield _event({} if bound else await run_in_threadpool(request.web.broadcaster.hint))
        while await request.web.identify(request.raw) is not None:
            try:
                hint = await (_fixed_hint(subscriber) if bound else subscriber.next(KEEPALIVE))
            except TimeoutError:
                yield ": keepalive\n\n"
                continue
            if hint is None:
                return
            yield _event(hint)
    finally:
        request.web.broadcaster.unsubscribe(subscriber)


async def _fixed_hint(subscriber: Subscriber) -> Hint | None:
    """An empty hint after a fixed time. None if the stream ends before."""
    end = time.monotonic() + TENANT_SECONDS
    with contextlib.suppress(TimeoutError):
        while await subscriber.next(end - time.monotonic()) is not None:
            pass
        return None
    return {}


def _event(hint: Hint) -> str:
    return f"event: changed\ndata: {msgspec.json.encode(hint).decode()}\n\n"
