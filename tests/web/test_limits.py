"""What one caller can cost the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from tests import stores
from tests.web.conftest import HERE
from treadle import Treadle
from treadle.web.app import MAX_THREADS

SECONDS = 30
"""Nothing here takes that long unless it hangs."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores.on_every_store(metafunc, "url", ("sqlite", "postgresql"))


def served(td: Treadle, **options: Any) -> httpx2.AsyncClient:
    """A client in the event loop of the mount."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=td.asgi(**options)), base_url=HERE)


@contextmanager
def every_connection_in_use(td: Treadle, url: str) -> Iterator[None]:
    """Those that pages use. (A SQLite store opens as many as it needs.)"""
    with ExitStack() as held:
        for pool in ("read", "other") * 4 * stores.is_postgres(url):
            held.enter_context(td.store.database.borrow(pool))  # type: ignore[attr-defined]
        yield


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_probes_answer_while_all_threads_and_connections_of_pages_are_busy(td: Treadle, url: str, path: str) -> None:
    td.store.open()
    begun, go = threading.Semaphore(0), threading.Event()

    def auth(request: Request) -> str:
        begun.release()
        assert go.wait(SECONDS)
        return "read"

    async def probe() -> int:
        async with served(td, auth=auth) as client:
            pages = [asyncio.create_task(client.get("/api/stats")) for _ in range(100)]
            for _ in range(MAX_THREADS):
                await asyncio.to_thread(begun.acquire)
            with every_connection_in_use(td, url):
                answer = await asyncio.wait_for(client.get(path), SECONDS)
            go.set()
            assert {page.status_code for page in await asyncio.gather(*pages)} == {200}
            return answer.status_code

    assert asyncio.run(probe()) == 200
