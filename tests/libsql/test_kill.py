"""Two thousand jobs, three worker processes, a kill -9 each second, and a server that crashes twice on top."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

from tests.process import history
from tests.process.handlers import storm_slow, wl
from tests.process.harness import Kill, Place, end, size
from tests.servers.libsql import LibSQLServer
from windlass.errors import StoreUnusable

SECONDS = 0.12
"""Of each job: long enough for the storm to last through both crashes."""
CRASHES = (3.0, 6.0)
"""Seconds after the start."""


def test_none_is_lost_none_ends_twice_and_every_run_is_accounted_for(own_server: LibSQLServer, tmp_path: Path) -> None:
    n = size("LIBSQL", 2_000)
    with Place(tmp_path, own_server.url) as place:
        acked = wl.enqueue_many([storm_slow.request(seconds=SECONDS) for _ in range(n)])
        supervisor = place.worker(processes=3, concurrency=10, beat=1.0)
        crashes = [threading.Timer(after, lambda: (own_server.kill(), own_server.start())) for after in CRASHES]
        for crash in crashes:
            crash.start()
        kills = storm(place, n)
        for crash in crashes:
            crash.join()

        assert end(supervisor) == 0
        found = history.History([job.id for job in acked], place.runs(), dict(kills), history.read(place.url))
        print(history.told(found))
        assert history.breaches(found) == []
        assert wl.workers() == []


def storm(place: Place, n: int) -> list[Kill]:
    """kill -9 a worker each second, until all is done."""
    kills: list[Kill] = []
    deadline = time.monotonic() + 60 + n / 50
    while (done := completed(place)) < n:
        assert time.monotonic() < deadline, f"{done} of {n} after {len(kills)} kills: {place.log.read_text()[-2000:]}"
        time.sleep(1.0)
        if pids := set(living(place)) - {kill.pid for kill in kills}:
            kills.append(Kill(random.choice(sorted(pids)), time.monotonic_ns()))
            os.kill(kills[-1].pid, signal.SIGKILL)
    return kills


def living(place: Place) -> list[int]:
    """None while there is no server to ask."""
    try:
        return place.worker_pids()
    except StoreUnusable:
        return []


def completed(place: Place) -> int:
    try:
        return place.count("completed")
    except StoreUnusable:
        return -1
