"""The bodies of requests: bounded in their size, in their time, and in what all of them hold together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from starlette.requests import Request as RawRequest

from treadle.web.problem import HTTPProblem

MAX_BODY = 2 << 20
"""Bytes. A payload has at most 1 MiB, but its JSON may be longer than ours."""
SMALL_BODY = 64 << 10
"""Bytes up to which a body needs no room: servers hold as much for every connection."""
MAX_BODIES = 16 << 20
"""Bytes of all larger bodies together. Decoded, they take several times as much."""
BODY_SECONDS = 30.0


class Bodies:
    """How much the requests hold that are being served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = 0

    @contextmanager
    def room_for(self, request: RawRequest) -> Iterator[None]:
        """Room for the request's body until the block ends. Raises if the body is too large, or if there is no room."""
        size = _announced(request)
        if size > MAX_BODY:
            raise _too_large()
        needed = size if size > SMALL_BODY else 0
        with self._lock:
            if self._held + needed > MAX_BODIES:
                way_out = f"try again, or send at most {SMALL_BODY:,} bytes, for which there is always room"
                raise HTTPProblem(503, "too many large bodies at once", way_out, headers={"Retry-After": "1"})
            self._held += needed
        try:
            yield
        finally:
            with self._lock:
                self._held -= needed


def _announced(request: RawRequest) -> int:
    """The length of the body. One that comes in chunks may be as large as is allowed."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit():
        return int(length)
    return MAX_BODY if "transfer-encoding" in request.headers else 0


async def read(request: RawRequest) -> bytearray:
    """The whole body. One that is too large or too slow is not read to its end."""
    if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
        raise HTTPProblem(415, f"a body in {encoding}", "send it without Content-Encoding")
    content = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for part in request.stream():
                content += part
                if len(content) > MAX_BODY:
                    raise _too_large()
    except TimeoutError:
        raise HTTPProblem(408, f"the body took longer than {BODY_SECONDS:g} seconds", "send less at once") from None
    return content


def _too_large() -> HTTPProblem:
    return HTTPProblem(413, f"the body has more than {MAX_BODY:,} bytes", "send less at once")
