"""A WSGI app, loaded once by gunicorn and then forked: each request enqueues in its own way."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from tests.process.handlers import quick
from tests.process.journal import note
from treadle.errors import BlocksTheLoop

note("acked", quick.enqueue().id)  # in the parent: the connection is open when it forks


def at_exit() -> None:
    note("acked", quick.enqueue().id)


def in_a_thread() -> str:
    ids: list[str] = []
    thread = threading.Thread(target=lambda: ids.append(quick.enqueue().id))
    thread.start()
    thread.join()
    return ids[0]


async def on_a_loop() -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        job = quick.enqueue()
    assert [warning.category for warning in caught] == [BlocksTheLoop]
    return job.id


async def with_await() -> str:
    return (await quick.aenqueue()).id


WAYS: dict[str, Callable[[], str]] = {
    "/plain": lambda: quick.enqueue().id,
    "/thread": in_a_thread,
    "/loop": lambda: asyncio.run(on_a_loop()),
    "/await": lambda: asyncio.run(with_await()),
}


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    global at_exit
    if at_exit is not None:  # once in each child
        atexit.register(at_exit)
        at_exit = None  # type: ignore[assignment]
    id = WAYS[environ["PATH_INFO"]]()
    note("acked", id)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {id}".encode()]
