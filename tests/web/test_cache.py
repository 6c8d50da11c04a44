"""The cache of a mount: many concurrent readers cost as much as one."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from treadle import Treadle, api_tokens
from treadle.web.app import MAX_CACHED, WebApp
from treadle.web.auth import token_owner
from treadle.web.cache import Cache


def web_of(td: Treadle) -> WebApp:
    return td.asgi(auth=lambda request: "read")


def test_a_value_that_many_request_at_once_is_computed_once(td: Treadle) -> None:
    web, made, go = web_of(td), [], threading.Event()

    def make() -> int:
        go.wait(10)
        made.append(1)
        return len(made)

    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(web.cached, "key", 60, make) for _ in range(5)]
        go.set()
        assert [future.result(10) for future in asked] == [1] * 5
    assert web.cached("key", 60, make) == 1
    assert web.cached("other", 60, make) == 2


def test_an_old_value_is_computed_again_and_an_expensive_one_is_kept_longer(td: Treadle) -> None:
    web, made = web_of(td), []

    def make() -> int:
        time.sleep(0.02)
        made.append(1)
        return len(made)

    assert [web.cached("cheap", 0, make) for _ in range(2)] == [1, 2]
    assert [web.cached("dear", 0, make, share=0.001) for _ in range(2)] == [3, 3]


def test_a_value_whose_computation_failed_is_tried_again(td: Treadle) -> None:
    web, answers = web_of(td), iter([RuntimeError("no"), "yes"])

    def make() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    try:
        web.cached("key", 60, make)
    except RuntimeError:
        assert web.cached("key", 60, make) == "yes"


def test_the_cache_of_keys_from_requests_is_bounded(td: Treadle) -> None:
    web = web_of(td)
    for n in range(5_000):
        web.cached(n, 60, lambda: None)
    assert len(web.cache) == MAX_CACHED


def test_what_was_made_last_stays_when_room_is_made(td: Treadle) -> None:
    cache, made = Cache(3), []
    for key in ("a", "b", "c"):
        cache.get(key, 0, lambda: None)
    cache.get("a", 60, lambda: None)
    cache.forget("c")
    for key in ("x", "y"):
        cache.get(key, 60, lambda: None)
    for key in ("a", "b", "c"):
        cache.get(key, 60, lambda key=key: made.append(key))  # type: ignore[misc]
    assert made == ["b", "c"]


def test_invented_tokens_do_not_push_out_what_pages_need(td: Treadle) -> None:
    web, made = web_of(td), []
    web.cached("page", 60, lambda: made.append(1))
    for _ in range(MAX_CACHED + 10):
        assert token_owner(web, api_tokens.new_secret()) is None
    web.cached("page", 60, lambda: made.append(1))
    assert (len(made), len(web.tokens)) == (1, MAX_CACHED)


def test_what_cannot_be_a_token_is_not_looked_up(td: Treadle) -> None:
    web = web_of(td)
    for secret in ("td_", "td_x", "td_" + "x" * 60_000):
        assert token_owner(web, secret) is None
    assert len(web.tokens) == 0
    assert len(api_tokens.new_secret()) == api_tokens.LENGTH


def test_a_page_from_the_cache_says_when_it_can_be_refreshed(td: Treadle) -> None:
    web = web_of(td)
    longer_than_hints_are_repeated = 2.5

    def shown() -> int:
        return int(web.cached("jobs", longer_than_hints_are_repeated, lambda: td.count().value))

    async def look() -> None:
        page = web.broadcaster.subscribe()
        assert await asyncio.to_thread(shown) == 0
        await asyncio.to_thread(td.enqueue, "a")
        while await asyncio.to_thread(shown) != 1:
            await page.next(10)
        web.broadcaster.unsubscribe(page)

    asyncio.run(look())
