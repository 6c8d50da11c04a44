"""What one caller can cost the others."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from tests import stores
from tests.web.conftest import HERE, client_of
from treadle import Treadle
from treadle.stores.shared import stats
from treadle.web.api import monitoring
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


def test_pages_and_metrics_of_very_many_types_are_bounded(td: Treadle) -> None:
    types = stats.MOST_QUEUES + 50
    td.enqueue_many([td.request(f"type-{n:05}") for n in range(types)])
    client = client_of(td, "read")
    first, last = client.get("/workers").text, client.get("/workers?page=999").text
    assert (first.count('id="queue-'), last.count('id="queue-')) == (100, 1)
    assert ("type-00000" in first, "50 others, with fewer jobs" in last) == (True, True)
    assert ('data-testid="previous"' in first, 'data-testid="next"' in first) == (False, True)
    assert ('data-testid="previous"' in last, 'data-testid="next"' in last) == (True, False)
    assert client.get("/workers?page=٣").status_code == 200
    series = re.findall(r'^treadle_jobs\{(.*)status="queued"\} (\d+)$', client.get("/metrics").text, re.MULTILINE)
    assert len(series) == stats.MOST_QUEUES + 1
    assert sum(int(value) for _, value in series) == types
    assert ("", "50") in series
    assert "\ntreadle_types_left_out 50\n" in client.get("/metrics").text
    *items, others = client.get("/api/queues").json()["items"]
    assert (len(items), others["others"], others["queued"]) == (stats.MOST_QUEUES, 50, 50)
    assert client.get("/").text.count('class="note"') == 1


def test_counters_of_very_many_types_are_bounded_and_never_go_back(
    td: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "MAX_TYPES", 2)
    monkeypatch.setattr(monitoring, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(monitoring, "SHARE", 1.0)
    client = client_of(td, "read")

    def runs() -> dict[str, int]:
        found = re.findall(r"^treadle_runs_total(?:\{type=\"(.*)\"\})? (\d+)$", client.get("/metrics").text, re.M)
        return {type: int(value) for type, value in found}

    for types, expected in (("ab", {"a": 1, "b": 1}), ("ccca", {"": 3, "a": 2, "b": 1})):
        for type in types:
            td.enqueue(type)
        for lease in td.claim(10):
            lease.complete()
        assert runs() == expected
