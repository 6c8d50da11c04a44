"""Two thousand jobs, three worker processes, a kill -9 each second, and a server that crashes twice."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.process import history
from tests.process.handlers import storm_slow, td
from tests.process.harness import Place, end, kill_every, size
from tests.servers.libsql import LibSQLServer
from treadle.errors import StoreUnusable

SECONDS = 0.12
"""Seconds that each job takes: long enough for the storm to include both crashes."""
CRASHES = (3.0, 6.0)
"""Seconds after the start."""


def test_no_job_is_lost_or_ends_twice_and_every_run_is_recorded(own_server: LibSQLServer, tmp_path: Path) -> None:
    n = size("LIBSQL", 2_000)
    with Place(tmp_path, own_server.url) as place:
        supervisor = place.worker(processes=3, concurrency=10, beat=1.0)
        place.wait_for_workers(3)
        acked = td.enqueue_many([storm_slow.request(seconds=SECONDS) for _ in range(n)])
        crashes = [threading.Timer(after, lambda: (own_server.kill(), own_server.start())) for after in CRASHES]
        for crash in crashes:
            crash.start()
        kills = kill_every(1.0, lambda: living(place), lambda: n - completed(place))
        for crash in crashes:
            crash.join()

        assert end(supervisor) == 0
        found = history.History([job.id for job in acked], place.runs(), dict(kills), history.read(place.url))
        print(history.summary(found))
        assert history.breaches(found) == []
        assert td.workers() == []


def living(place: Place) -> list[int]:
    """The live workers; none while the server is down."""
    try:
        return place.worker_pids()
    except StoreUnusable:
        return []


def completed(place: Place) -> int:
    try:
        return place.count("completed")
    except StoreUnusable:
        return -1
