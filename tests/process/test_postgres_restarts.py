"""A PostgreSQL server that stops and comes back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.eventually import eventually
from tests.process import usage
from tests.process.fault_injection import crashing
from tests.process.faults import MakePostgres, check, completed, living
from tests.process.handlers import (
    storm_async,
    storm_slow,
    storm_thread,
    td,
    three_at_once,
    waits_at_a_gate,
    waits_at_a_gate_in_a_thread,
)
from tests.process.harness import Place, end, kill_every, size
from tests.servers.postgres import PostgresServer
from treadle import Treadle


def test_an_outage_takes_no_job_from_a_live_worker(server: PostgresServer, tmp_path: Path) -> None:
    """For twelve beats no worker can beat, so none is declared dead."""
    beat, seconds = 1.0, size("OUTAGE", 12)
    with Place(tmp_path, server.url()) as place:
        handlers = waits_at_a_gate, waits_at_a_gate_in_a_thread
        jobs = td.enqueue_many([handler.request(gate="over") for handler in handlers for _ in range(20)])
        supervisors = [place.worker(processes=2, concurrency=10, beat=beat) for _ in range(2)]
        eventually(lambda: len(place.runs()) == len(jobs))
        leases = "SELECT id, lease, worker FROM treadle_leases ORDER BY lease"
        before, workers = place.sql(leases), {row.id: row.beats for row in td.workers()}

        server.stop()
        time.sleep(seconds)  # the outage itself
        server.start()

        def beats() -> dict[str, int]:
            return {row.id: row.beats for row in td.workers()}

        eventually(lambda: all(beats().get(id, count + 4) >= count + 4 for id, count in workers.items()))
        assert beats().keys() == workers.keys()
        assert place.sql(leases) == before
        place.open_gate("over")
        eventually(lambda: place.count("completed") == len(jobs))
        assert place.sql("SELECT * FROM treadle_attempts") == []
        assert len(place.runs()) == len(jobs)
        assert sorted(place.sql("SELECT id, lease FROM treadle_finished")) == sorted(row[:2] for row in before)
        assert [end(supervisor) for supervisor in supervisors] == [0, 0]


def with_options(place: Place) -> subprocess.Popen[bytes]:
    return place.worker(processes=1, concurrency=3, beat=60)


def by_command(place: Place) -> subprocess.Popen[bytes]:
    return place.python("-m", "treadle", "worker", "tests.process.handlers:td", "--concurrency", "3")


@pytest.mark.parametrize("start", [with_options, by_command])
def test_a_supervisor_that_loses_a_worker_in_an_outage_replaces_it_and_returns_its_jobs(
    server: PostgresServer, tmp_path: Path, start: Callable[[Place], subprocess.Popen[bytes]]
) -> None:
    """As at any other time: only jobs that had started are charged, and the new worker starts automatically."""
    with Place(tmp_path, server.url()) as place:
        started = td.enqueue_many([waits_at_a_gate.request(gate="later") for _ in range(3)])
        supervisor = start(place)
        eventually(lambda: len(place.runs()) == 3)
        [pid] = place.worker_pids()

        server.stop()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: place.said("its jobs will be returned later") and place.said("cannot be reached") > 2)
        eventually(lambda: place.said("not registered yet") > 1)
        [successor] = psutil.Process(supervisor.pid).children()
        server.start()

        eventually(lambda: len(place.runs()) == 6)
        assert {run.pid for run in place.runs()} == {pid, successor.pid}  # it waited, and did not die repeatedly
        place.open_gate("later")
        eventually(lambda: place.count("completed") == 3)
        errors = [attempt.error for job in started for attempt in td.attempts(job.id)]
        assert errors == ["its worker was killed by SIGKILL"] * 3
        assert end(supervisor) == 0


@pytest.mark.torture
def test_a_storm_while_the_server_crashes_every_two_seconds(server: PostgresServer, tmp_path: Path) -> None:
    """Nothing is lost, no stale outcome is written, and no limit is exceeded."""
    n = size("CRASH_STORM", 1_500)
    with Place(tmp_path, server.url()) as place:
        supervisors = [place.worker(processes=2, concurrency=8, beat=1.0) for _ in range(2)]
        place.wait_for_workers(4)
        requests = [(storm_async if i % 2 else storm_thread).request() for i in range(n)]
        requests += [storm_slow.request(seconds=0.3) for _ in range(n // 5)]
        requests += [three_at_once.request(seconds=0.1) for _ in range(n // 5)]
        random.shuffle(requests)
        jobs = td.enqueue_many(requests)
        with crashing(server, 2.0) as restarts:
            kills = kill_every(1.0, lambda: living(place), lambda: len(jobs) - completed(place))
        assert [end(supervisor) for supervisor in supervisors] == [0, 0]
        found = check(place, jobs, kills)
        limited = {str(id) for (id,) in place.sql("SELECT id FROM treadle_jobs WHERE type = 'three_at_once'")}
        most = usage.most_at_once([run for run in found.runs if run.id in limited], dict(kills))
        print(f"{len(jobs)} jobs, {len(found.runs)} runs, {len(kills)} kills, {len(restarts)} crashes: {most} at once")
        assert most <= usage.LIMIT


def test_callers_do_not_notice_a_restart_of_the_server(make_postgres: MakePostgres) -> None:
    """Even though every connection in their pools is broken."""
    server = make_postgres()
    with closing(Treadle(server.url())) as app, ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            list(threads.map(lambda _: app.store.insert([app_request(app)]), range(20)))  # several connections
            list(threads.map(lambda _: app.counts(), range(20)))
            server.restart("immediate")
            assert app.enqueue("work").status == "pending"
            assert app.counts()
        assert app.counts() == [{"status": "pending", "count": 63}]


def app_request(app: Treadle) -> Any:
    from treadle.ids import new_id
    from treadle.job import NewJob

    return NewJob(id=new_id(), type="work")
