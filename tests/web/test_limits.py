"""What one caller can cost the others."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from tests import stores
from tests.web.conftest import HERE, client_of
from treadle import Treadle
from treadle.stores.base import TypePolicy
from treadle.stores.shared import stats
from treadle.web import Principal, broadcaster
from treadle.web.api import monitoring, new_types
from treadle.web.app import MAX_THREADS, ROUTES, WebApp
from treadle.web.pages import insights, overview
from treadle.web.problem import HTTPProblem
from treadle.web.route import Request as Asked

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


def test_tables_of_usage_show_those_that_ran_most(td: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    for page in (insights, overview):
        monkeypatch.setattr(page, "MAX_ROWS", 2)
    for type in ("a-type", "b-type", "b-type", "c-type", "c-type"):
        td.enqueue(type)
    for lease in td.claim(10):
        lease.complete()
    client = client_of(td, "read")
    page = client.get("/insights").text
    assert 'data-testid="total-runs">5<' in page
    assert "Those that ran most. The CSV has all of them." in page
    assert [type for type in ("a-type", "b-type", "c-type") if type in page] == ["b-type", "c-type"]
    assert client.get("/insights.csv").text.count("-type") == 3
    chosen = client.get("/insights?type=a-type").text
    assert ('data-testid="total-runs">1<' in chosen, "<option selected>a-type</option>" in chosen) == (True, True)
    start = client.get("/").text
    assert "<small>5 in 1h</small>" in start
    assert [type for type in ("a-type", "b-type", "c-type") if type in start] == ["b-type", "c-type"]


@pytest.mark.parametrize("path", ["/", "/?by=tenant", "/insights", "/insights?by=tenant"])
def test_a_page_reads_no_more_usage_than_it_shows(td: Treadle, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """There may be a tenant for every job."""
    read, limits = td.usage, list[int | None]()

    def usage(*args: Any, **options: Any) -> Any:
        if options["by"]:
            limits.append(options["at_most"])
        return read(*args, **options)

    monkeypatch.setattr(td, "usage", usage)
    assert client_of(td, "read").get(path).status_code == 200
    assert limits
    assert None not in limits


@pytest.fixture
def few_types(td: Treadle, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many types a caller can make."""
    monkeypatch.setattr(new_types, "MAX_NEW_TYPES", 5)
    monkeypatch.setattr(new_types, "SECONDS", SECONDS)  # the cache has to notice by itself what was made
    td.store.publish([TypePolicy(type="published", queue="mail")])
    return 5


def enqueue(client: TestClient, *types: str, queue: str | None = None) -> int:
    body = [{"type": type} if queue is None else {"type": type, "queue": queue} for type in types]
    return client.post("/api/jobs", json=body).status_code


def test_a_caller_without_manage_cannot_make_very_many_types(td: Treadle, few_types: int) -> None:
    client, manager = client_of(td, "enqueue"), client_of(td, "manage")
    assert [enqueue(client, f"new-{n}") for n in range(few_types + 2)] == [201] * few_types + [403] * 2
    assert enqueue(client, "new-1") == 201, "it exists"
    assert enqueue(client, "published") == 201, "a worker has it"
    assert enqueue(client, "published", queue="another") == 403, "a queue can be new, too"
    refused = client.post("/api/jobs", json={"type": "typo"}).json()
    assert refused["type"] == "urn:treadle:problem:too-many-types"
    assert "no worker has published type 'typo'" in refused["detail"]
    assert not re.search(r"\d", refused["detail"]), "how many others have made is not theirs to know"
    assert enqueue(manager, "more") == 201
    assert len(td.counts(("queue", "type"))) == few_types + 2


def test_one_request_cannot_make_very_many_types(td: Treadle, few_types: int) -> None:
    client = client_of(td, "enqueue")
    assert enqueue(client, *(f"new-{n}" for n in range(few_types + 1))) == 403
    assert td.counts() == []
    assert enqueue(client, *(f"new-{n}" for n in range(few_types))) == 201


def test_many_requests_at_once_cannot_make_very_many_types(td: Treadle, few_types: int) -> None:
    client = client_of(td, "enqueue")
    client.get("/healthz")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: enqueue(client, f"new-{n}"), range(8 * few_types)))
    assert Counter(answers) == {201: few_types, 403: 7 * few_types}
    assert len(td.counts(("type",))) == few_types


class Watched:
    """A lock that tells when it is wanted while somebody has it."""

    def __init__(self) -> None:
        self._lock, self.is_wanted = threading.Lock(), threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_wanted.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_while_a_request_makes_a_type_another_one_waits(
    td: Treadle, few_types: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would find room for the last one."""
    client, watched, storing = client_of(td, "enqueue"), Watched(), threading.Event()
    monkeypatch.setattr(client.app, "making_types", watched)
    assert enqueue(client, *(f"new-{n}" for n in range(few_types - 1))) == 201
    insert = td.enqueue_many

    def insert_late(jobs: Any) -> Any:
        if not storing.is_set():
            storing.set()
            assert watched.is_wanted.wait(SECONDS)
        return insert(jobs)

    monkeypatch.setattr(td, "enqueue_many", insert_late)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(enqueue, client, "one")
        assert storing.wait(SECONDS)
        second = pool.submit(enqueue, client, "other")
        second.add_done_callback(lambda _: watched.is_wanted.set())
        assert (first.result(SECONDS), second.result(SECONDS)) == (201, 403)


def ask_for_events(web: WebApp, who: str, tenant: str | None = None) -> Asked:
    """A request for the stream of events, by a caller with this name."""
    raw = Request({"type": "http", "headers": [], "method": "GET", "path": "/api/events", "query_string": b""})
    route = next(route for route in ROUTES if route.stream)
    return Asked(web=web, raw=raw, route=route, caller=Principal(name=who, scopes=frozenset({"read"}), tenant=tenant))


def test_what_streams_send_is_made_once_for_all_of_them(td: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcaster, "POLL_SECONDS", SECONDS)  # so that no hint is repeated meanwhile
    web, made = td.asgi(auth=lambda request: "read"), []
    make = web.broadcaster.hint
    monkeypatch.setattr(web.broadcaster, "hint", lambda: made.append(1) or make())

    async def listen() -> list[str]:
        streams: Any = [await broadcaster.events(ask_for_events(web, f"caller {n % 4}")) for n in range(100)]
        first = [await asyncio.wait_for(anext(aiter(stream.body_iterator)), SECONDS) for stream in streams]
        late: Any = await broadcaster.events(ask_for_events(web, "late"))
        return [*first, await asyncio.wait_for(anext(aiter(late.body_iterator)), SECONDS)]

    td.enqueue("a")
    assert set(asyncio.run(listen())) == {'event: changed\ndata: {"counts":{"pending":1}}\n\n'}
    assert len(made) == 1
    web.close()


def test_one_caller_cannot_take_all_streams(td: Treadle) -> None:
    web = td.asgi(auth=lambda request: "read")

    async def refused(who: str, tenant: str | None = None) -> int:
        try:
            await broadcaster.events(ask_for_events(web, who, tenant))
        except HTTPProblem as problem:
            return problem.details.status
        return 0

    async def open_many() -> None:
        for who in (("a", None), ("a", "acme"), ("a", "umbrella"), ("b", None)):
            for _ in range(broadcaster.MAX_STREAMS_OF_ONE):
                assert await refused(*who) == 0
            assert await refused(*who) == 429
        assert await refused("somebody else") == 503

    asyncio.run(open_many())
    web.close()


def test_a_stream_whose_client_is_gone_before_it_begins_takes_no_place(td: Treadle) -> None:
    web = td.asgi(auth=lambda request: "read")

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise OSError("gone")

    async def begin() -> None:
        for _ in range(2 * broadcaster.MAX_STREAMS_OF_ONE):
            stream = await broadcaster.events(ask_for_events(web, "me"))
            with contextlib.suppress(OSError):
                await stream({"type": "http"}, gone, send)

    asyncio.run(begin())
    web.close()
