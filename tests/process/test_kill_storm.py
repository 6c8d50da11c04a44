"""Thousands of jobs, four worker processes, a kill -9 every 250 ms. (script/torture: 50,000 jobs.)"""

from __future__ import annotations

from tests.process import history
from tests.process.handlers import storm_async, storm_thread, td
from tests.process.harness import Place, end, kill_every, size


def test_no_job_is_lost_or_ends_twice_and_every_run_is_recorded(place: Place) -> None:
    n = size("STORM", 1_500 if place.is_postgres else 3_000)
    acked = td.enqueue_many([(storm_async if i % 2 else storm_thread).request() for i in range(n)])
    supervisor = place.worker(processes=4, beat=1.0)

    kills = kill_every(0.25, place.worker_pids, lambda: n - place.count("completed"))

    assert end(supervisor) == 0
    found = history.History([job.id for job in acked], place.runs(), dict(kills), history.read(place.url))
    print(history.summary(found))
    assert history.breaches(found) == []
    assert td.workers() == []
    assert place.is_sound()
