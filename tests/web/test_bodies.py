"""The bodies of requests are bounded: each in size and time, and all together."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from treadle import Treadle
from treadle.web import body
from treadle.web.app import WebApp

MAIL = {"type": "mail", "payload": {"text": "x" * body.SMALL_BODY}}
LARGE, SMALL = json.dumps(MAIL).encode(), b'{"type": "mail"}'
Receive = Callable[[], Awaitable[dict[str, Any]]]


@pytest.fixture
def web(td: Treadle) -> WebApp:
    return td.asgi(auth=lambda request: "manage")


async def post(web: WebApp, receive: Receive, **headers: str) -> int:
    """The status of a request to enqueue."""
    given = {"host": "localhost", "sec-fetch-site": "same-origin", "content-type": "application/json", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "method": "POST", "path": "/api/jobs", "query_string": b"", "headers": raw}
    status: list[int] = []

    async def send(message: Any) -> None:
        status.append(message.get("status", 0))

    await web(scope, receive, send)
    return status[0]


def sends(*parts: bytes) -> Receive:
    """A client that sends these parts."""
    left = list(parts)

    async def receive() -> dict[str, Any]:
        assert left, "it is not read"
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


def sends_when(go: asyncio.Event, content: bytes, asked: asyncio.Event | None = None) -> Receive:
    async def receive() -> dict[str, Any]:
        if asked:
            asked.set()
        await go.wait()
        return {"type": "http.request", "body": content, "more_body": False}

    return receive


def test_a_body_that_says_it_is_too_large_is_not_read(web: WebApp) -> None:
    assert asyncio.run(post(web, sends(), content_length=str(body.MAX_BODY + 1))) == 413


def test_a_body_that_turns_out_too_large_is_not_read_to_its_end(web: WebApp) -> None:
    parts = [b"x" * (1 << 20)] * 3
    assert asyncio.run(post(web, sends(*parts), transfer_encoding="chunked")) == 413
    assert asyncio.run(post(web, sends(*parts), content_length="5")) == 413


def test_a_body_that_takes_too_long_is_given_up(web: WebApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.01)

    async def slow() -> int:
        return await post(web, sends_when(asyncio.Event(), SMALL))

    assert asyncio.run(slow()) == 408


def test_a_compressed_body_is_refused_and_not_unpacked(web: WebApp) -> None:
    bomb = gzip.compress(b" " * (10 << 20), 1)
    assert asyncio.run(post(web, sends(bomb), content_encoding="gzip")) == 415
    assert asyncio.run(post(web, sends(bomb))) == 400


@pytest.mark.parametrize("how", [{"content_length": str(len(LARGE))}, {"transfer_encoding": "chunked"}], ids=str)
def test_large_bodies_wait_for_no_room_and_small_ones_need_none(
    web: WebApp, monkeypatch: pytest.MonkeyPatch, how: dict[str, str]
) -> None:
    room = len(LARGE) if "content_length" in how else body.MAX_BODY
    monkeypatch.setattr(body, "MAX_BODIES", room)

    async def several() -> list[int]:
        go, asked = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(post(web, sends_when(go, LARGE, asked), **how))
        await asked.wait()
        second, small = await post(web, sends(LARGE), **how), await post(web, sends(SMALL), content_length="16")
        go.set()
        return [await first, second, small, await post(web, sends(LARGE), **how)]

    assert asyncio.run(several()) == [201, 503, 201, 201]
    assert web.bodies._held == 0
