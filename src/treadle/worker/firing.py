"""Fires schedules. Every worker does, and every tick: there is no leader to lose."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from treadle.errors import TreadleError
from treadle.stores.base import Store
from treadle.worker import parts

log = logging.getLogger("treadle")

BATCH = 50
"""Schedules that are fired in one transaction."""
LOOK = 1.0
"""Seconds after which a worker looks whether another process has put a schedule that is due earlier."""
NONE_LOOK = 5.0
"""The same, if there is no schedule."""
SPREAD = 0.05
"""Seconds over which workers spread their looks, so that not all of them try to fire the same moment."""


async def fire_schedules(store: Store, fired: Callable[[], None]) -> None:
    """Fire what is due and sleep until the next moment, until cancelled. Calls `fired` when jobs were stored."""
    # Not in the loop's own pool: handlers may fill that.
    thread = ThreadPoolExecutor(1, "treadle-schedules")
    try:
        while True:
            pause = NONE_LOOK
            try:
                jobs, pause = await asyncio.get_running_loop().run_in_executor(thread, _look, store)
                if jobs:
                    fired()
            except TreadleError as error:
                parts.warn("schedules have to wait: %s", error)
            except Exception:
                log.exception("schedules were not fired")
            await asyncio.sleep(pause + random.uniform(0, SPREAD))
    finally:
        thread.shutdown(wait=False)


def _look(store: Store) -> tuple[int, float]:
    """Fire what is due. How many jobs were stored, and for how long there is nothing to do."""
    jobs, due = 0, store.next_fire()
    if due.now:
        jobs, due = _fire(store, 1.0), store.next_fire()
    if due.in_seconds is None:
        return jobs, NONE_LOOK
    # One that is still due is locked by another transaction.
    return jobs, LOOK if due.now and not jobs else min(LOOK, due.in_seconds)


def fire_due(store: Store, seconds: float) -> int:
    """Fire what is due, in short transactions, for about this long. How many jobs were stored."""
    return _fire(store, seconds) if store.next_fire().now else 0


def _fire(store: Store, seconds: float) -> int:
    deadline, jobs, more = time.monotonic() + seconds, 0, True
    while more and time.monotonic() < deadline:
        some, more = store.fire(BATCH)
        jobs += some
    return jobs
