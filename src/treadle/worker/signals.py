"""The main loop of a worker process, and the signals that end it: the first stops, a second one hurries."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

ONE_SIGNAL = 1.0
"""Seconds within which signals count as one: a service manager and a supervisor may both send the first."""


def until_signalled(again: Callable[[], None]) -> asyncio.Event:
    """An event that is set by the first signal. `again` is called by those that come later."""
    stop = asyncio.Event()
    first_at = 0.0

    def signalled() -> None:
        nonlocal first_at
        if not stop.is_set():
            first_at = time.monotonic()
            stop.set()
        elif time.monotonic() - first_at > ONE_SIGNAL:
            again()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled)
    return stop


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, which does not wait for threads that a handler has left behind in the loop's pool."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
