"""Live pages: hints that something has changed, from any process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request as RawRequest
from starlette.responses import StreamingResponse

from tests.web.served import Dashboard
from treadle import Treadle, api_tokens
from treadle.stores.rows import Token
from treadle.web import Principal, broadcaster
from treadle.web.app import ROUTES, WebApp
from treadle.web.route import Request

SOON = 2.0
"""Seconds within which a page must get a hint of a change."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Dashboard]:
    with Dashboard(folder) as dashboard:
        yield dashboard


@pytest.fixture
def td(folder: Path, served: Dashboard) -> Iterator[Treadle]:
    """An app on the same database, in another process than the server. The database is empty."""
    app = Treadle(f"sqlite:///{folder}/jobs.db")
    yield app
    for job in app.jobs(limit=200):
        app.delete(job.id)
    for token in app.store.tokens():
        app.store.drop_token(token.name)
    app.close()


def token(td: Treadle, **more: Any) -> dict[str, str]:
    secret = api_tokens.new_secret()
    td.store.add_token(Token(hash=api_tokens.hash_of(secret), name="me", scopes=("read",), **more))
    return {"Authorization": f"Bearer {secret}"}


async def parts(web: WebApp, caller: Principal) -> AsyncIterator[str]:
    """The parts of a stream, without a network."""
    raw = RawRequest({"type": "http", "headers": [], "method": "GET", "path": "/api/events", "query_string": b""})
    route = next(route for route in ROUTES if route.stream)
    response = await broadcaster.events(Request(web=web, raw=raw, route=route, caller=caller))
    assert isinstance(response, StreamingResponse)
    async for part in response.body_iterator:
        yield str(part)


@contextmanager
def stream(served: Dashboard, headers: dict[str, str]) -> Iterator[Iterator[dict[str, Any]]]:
    """The data of the hints, in order."""
    with httpx2.stream("GET", f"{served.url}/api/events", headers=headers, timeout=20) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        yield (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))


def test_a_page_gets_a_hint_of_changes_by_another_process(served: Dashboard, td: Treadle) -> None:
    with stream(served, token(td)) as hints:
        assert not any(next(hints)["counts"].values())
        times = []
        for pending in (50, 100, 150):  # the best of them, because the machine is shared
            td.enqueue_many([td.request("a") for _ in range(50)])
            began = time.monotonic()
            while next(hints)["counts"].get("pending") != pending:
                pass
            times.append(time.monotonic() - began)
        assert min(times) < SOON


def test_many_changes_make_few_hints_and_the_last_hint_is_right(served: Dashboard, td: Treadle) -> None:
    with stream(served, token(td)) as hints:
        next(hints)
        began = time.monotonic()
        for _ in range(100):
            td.enqueue("a")
        received = 1
        while next(hints)["counts"].get("pending") != 100:
            received += 1
        others = 4  # hints for the opening of the stream, the start of the watch, and changes under way then
        assert received <= (time.monotonic() - began) / 0.25 + others


def test_many_pages_get_the_same_hints(served: Dashboard, td: Treadle) -> None:
    headers = token(td)

    def listen(n: int) -> bool:
        with stream(served, headers) as hints:
            return any(hint["counts"].get("pending") == 1 for hint in hints)

    with ThreadPoolExecutor(5) as pool:
        received = pool.map(listen, range(5))
        td.enqueue("a")
        assert all(received)


def test_a_caller_bound_to_a_tenant_gets_hints_without_details(served: Dashboard, td: Treadle) -> None:
    with stream(served, token(td, tenant="acme")) as hints:
        assert [next(hints), next(hints)] == [{}, {}], "the second comes without a change"


def test_a_change_by_others_is_no_hint_for_a_caller_bound_to_a_tenant(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcaster, "TENANT_SECONDS", 3600)
    td = Treadle(f"sqlite:///{folder}/tenants.db")
    web = td.asgi(auth=lambda request: "read")

    async def listen() -> bool:
        whole, bound = (parts(web, Principal(scopes=frozenset({"read"}), tenant=tenant)) for tenant in (None, "acme"))
        assert await anext(bound) == "event: changed\ndata: {}\n\n"
        waiting = asyncio.ensure_future(anext(bound))
        await anext(whole)
        await asyncio.to_thread(td.enqueue, "a", tenant="umbrella")
        while '"pending":1' not in await anext(whole):
            pass
        await asyncio.sleep(0.1)
        early = waiting.done()
        web.close()  # ends both
        with pytest.raises(StopAsyncIteration):
            await waiting
        return early

    assert not asyncio.run(listen())
    td.close()


def test_a_stream_ends_when_its_token_is_revoked(served: Dashboard, td: Treadle) -> None:
    with stream(served, token(td)) as hints:
        next(hints)
        td.store.drop_token("me")
        limit = time.monotonic() + 10
        for _ in hints:
            assert time.monotonic() < limit
            time.sleep(0.3)
            td.enqueue("a")


def test_without_a_token_there_is_no_stream(served: Dashboard) -> None:
    assert httpx2.get(f"{served.url}/api/events").status_code == 401


def test_an_idle_stream_sends_keepalives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcaster, "KEEPALIVE", 0.01)
    td = Treadle(f"sqlite:///{folder}/silent.db")
    web = td.asgi(auth=lambda request: "read")

    async def listen() -> str:
        async for part in parts(web, Principal(scopes=frozenset({"read"}))):
            if part.startswith(":"):
                return part
        raise AssertionError("it ended")

    assert asyncio.run(listen()) == ": keepalive\n\n"
    web.close()
    td.close()
