"""Server-sent events: a hint whenever something has changed, with the current counts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response as RawResponse
from starlette.responses import StreamingResponse

from treadle.web.broadcaster import Snapshot
from treadle.web.http import Request
from treadle.web.problem import HTTPProblem
from treadle.web.route import route
from treadle.web.site import Site

KEEPALIVE = 15.0
"""Seconds of silence after which a comment keeps proxies from closing the stream."""
HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}


@route(
    "GET", "/api/events", "Hints of changes, as server-sent events", responses={200: "text/event-stream"}, stream=True
)
async def events(site: Site, request: Request) -> RawResponse:
    """Callers bound to a tenant get the hints without the counts, which are of all tenants."""
    if site.broadcaster.is_full:
        raise HTTPProblem(503, "too many pages are open", "close some of them", headers={"Retry-After": "10"})
    return StreamingResponse(_stream(site, request), media_type="text/event-stream", headers=HEADERS)


async def _stream(site: Site, request: Request) -> AsyncIterator[str]:
    """Ends when the page closes, when the site closes, and when the caller is no longer let in."""
    subscriber = site.broadcaster.subscribe()
    try:
        yield _event(request, await run_in_threadpool(site.broadcaster.snapshot))
        while await site.identify(request.raw) is not None:
            try:
                snapshot = await subscriber.next(KEEPALIVE)
            except TimeoutError:
                yield ": keepalive\n\n"
                continue
            if snapshot is None:
                return
            yield _event(request, snapshot)
    finally:
        site.broadcaster.unsubscribe(subscriber)


def _event(request: Request, snapshot: Snapshot) -> str:
    data = snapshot if request.caller.tenant is None else {}
    return f"event: changed\ndata: {msgspec.json.encode(data).decode()}\n\n"
