"""Poison on two hosts, while the PostgreSQL server crashes every five seconds: that costs and grants no attempt."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.process.fault_injection import crashing
from tests.process.faults import count
from tests.process.handlers import td
from tests.process.harness import Place, end
from tests.process.journal import Run
from tests.process.test_poison import DOSES, KINDS, REASONS
from tests.servers.namespaces import Network
from tests.servers.postgres import PostgresServer
from treadle import Status

BESIDE_OTHERS = "other jobs ran there too, so it runs again, alone"


def cut_short(runs: Sequence[Run], killers: set[str]) -> Counter[str]:
    """How many runs of each job in a child may have died with their worker, which another job has killed.

    Such a run is given back: the job did not cause it.
    """
    dead = {run.worker: run.id for run in runs if run.pid == run.worker and run.id in killers}
    return Counter(
        run.id for run in runs if run.pid != run.worker and dead.get(run.worker, run.id) != run.id and run.ended is None
    )


@pytest.mark.torture
@pytest.mark.parametrize("dose", DOSES, ids=lambda dose: dose.job_type.name)
def test_each_poison_job_fails_after_exactly_its_attempts_and_no_other_job_fails(
    server: PostgresServer, network: Network, tmp_path: Path, dose: Any
) -> None:
    """Each attempt has its run, and each run its attempt, except those that another job's crash cut short."""
    poisons = [*KINDS, *[""] * 100]
    random.shuffle(poisons)
    with Place(tmp_path, server.url(host=network.address)) as place:
        asked = [dose.request(poison=poison, seconds=random.uniform(0.1, 1.0)) for poison in poisons]
        supervisors = [place.worker(processes=1, concurrency=10, beat=1.0, host=host) for host in network.hosts]
        place.wait_for_workers(2)
        jobs = td.enqueue_many(asked)
        with crashing(server) as restarts:
            eventually(lambda: count(place, "completed", "failed") == len(jobs) and restarts, within=180)
        assert [end(supervisor) for supervisor in supervisors] == [0, 0]
        runs, by_id = place.runs(), Counter(run.id for run in place.runs())
        print(f"{len(runs)} runs of {len(jobs)} jobs, {len(restarts)} restarts")

        killers = {job.id for job, poison in zip(jobs, poisons, strict=True) if poison not in ("", "memory")}
        excused = cut_short(runs, killers)
        for job, poison in zip(jobs, poisons, strict=True):
            ended, attempts = td.get(job.id), td.attempts(job.id)
            assert ended is not None
            assert ended.status == (Status.FAILED if poison else Status.COMPLETED), attempts
            completing = 0 if poison else 1
            assert 0 <= by_id[job.id] - len(attempts) - completing <= excused[job.id], attempts
            if poison:
                assert ended.attempts == 2
                assert REASONS[poison] in str(ended.error)
            if poison in ("", "memory"):  # it killed no other job, but another may have killed it
                attempts = [attempt for attempt in attempts if BESIDE_OTHERS not in str(attempt.error)]
            assert len(attempts) == (2 if poison else 0)
