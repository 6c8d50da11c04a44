"""A database is moved while workers and producers use it, and they and the copy are killed on the way.

(script/torture: 200,000 jobs.)
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.process.handlers import storm_async, storm_retried, storm_slow, storm_suspended, td
from tests.process.harness import Place, end, size
from treadle import Treadle
from treadle.errors import StoreMoved
from treadle.stores import open_store

KILLS = 10
WHOLE = 200_000
"""Jobs of a copy that takes long enough for all kills."""
SLOTS = 10
MOVED = "moved"
"""The signal that suspended jobs wait for."""
Popen = subprocess.Popen[bytes]


def killed(process: Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def ids_in(app: Treadle) -> set[str]:
    found: set[str] = set()
    page = app.jobs(limit=200)
    while True:
        found |= {job.id for job in page}
        if page.next is None:
            return found
        page = app.jobs(limit=200, cursor=page.next)


def fill(n: int) -> set[str]:
    """Jobs that suspend, fail once and can run; that wait for their time and hold a key; and that wait for a job."""
    later, eighth = max(2, n // 5_000), range(n // 8)
    suspend = [storm_suspended.using(priority=2).request(name=MOVED) for _ in eighth]
    fail = [storm_retried.using(priority=1).request(seconds=later) for _ in eighth]
    due = [storm_async.request() for _ in range(n // 2)]
    scheduled = [storm_async.using(delay=later, dedupe=str(i)).request() for i in eighth]
    wait = [storm_slow.using(after=scheduled[0].id).request(seconds=0.01) for _ in eighth]
    requests = [*suspend, *fail, *due, *scheduled, *wait]
    for start in range(0, len(requests), 1000):
        td.enqueue_many(requests[start : start + 1000])
    return {request.id for request in requests}


def kill_some(place: Place, copy: Callable[[], Popen], workers: list[Popen], longest: float) -> Counter[str]:
    """Kill the copy and workers at random moments, ten times in all, and start each again, until the copy ends."""
    kills, copying = Counter[str](), copy()
    while True:
        try:
            if copying.wait(random.uniform(0.2, longest) if kills.total() < KILLS else 1800) == 0:
                return kills
        except subprocess.TimeoutExpired:
            assert kills.total() < KILLS, "the copy does not end"
            which = "workers" if kills.total() % 3 == 0 else "copies"
            kills[which] += 1
            killed(copying if which == "copies" else workers.pop(0))
            if which == "workers":
                workers.append(place.worker(concurrency=SLOTS, beat=0.5))
        if copying.poll() is not None:
            copying = copy()


@pytest.mark.parametrize("direction", ["sqlite to postgresql", "postgresql to sqlite"])
def test_every_job_is_in_one_place_and_runs_there(direction: str, postgres_url: str, tmp_path: Path) -> None:
    urls, n = [f"sqlite:///{tmp_path}/jobs.db", postgres_url], size("COPY", 1000)
    source, target = urls if direction.startswith("sqlite") else urls[::-1]
    with Place(tmp_path, source) as place:
        stored = fill(n)
        workers = [place.worker(concurrency=SLOTS, beat=0.5) for _ in range(2)]
        eventually(lambda: place.count("blocked") >= n // 8 * 2 and place.count("completed") >= n // 8, 600)
        producers = [place.python("-m", "tests.process.copy_producer", source, target) for _ in range(4)]
        at_first = {row["status"]: row["count"] for row in td.counts()}
        retrying = place.sql(f"SELECT count(*) FROM treadle{'.' if place.is_postgres else '_'}ready WHERE attempts > 0")
        command = "-m", "treadle", "copy", source, target, "--follow", "--cutover", "--wait", "120"
        began = time.monotonic()
        kills = kill_some(place, lambda: place.python(*command), workers, 1 + n / 40_000)
        took = time.monotonic() - began
        if n >= WHOLE:
            assert kills.total() == KILLS  # a smaller copy may end before
        for worker in workers:
            killed(worker)
        place.open_gate("enough")
        assert [producer.wait(60) for producer in producers] == [0] * 4
        acked = {words[2] for words in place.noted("acked")} | stored

        with pytest.raises(StoreMoved), closing(Treadle(source)) as old:
            old.counts()
        with closing(open_store(target)) as store:
            td._use(store)
            ids = ids_in(td)
            assert acked <= ids
            assert store.defects() == []
            td.signal(MOVED)
            successors = [place.worker(concurrency=SLOTS, beat=0.5, env={"TREADLE_URL": target}) for _ in range(2)]
            eventually(lambda: td.counts() == [{"status": "completed", "count": len(ids)}], 600)
            assert [end(worker) for worker in successors] == [0, 0]
        td._use(place.store)
        runs = place.runs()
        last = {run.id: run for run in runs}
        again = Counter(run.worker for run in runs if run is not last[run.id])
        print(f"{direction}: {len(ids)} jobs in {took:.0f} s, at first {at_first} and {retrying[0][0]} retrying")
        print(f"killed {dict(kills)}, ran again by the worker that had them in hand: {dict(again)}")
        assert set(last) == ids
        assert len(again) <= kills["workers"] + 2
        assert all(n <= 2 * SLOTS for n in again.values()), "a worker has at most that many running and unsettled"
