"""Steps, waits and dependencies under kills: by the handlers' own journals. (script/torture has more.)"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import psutil
import pytest

from tests.process.fault_injection import Restart, crashing
from tests.process.faults import completed, living
from tests.process.handlers import after_the_batch, member, node, td, ten_steps, waits_for_a_signal
from tests.process.harness import Place, end, kill_every, size
from tests.process.journal import lines
from tests.servers.postgres import PostgresServer
from treadle.clock import SECOND
from treadle.job import Job
from treadle.outcome import Outcome, OutcomeKind
from treadle.stores.base import ClaimRequest
from treadle.waits import NewWait

SIGNALS = """
import random, sys
from treadle import Treadle
td, first, last = Treadle(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for n in random.sample(range(first, last), last - first):
    td.signal(f"go {n}", f"sent {n}")
"""


def left(place: Place, n: int) -> int:
    return n - completed(place)


def check_steps(place: Place, n: int, faults: Callable[[], AbstractContextManager[list[Restart]]]) -> None:
    processes = size("STEPS_PROCESSES", 2)
    supervisor = place.worker(processes=processes, beat=1.0, concurrency=20)
    place.wait_for_workers(processes)
    jobs = td.enqueue_many([ten_steps.request() for _ in range(n)])
    with faults() as restarts:
        kills = kill_every(0.25, lambda: living(place), lambda: left(place, n))
    assert end(supervisor) == 0
    stored: set[tuple[str, str]] = set()
    again: list[list[str]] = []
    for _, what, *words in lines(place.journals):
        key = (words[0], words[1])
        if what == "stored":
            stored.add(key)
        elif what == "step" and key in stored:
            again.append(words)
    steps = len(place.noted("step"))
    faulty = f"{len(kills)} kills, {len(restarts)} crashes of the server"
    print(f"{n} jobs of 10 steps, {faulty}: {steps} steps ran, {len(stored)} were stored, {len(again)} again")
    assert again == []
    assert len(stored) == 10 * n
    assert {td.get(job.id).result for job in jobs} == {45}
    assert place.sql("SELECT count(*) FROM treadle_attempts WHERE outcome = 'failed'") == [(0,)]


def test_no_stored_step_runs_again(place: Place) -> None:
    check_steps(place, size("STEPS", 30), lambda: nullcontext([]))


@pytest.mark.torture
def test_no_stored_step_runs_again_though_the_server_crashes(server: PostgresServer, tmp_path: Path) -> None:
    with Place(tmp_path, server.url()) as place:
        check_steps(place, size("STEPS", 400), lambda: crashing(server))


def test_each_wait_has_one_outcome_and_no_signal_is_lost(place: Place) -> None:
    """Half of the signals race with timeouts. Of the others, which have time, each arrives."""
    n, senders = size("WAITS", 120), size("WAITS_SENDERS", 2)
    supervisor = place.worker(processes=2, beat=1.0, concurrency=50)
    place.wait_for_workers(2)
    before = subprocess.Popen([sys.executable, "-c", SIGNALS, place.url, "0", str(n // 4)])
    requests = [
        waits_for_a_signal.request(name=f"go {k}", timeout=random.uniform(0, 2) if k % 2 else 600) for k in range(n)
    ]
    jobs: list[Job] = []
    for some in range(0, n, 1000):
        jobs += td.enqueue_many(requests[some : some + 1000])
    bounds = [n // 4 + k * (n - n // 4) // senders for k in range(senders + 1)]
    started = [
        subprocess.Popen([sys.executable, "-c", SIGNALS, place.url, str(first), str(last)])
        for first, last in itertools.pairwise(bounds)
    ]
    kills = kill_every(0.5, place.worker_pids, lambda: left(place, n))
    assert [process.wait(60) for process in (before, *started)] == [0] * (senders + 1)
    assert end(supervisor) == 0
    results = [td.get(job.id).result for job in jobs]
    found = Counter("timeout" if result == "timeout" else "signal" for result in results)
    print(f"{n} waits, {len(kills)} kills: {dict(found)}")
    for k, result in enumerate(results):
        assert result == f"sent {k}" or (k % 2 and result == "timeout")
    noted: dict[str, set[str]] = {}
    for _, _, id, *words in place.noted("outcome"):
        noted.setdefault(id, set()).add(" ".join(words[:-1]))
    assert all(len(outcomes) == 1 for outcomes in noted.values())
    assert place.sql("SELECT count(*) FROM treadle_ready") == [(0,)]


def test_no_child_starts_before_its_parents_and_each_starts(place: Place) -> None:
    width, depth = size("GRAPH", 100), size("CHAIN", 15)
    top = node.request()
    middle = [node.using(after=top).request() for _ in range(width)]
    bottom = node.using(after=middle).request()
    chain = [node.request()]
    for _ in range(depth - 1):
        chain.append(node.using(after=chain[-1]).request())
    supervisor = place.worker(processes=2, beat=1.0, concurrency=50)
    place.wait_for_workers(2)
    jobs = td.enqueue_many([top, *middle, bottom, *chain])
    kills = kill_every(0.5, place.worker_pids, lambda: left(place, len(jobs)))
    assert end(supervisor) == 0
    runs = place.runs()
    print(f"{len(jobs)} jobs, {len(kills)} kills: {len(runs)} runs")
    assert {words[3] for words in place.noted("early")} == {"0"}
    ended = {run.id for run in runs if run.ended is not None}
    assert ended == {job.id for job in jobs}
    first_ends: dict[str, int] = {}
    for run in sorted((run for run in runs if run.ended), key=lambda run: run.ended or 0):
        first_ends.setdefault(run.id, run.ended or 0)
    last = max(first_ends[job.id] for job in middle)
    assert min(run.started for run in runs if run.id == bottom.id) > last
    assert place.sql("SELECT count(*) FROM treadle_waits WHERE met = 0") == [(0,)]
    assert place.sql("SELECT count(*) FROM treadle_arrivals") == [(0,)]


def test_a_batch_closes_once_and_its_counts_are_exact(place: Place) -> None:
    n = size("BATCH", 1000)
    supervisor = place.worker(processes=2, beat=1.0, concurrency=100)
    place.wait_for_workers(2)
    with td.batch("all", then=after_the_batch.request(name="all")) as batch:
        for _ in range(n):
            batch.add(member.request())
    kills = kill_every(0.5, place.worker_pids, lambda: left(place, n + 1))
    assert end(supervisor) == 0
    found, then = td.batches.get("all"), place.noted("batch")
    print(f"a batch of {n}, {len(kills)} kills: {found.completed} completed, {len(then)} runs of what follows")
    assert (found.added, found.completed, found.failed, found.cancelled) == (n, n, 0, 0)
    assert (found.closings, found.is_open) == (1, False)
    assert place.sql("SELECT count(*) FROM treadle_jobs") == [(n + 1,)]
    assert len({run.id for run in place.runs()}) == 1
    assert [tuple(row) for row in place.sql("SELECT count(*) FROM treadle_arrivals")] == [(0,)]


def suspend_many(place: Place, n: int) -> None:
    """Jobs that wait for signals, half of them for a day at most."""
    for first in range(0, n, 500):
        td.enqueue_many([waits_for_a_signal.request(name=f"go {k}", timeout=1) for k in range(first, first + 500)])
        ended = []
        for k, claimed in enumerate(place.store.claim("", ClaimRequest(limit=500)), first):
            wait = NewWait("signal", f"go {k}", f"go {k}", timeout=86_400 * SECOND if k % 2 else None)
            ended.append((claimed, Outcome(OutcomeKind.SUSPENDED, charged=0, waits=(wait,))))
        assert place.store.settle(ended).lost == []


@pytest.mark.torture
def test_a_hundred_thousand_suspended_jobs_cost_an_idle_worker_nothing(place: Place) -> None:
    def cpu(seconds: float = 30.0) -> float:
        """What an idle worker takes of a core, and its sessions on the server."""
        worker = place.worker(processes=0)
        place.wait_for_workers(1)
        time.sleep(5)
        before = {process: used(process) for process in (psutil.Process(worker.pid), *servers(place))}
        time.sleep(seconds)
        # The worker closes connections that it no longer needs.
        took = sum(used(process) - then for process, then in before.items() if process.is_running())
        assert end(worker) == 0
        return took / seconds

    n = size("SUSPENDED", 100_000)
    without = cpu()
    suspend_many(place, n)
    assert place.count("blocked") == n
    many = cpu()
    print(f"an idle worker takes {without:.2%} of a core, and {many:.2%} with {n:,} suspended jobs")
    assert many - without <= 0.01


def used(process: psutil.Process) -> float:
    """Seconds of CPU."""
    return sum(process.cpu_times()[:2])


def servers(place: Place) -> list[psutil.Process]:
    """The sessions of this database: those of clients, not of autovacuum."""
    if not place.is_postgres:
        return []
    ours = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    pids = place.sql(f"SELECT pid FROM pg_stat_activity WHERE {ours}")
    return [psutil.Process(pid) for (pid,) in pids]
