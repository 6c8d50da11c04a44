"""A worker that is suspended until it is declared dead, and then continues, changes nothing."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.eventually import eventually
from tests.process.handlers import td, which_worker_runs_this, zombie, zombie_in_a_transaction
from tests.process.harness import Place, end, size
from treadle import Job

WAYS = ("complete", "fail", "snooze", "progress", "transaction")
TABLES = ("jobs", "ready", "leases", "finished", "attempts")


def rows_of(place: Place, jobs: list[Job]) -> dict[str, list[tuple[Any, ...]]]:
    ids = {job.id for job in jobs}
    return {name: [row for row in place.sql(f"SELECT * FROM treadle_{name}") if str(row[0]) in ids] for name in TABLES}


@pytest.mark.parametrize("deaf", [True, False], ids=["that tries everything", "as it is"])
def test_a_zombie_changes_nothing_and_continues_under_a_new_id(place: Place, deaf: bool) -> None:
    n = size("ZOMBIES", 50)
    place.sql("CREATE TABLE effects (id TEXT)")
    # When the victim wakes up, half of its jobs have ended and the other worker runs half.
    asked = [(how, waits) for waits in (False, True) for how in WAYS for _ in range(n // 2)]
    handlers = {"transaction": zombie_in_a_transaction}
    jobs = td.enqueue_many([handlers.get(how, zombie).request(how=how, waits=waits) for how, waits in asked])
    victim = place.worker(concurrency=2 * len(jobs), beat=1.0, deaf=deaf, env={"TREADLE_TEST_ROLE": "victim"})
    eventually(lambda: len(place.noted("start")) == len(jobs))
    [first] = td.workers()

    place.stop_unless_writing([victim.pid])
    second = place.worker(concurrency=len(jobs), beat=1.0, queues=["default"], env={"TREADLE_TEST_ROLE": "second"})
    eventually(lambda: place.count("completed") == place.count("processing") == len(jobs) // 2)
    eventually(lambda: first.id not in {row.id for row in td.workers()})
    left_to_claim = td.enqueue_many([which_worker_runs_this.request() for _ in range(10)])
    before = rows_of(place, jobs)

    place.open_gate("victim")
    os.kill(victim.pid, signal.SIGCONT)

    assert [td.result(job.id) for job in left_to_claim] == ["victim"] * 10
    reborn = next(row for row in td.workers() if row.host["pid"] == victim.pid)
    assert reborn.id != first.id
    assert rows_of(place, jobs) == before
    assert place.sql("SELECT * FROM effects") == []
    if deaf:
        assert len(place.noted("refused")) >= 50
        assert place.noted("claimed") == []
        assert len(place.noted("woke")) == len(jobs)
        refused = place.said("the lease was lost, its outcome was not written")
        assert refused == len(jobs) - n  # the transaction's was refused earlier

    place.open_gate("second")
    assert [td.result(job.id) for job in jobs] == [f"second {how}" for how, _ in asked]
    assert [end(victim), end(second)] == [0, 0]
