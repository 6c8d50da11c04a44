"""/api/events notifies every open page of changes. One thread per mount waits for commits, however many are open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Hashable
from functools import partial

import msgspec
from starlette.responses import Response as RawResponse
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from treadle import views
from treadle.app import Treadle
from treadle.errors import TreadleError
from treadle.web.problem import HTTPProblem
from treadle.web.route import Request, get

DEBOUNCE = 0.25
"""Seconds between two hints. Changes in between are part of the next."""
HINT_SHARE = 0.2
"""At most this part of the time goes into making hints."""
TOGETHER, APART = 20, 0.005
"""Streams that get a hint together, and seconds until the next ones do: other requests are served in between."""
POLL_SECONDS = 1.0
"""Seconds between two queries of a database that does not notify of commits."""
MAX_STREAMS, MAX_STREAMS_OF_ONE = 200, 50
"""Streams of one mount, and of one caller."""
CHECK_SECONDS = 1.0
"""A stream goes on for this long before the mount is asked again whether its caller is let in."""
KEEPALIVE = 15.0
"""Seconds of silence after which a comment keeps proxies from closing the stream."""
TENANT_SECONDS = 2.0
"""Seconds between two hints for a caller bound to a tenant, whatever happens."""

Hint = str
"""The event as it is sent: made once for all streams."""
WITHOUT_COUNTS = "event: changed\ndata: {}\n\n"
log = logging.getLogger("treadle.web")


class Subscriber:
    """One open stream. At most one hint waits in it: the newest."""

    def __init__(self, who: Hashable) -> None:
        self.who = who
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._newest: Hint | None = None

    def send(self, hint: Hint | None) -> None:
        """From any thread. None ends the stream."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self.set, hint)

    def set(self, hint: Hint | None) -> None:
        """From its own event loop."""
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
        self._latest: Hint | None = None
        """What was sent last, while something is watching: a new stream begins with it."""
        self._complete_since = -math.inf
        """What was read since then contains all changes that were noticed."""
        self._due: set[float] = set()
        """When to send again, even if no further commit is noticed."""

    def subscribe(self, who: Hashable = None) -> Subscriber:
        """A new stream. Raises if there are too many, of this caller or in all."""
        subscriber = Subscriber(who)
        with self._lock:
            if sum(other.who == who for other in self._subscribers) >= MAX_STREAMS_OF_ONE:
                raise _too_many(429, f"you have {MAX_STREAMS_OF_ONE} streams of events open")
            if len(self._subscribers) >= MAX_STREAMS:
                raise _too_many(503, f"{MAX_STREAMS} streams of events are open")
            self._subscribers.add(subscriber)
            if self._latest is not None:
                subscriber.set(self._latest)
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
        data = views.hint(self._app.counts(("status",)))
        return f"event: changed\ndata: {msgspec.json.encode(data).decode()}\n\n"

    def _work(self) -> None:
        """Until there are no subscribers. A database that is gone for a while is tried again."""
        while self._has_subscribers():
            try:
                self._watch()
            except TreadleError as error:
                self._latest = None
                log.warning("no live updates for the open pages: %s", error)
                time.sleep(POLL_SECONDS)

    def _watch(self) -> None:
        watch, last, next_at = self._app.store.watch(), None, -math.inf
        changed = True  # something may have changed before the watch began
        try:
            while self._has_subscribers():
                if not self._app.store.notices_commits:
                    before, last = last, self.hint()
                    changed = changed or last != before
                if changed:
                    self._repeat_later()
                if self._is_due() or changed:
                    time.sleep(max(0.0, next_at - time.monotonic()))
                    began = time.monotonic()
                    hint = self.hint()
                    next_at = began + max(DEBOUNCE, (time.monotonic() - began) / HINT_SHARE)
                    self._broadcast(hint)
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
                self._thread = self._latest = None
            return self._thread is not None

    def _broadcast(self, hint: Hint) -> None:
        with self._lock:
            self._latest, subscribers = hint, list(self._subscribers)
        for n, subscriber in enumerate(subscribers, 1):
            subscriber.send(hint)
            if n % TOGETHER == 0:
                time.sleep(APART)


def _too_many(status: int, problem: str) -> HTTPProblem:
    return HTTPProblem(status, problem, "close some of the pages that listen", headers={"Retry-After": "10"})


@get(
    "/api/events",
    "Hints of changes, as server-sent events",
    returns="text/event-stream",
    stream=True,
    problems=(404, 429, 503),
)
async def events(request: Request) -> RawResponse:
    """Callers bound to a tenant get empty hints at fixed times: when and what others change is not theirs to know."""
    if "wsgi_environ" in request.raw.scope:  # a stream would keep a thread of the server, which may be its only one
        raise HTTPProblem(404, "this mount is in a WSGI server, which has no streams", "ask again every few seconds")
    return EventStream(request, request.web.broadcaster.subscribe((request.caller.name, request.caller.tenant)))


class EventStream(StreamingResponse):
    """The subscriber is removed even if the client is gone before the stream has begun."""

    def __init__(self, request: Request, subscriber: Subscriber) -> None:
        super().__init__(
            _stream(request, subscriber), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )
        self._end = partial(request.web.broadcaster.unsubscribe, subscriber)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


async def _stream(request: Request, subscriber: Subscriber) -> AsyncIterator[str]:
    """Ends when the page closes, when the mount closes, and when the caller is no longer let in."""
    checked, bound = time.monotonic(), request.caller.tenant is not None
    if bound:
        yield WITHOUT_COUNTS
    while True:
        try:
            part = await (_fixed_hint(subscriber) if bound else subscriber.next(KEEPALIVE))
        except TimeoutError:
            part = ": keepalive\n\n"
        if time.monotonic() - checked >= CHECK_SECONDS:
            checked = time.monotonic()
            part = part if await request.web.identify(request.raw) else None
        if part is None:
            return
        yield part


async def _fixed_hint(subscriber: Subscriber) -> Hint | None:
    """An empty hint after a fixed time. None if the stream ends before."""
    end = time.monotonic() + TENANT_SECONDS
    with contextlib.suppress(TimeoutError):
        while await subscriber.next(end - time.monotonic()) is not None:
            pass
        return None
    return WITHOUT_COUNTS
