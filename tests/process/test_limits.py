"""concurrency=3, a thousand jobs, four processes, kills on the way. (On PostgreSQL, ninety.)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.process.handlers import three_at_once, wl
from tests.process.harness import Place, end, eventually, kill_every, size
from tests.process.journal import Run

LIMIT = 3


def changes(runs: Sequence[Run], kills: Mapping[int, int]) -> list[tuple[int, int]]:
    """When there is one live run more, or one less. A killed process's runs end when it is killed."""
    ends = [run.ended or kills[run.pid] for run in runs]
    return sorted([(run.started, 1) for run in runs] + [(ended, -1) for ended in ends], key=lambda at: (at[0], at[1]))


def most_at_once(runs: Sequence[Run], kills: Mapping[int, int]) -> int:
    most = live = 0
    for _, by in changes(runs, kills):
        live += by
        most = max(most, live)
    return most


def used(runs: Sequence[Run], kills: Mapping[int, int]) -> float:
    """The part of the slots' time in which a handler ran, from first to last."""
    busy = sum((run.ended or kills[run.pid]) - run.started for run in runs)
    return busy / LIMIT / (max(run.last_seen for run in runs) - min(run.started for run in runs))


def test_there_are_never_four_at_once_and_the_slots_are_in_use_between_the_kills(place: Place) -> None:
    """Between two runs in a slot are two commits, which wait for the disk or make a dozen journeys to the server: hence
    jobs that are long against that."""
    n, seconds = (size("LIMITS", 90), 0.2) if place.is_postgres else (size("LIMITS", 1000), 0.1)
    supervisor = place.worker(processes=4, beat=1.0)
    eventually(lambda: len(wl.workers()) == 4)
    wl.enqueue_many([three_at_once.request(seconds=seconds) for _ in range(n)])
    kills = dict(kill_every(2.0, place, supervisor, lambda: place.count("completed") == n, within=60 + n))
    assert end(supervisor) == 0
    runs = place.runs()
    most, share = most_at_once(runs, kills), used(runs, kills)
    print(f"{len(runs)} runs, {len(kills)} kills: {most} at once, {share:.1%} used")
    assert most == LIMIT
    assert share >= 0.9
