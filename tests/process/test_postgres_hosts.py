"""Workers on two hosts, and a PostgreSQL server that crashes every five seconds."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tests.process.faults import check, completed, survivors, told
from tests.process.handlers import storm_slow, three_at_once, wl
from tests.process.harness import Kill, Place, end, eventually, size
from tests.process.nemesis import crash, every
from tests.process.test_limits import LIMIT, most_at_once
from tests.servers.namespaces import Network
from tests.servers.postgres import Server


def test_a_server_that_crashes_every_five_seconds_and_kills_on_top(
    server: Server, network: Network, tmp_path: Path
) -> None:
    """Workers on two hosts. The first claim after each restart comes within three seconds."""
    n = size("RESTARTS", 3)
    with Place(tmp_path, server.url(host=network.address)) as place:
        # More than 24 slots can do in the 5 seconds between two crashes: there is always one to claim.
        requests = [storm_slow.request(seconds=0.5) for _ in range(250 * n)]
        requests += [three_at_once.request(seconds=0.2) for _ in range(40 * n)]
        random.shuffle(requests)
        jobs = wl.enqueue_many(requests)
        supervisors = [place.worker(processes=2, concurrency=6, beat=1.0, host=host) for host in network.hosts]
        eventually(place.runs)

        kills: list[Kill] = []
        restarts: list[tuple[int, int]] = []  # when it was back, and the last lease that had been given by then
        with every(5.0, lambda: restarts.append(crash(server))):
            deadline = time.monotonic() + 60 + 10 * n
            while len(restarts) < n:
                assert time.monotonic() < deadline
                time.sleep(1.2)
                if pids := survivors(place, kills):
                    kills.append(Kill(random.choice(pids), time.monotonic_ns()))
                    os.kill(kills[-1].pid, signal.SIGKILL)
        eventually(lambda: completed(place) == len(jobs), within=60 + 10 * n)

        assert [end(supervisor) for supervisor in supervisors] == [0, 0]
        found = check(place, jobs, kills)
        runs = found.runs
        limited = [run for run, type in zip(runs, types_of(place, [run.id for run in runs]), strict=True) if type]
        most = most_at_once(limited, dict(kills))
        leases = {(row.id, row.attempts): row.lease for row in found.books.ended}
        leases |= {(row.id, row.attempt): row.lease for row in found.books.lost}
        waits = [
            (min(run.started for run in runs if leases[run.id, run.attempt] > last) - at) / 1e9 for at, last in restarts
        ]
        print(f"{len(restarts)} restarts; {most} at once; from then to the first new claim's run: {told(waits)}")
        assert most == LIMIT
        assert max(waits) <= 3
        assert wl.workers() == []


def types_of(place: Place, ids: Sequence[str]) -> list[bool]:
    """Of each job, whether its type is limited."""
    limited = {str(id) for (id,) in place.sql("SELECT id FROM windlass_jobs WHERE type = 'three_at_once'")}
    return [id in limited for id in ids]
