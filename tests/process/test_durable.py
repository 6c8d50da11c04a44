"""Steps, waits and dependencies under kills: by the handlers' own journals. (script/torture has more.)"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections import Counter

from tests.process.handlers import node, td, ten_steps, waits_for_a_signal
from tests.process.harness import Place, end, kill_every, size
from tests.process.journal import lines
from treadle.job import Job

SIGNALS = """
import random, sys
from treadle import Treadle
td, first, last = Treadle(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for n in random.sample(range(first, last), last - first):
    td.signal(f"go {n}", f"sent {n}")
"""


def left(place: Place, n: int) -> int:
    return n - place.count("completed")


def test_no_stored_step_runs_again(place: Place) -> None:
    n, processes = size("STEPS", 30), size("STEPS_PROCESSES", 2)
    supervisor = place.worker(processes=processes, beat=1.0, concurrency=20)
    place.wait_for_workers(processes)
    jobs = td.enqueue_many([ten_steps.request() for _ in range(n)])
    kills = kill_every(0.25, place.worker_pids, lambda: left(place, n))
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
    print(f"{n} jobs of 10 steps, {len(kills)} kills: {steps} steps ran, {len(stored)} were stored, {len(again)} again")
    assert again == []
    assert len(stored) == 10 * n
    assert {td.get(job.id).result for job in jobs} == {45}
    assert place.sql("SELECT count(*) FROM treadle_attempts WHERE outcome = 'failed'") == [(0,)]


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
