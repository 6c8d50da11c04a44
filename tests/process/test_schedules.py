"""Schedules that fire every second, worker processes, kills: each moment has exactly one job. (By a fast clock.)"""

from __future__ import annotations

import time
from collections import defaultdict

import psutil
import pytest

from tests.process.handlers import td
from tests.process.harness import Place, end, kill_every
from tests.process.scheduled import NAMES, SPEED
from treadle import clock
from treadle.clock import SECOND
from treadle.management import every_job


def fire_and_kill(place: Place, *, workers: int, moments: int, times: int) -> None:
    """Until the first schedule has fired that many moments."""
    place.environment[SPEED] = f"{clock.now()} {times}"
    supervisor = place.worker(processes=workers, beat=1.0, module="tests.process.scheduled")
    place.wait_for_workers(workers)

    def left() -> int:
        jobs = place.sql(f"SELECT count(*) FROM treadle_jobs WHERE schedule = '{NAMES[0]}'")
        return max(0, moments - jobs[0][0])

    kills = kill_every(0.4, place.worker_pids, left)
    assert end(supervisor) == 0

    fired: defaultdict[str, list[int]] = defaultdict(list)
    for job in every_job(td):
        assert job.schedule is not None
        assert job.fired_at is not None
        fired[job.schedule].append(clock.from_datetime(job.fired_at))
    print(f"{len(kills)} kills, {sum(map(len, fired.values()))} jobs")
    assert set(fired) == set(NAMES)
    for found in fired.values():
        first, last = min(found), max(found)
        assert sorted(found) == list(range(first, last + 1, SECOND))
    assert place.is_sound()


def test_each_moment_has_exactly_one_job(place: Place) -> None:
    fire_and_kill(place, workers=3, moments=25, times=10)


@pytest.mark.torture
def test_each_of_two_thousand_moments_has_exactly_one_job(place: Place) -> None:
    fire_and_kill(place, workers=8, moments=2_000, times=10)


MANY = 100_000
FILL = {
    "sqlite": f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY})",
    "postgresql": f"WITH n (i) AS (SELECT generate_series(1, {MANY}))",
}


@pytest.mark.torture
def test_a_hundred_thousand_schedules_cost_an_idle_worker_a_hundredth_of_a_core(place: Place) -> None:
    def cpu(seconds: float = 30.0) -> float:
        """What an idle worker takes of a core."""
        worker = place.worker(module="tests.process.scheduled")
        place.wait_for_workers(1)
        time.sleep(3)
        process = psutil.Process(worker.pid)
        before = sum(process.cpu_times()[:2])
        time.sleep(seconds)
        used = (sum(process.cpu_times()[:2]) - before) / seconds
        assert end(worker) == 0
        return used

    for name in NAMES:
        td.schedules.put(name, "beat", every=86_400)  # so that nothing fires
    without = cpu()
    columns = "type, cron, zone, every, anchor, payload, subject, missed, overlap, source, spec, known, revision, "
    columns += "next_at, created_at, updated_at"
    fill = FILL["postgresql" if place.is_postgres else "sqlite"]
    of_tenants = (
        f"SELECT 'tenant-' || i, s.name || i, {columns} FROM treadle_schedules s, n WHERE s.name = '{NAMES[0]}'"
    )
    place.sql(f"{fill} INSERT INTO treadle_schedules (tenant, name, {columns}) {of_tenants}")
    assert place.sql("SELECT count(*) FROM treadle_schedules")[0][0] == MANY + len(NAMES)
    many = cpu()

    print(f"an idle worker takes {without:.2%} of a core, and {many:.2%} with {MANY:,} schedules")
    assert many - without <= 0.01
