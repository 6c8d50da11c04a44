"""Workers on two hosts, and a PostgreSQL server that crashes every five seconds: storms, and a limit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.process import history, usage
from tests.process.fault_injection import Restart, crashing
from tests.process.faults import check, completed, living, summary
from tests.process.handlers import storm_async, storm_slow, storm_thread, td, three_at_once
from tests.process.harness import Place, end, kill_every, size
from tests.process.usage import LIMIT, Spell
from tests.servers.namespaces import Network
from tests.servers.postgres import PostgresServer


def first_claims(found: history.History, restarts: Sequence[Restart]) -> list[float]:
    """Seconds from each return of the server to the first run under a lease that was granted after it."""
    leases = {(row.id, row.attempts): row.lease for row in found.records.ended}
    leases |= {(row.id, row.attempt): row.lease for row in found.records.lost}
    started = [(leases[run.id, run.attempt], run.started) for run in found.runs]
    return [(min(at for lease, at in started if lease > r.last_lease) - r.back) / 1e9 for r in restarts]


def test_workers_and_kills_while_the_server_crashes_every_five_seconds(
    server: PostgresServer, network: Network, tmp_path: Path
) -> None:
    """The first claim after each restart comes within three seconds."""
    n = size("RESTARTS", 3)
    with Place(tmp_path, server.url(host=network.address)) as place:
        # More than 24 slots can do in the 5 seconds between two crashes: there is always one to claim.
        requests = [storm_slow.request(seconds=0.5) for _ in range(250 * n)]
        requests += [three_at_once.request(seconds=0.2) for _ in range(40 * n)]
        random.shuffle(requests)
        supervisors = [place.worker(processes=2, concurrency=6, beat=1.0, host=host) for host in network.hosts]
        place.wait_for_workers(4)
        jobs = td.enqueue_many(requests)

        with crashing(server) as restarts:
            kills = kill_every(1.2, lambda: living(place), lambda: max(0, n - len(restarts)))
        eventually(lambda: completed(place) == len(jobs), within=60 + 10 * n)

        assert [end(supervisor) for supervisor in supervisors] == [0, 0]
        found = check(place, jobs, kills)
        limited = {str(id) for (id,) in place.sql("SELECT id FROM treadle_jobs WHERE type = 'three_at_once'")}
        most = usage.most_at_once([run for run in found.runs if run.id in limited], dict(kills))
        waits = first_claims(found, restarts)
        print(f"{len(restarts)} restarts; {most} at once; from then to the first new claim's run: {summary(waits)}")
        assert most == LIMIT
        assert max(waits) <= 3
        assert td.workers() == []


@pytest.mark.torture
def test_a_kill_storm_while_the_server_crashes(server: PostgresServer, network: Network, tmp_path: Path) -> None:
    """Four workers, a kill -9 every 250 ms until all is done."""
    n = size("HOST_STORM", 1_500)
    with Place(tmp_path, server.url(host=network.address)) as place:
        supervisors = [place.worker(processes=2, beat=1.0, host=host) for host in network.hosts]
        place.wait_for_workers(4)
        jobs = td.enqueue_many([(storm_async if i % 2 else storm_thread).request() for i in range(n)])
        with crashing(server) as restarts:
            kills = kill_every(0.25, lambda: living(place), lambda: n - completed(place))
        assert [end(supervisor) for supervisor in supervisors] == [0, 0]
        print(f"{len(restarts)} restarts")
        check(place, jobs, kills)
        assert td.workers() == []


@pytest.mark.torture
def test_a_limit_of_three_is_never_exceeded_and_all_slots_are_in_use_between_kills_and_crashes(
    server: PostgresServer, network: Network, tmp_path: Path
) -> None:
    """Between: from when all slots are in use again, which is soon, to the next kill or crash."""
    n = size("HOST_LIMITS", 1_000)
    with Place(tmp_path, server.url(host=network.address)) as place:
        supervisors = [place.worker(processes=2, beat=1.0, host=host) for host in network.hosts]
        place.wait_for_workers(4)
        jobs = td.enqueue_many([three_at_once.request(seconds=0.2) for _ in range(n)])
        with crashing(server) as restarts:
            kills = kill_every(2.0, lambda: living(place), lambda: n - completed(place))
        assert [end(supervisor) for supervisor in supervisors] == [0, 0]
        found, killed = check(place, jobs, kills), dict(kills)

        most = usage.most_at_once(found.runs, killed)
        troubles = [Spell(kill.at, kill.at) for kill in kills] + [Spell(r.gone, r.back) for r in restarts]
        after = usage.aftermaths(found.runs, killed, troubles)
        share = usage.used(found.runs, killed, [spell for _, spell in after])
        steady = sum(spell.seconds for _, spell in after)
        print(
            f"{len(found.runs)} runs, {len(kills)} kills, {len(restarts)} restarts: {most} at once, {share:.1%} used "
            f"in {steady:.0f} s, {usage.used(found.runs, killed):.1%} with all; until all slots were in use again "
            f"{summary([spell.seconds for spell, _ in after])}"
        )
        assert most == LIMIT
        assert share >= 0.9
        assert max(spell.seconds for spell, _ in after) <= 3
