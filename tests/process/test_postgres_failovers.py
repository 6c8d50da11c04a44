"""A PostgreSQL server that is read-only for a moment, crashes, or is replaced by its standby, while jobs run."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.process import history
from tests.process.fault_injection import every, read_only
from tests.process.faults import completed, count
from tests.process.handlers import storm_async, storm_slow, storm_thread, td, waits_at_a_gate
from tests.process.harness import Place, end, size
from tests.servers.postgres import PostgresServer
from tests.servers.replication import Cluster
from treadle import Treadle
from treadle.errors import CommitUnknown, StoreBusy, StoreUnusable

WAITING = "waiting to be settled"


class Load:
    """Enqueues some jobs, whatever the server does."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.unknown: list[str] = []
        self.refused = 0

    def enqueue(self) -> None:
        """An enqueue raises nothing but these errors."""
        requests = [request for _ in range(3) for request in (storm_async.request(), storm_thread.request())]
        requests += [storm_slow.request(seconds=0.2)]
        ids = [request.id for request in requests]
        try:
            td.enqueue_many(requests)
            self.stored += ids
        except CommitUnknown:
            self.unknown += ids
        except (StoreUnusable, StoreBusy):
            self.refused += 1


def storm(place: Place, n: int, strike: Callable[[], object]) -> None:
    """Strike n times under load. Each handler runs once and completes its job, and nothing of the workers ends."""
    supervisors = [place.worker(processes=1, concurrency=8, beat=2.0) for _ in range(2)]
    place.wait_for_workers(2)
    workers = {row.id for row in td.workers()}
    load, began = Load(), time.monotonic()
    with every(0.03, load.enqueue):
        for _ in range(n):
            before = completed(place)
            eventually(lambda least=before + 50: completed(place) > least)  # type: ignore[misc]
            strike()
    there = {str(id) for (id,) in place.sql("SELECT id FROM treadle_jobs")}
    acked = load.stored + [id for id in load.unknown if id in there]
    eventually(lambda: count(place, "completed", "failed", "cancelled") == len(acked))

    print(
        f"{n} strikes in {time.monotonic() - began:.0f} s: {len(acked)} jobs, {load.refused} enqueues refused, "
        f"{len(load.unknown)} of unknown result; outcomes had to wait {place.said(WAITING)} times"
    )
    assert {row.id for row in td.workers()} == workers
    assert [supervisor.poll() for supervisor in supervisors] == [None, None]
    assert [end(supervisor) for supervisor in supervisors] == [0, 0]
    found = history.History(acked, place.runs(), {}, history.read(place.url))
    assert history.breaches(found) == []
    assert sorted(run.id for run in found.runs) == sorted(acked)


def test_no_job_fails_or_runs_twice_while_the_server_is_read_only_now_and_then(
    server: PostgresServer, tmp_path: Path
) -> None:
    """By turns for all sessions at once, and for those that begin in that time, which then stay read-only."""
    flips = itertools.count()
    with Place(tmp_path, server.url()) as place:

        def flip() -> None:
            before = place.said("be settled")
            with read_only(place.url, for_new_sessions=bool(next(flips) % 2)):
                eventually(lambda: place.said("be settled") > before)  # an outcome has met it

        storm(place, size("FLIPS", 2), flip)


@pytest.mark.torture
def test_no_job_fails_or_runs_twice_while_the_server_crashes(server: PostgresServer, tmp_path: Path) -> None:
    with Place(tmp_path, server.url()) as place:
        storm(place, size("CRASHES", 2), lambda: server.restart("immediate"))


@pytest.mark.torture
def test_no_job_fails_or_runs_twice_while_a_standby_takes_the_place_of_its_primary(
    postgres_cluster: Cluster, tmp_path: Path
) -> None:
    """Nothing that was answered is lost, as the replication is synchronous. A URL that reaches the standby first has to
    wait for the promotion, and the error says how to avoid that."""
    with closing(Treadle(postgres_cluster.primary.url())) as app:
        app.store.open()
    with closing(Treadle(postgres_cluster.standby.url())) as standby:
        eventually(standby.store.schema)  # it has the tables
        with pytest.raises(StoreUnusable, match=r"read-only transaction.*add target_session_attrs=read-write"):
            standby.enqueue("work")
        assert standby.counts() == []
    with Place(tmp_path, postgres_cluster.url) as place:
        storm(place, size("PROMOTIONS", 1), postgres_cluster.fail_over)


def test_a_supervisor_that_loses_a_worker_while_the_server_is_read_only_returns_its_jobs(
    postgres_url: str, tmp_path: Path
) -> None:
    with Place(tmp_path, postgres_url) as place:
        jobs = td.enqueue_many([waits_at_a_gate.request(gate="later") for _ in range(3)])
        supervisor = place.worker(processes=1, concurrency=3, beat=60)
        eventually(lambda: len(place.runs()) == 3)
        [pid] = place.worker_pids()
        with read_only(place.url, for_new_sessions=True):
            os.kill(pid, signal.SIGKILL)
            eventually(
                lambda: place.said("its jobs will be returned later") > 1 and place.said("not registered yet") > 1
            )
        eventually(lambda: len(place.runs()) == 6)
        place.open_gate("later")
        eventually(lambda: place.count("completed") == 3)
        errors = [attempt.error for job in jobs for attempt in td.attempts(job.id)]
        assert errors == ["its worker was killed by SIGKILL"] * 3
        assert end(supervisor) == 0
