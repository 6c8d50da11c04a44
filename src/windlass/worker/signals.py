"""SIGTERM and SIGINT: the first stops, a second one hurries."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

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
