"""concurrency=3, 300 jobs, four processes, kills on the way. (On PostgreSQL 60; script/torture has more.)"""

from __future__ import annotations

from tests.process.handlers import td, three_at_once
from tests.process.harness import Place, end, kill_every, size
from tests.process.usage import LIMIT, most_at_once, used


def test_a_limit_of_three_is_never_exceeded_and_all_slots_are_in_use_between_kills(place: Place) -> None:
    """Between two runs in a slot are two commits, which wait for the disk or make a dozen round trips to the server.
    The jobs take long compared with that."""
    n, seconds = (size("LIMITS", 60), 1.0) if place.is_postgres else (size("LIMITS", 300), 0.5)
    supervisor = place.worker(processes=4, beat=1.0)
    place.wait_for_workers(4)
    td.enqueue_many([three_at_once.request(seconds=seconds) for _ in range(n)])
    kills = dict(kill_every(2.0, place.worker_pids, lambda: n - place.count("completed")))
    assert end(supervisor) == 0
    runs = place.runs()
    most, share = most_at_once(runs, kills), used(runs, kills)
    print(f"{len(runs)} runs, {len(kills)} kills: {most} at once, {share:.1%} used")
    assert most == LIMIT
    assert share >= 0.9
