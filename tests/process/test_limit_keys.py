"""Limits of 1, 3 and 10 per key, and a rate, under kills: by the handlers' own journals. (script/torture has more.)"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.process import usage
from tests.process.fault_injection import Restart, crashing
from tests.process.faults import completed, living, summary
from tests.process.handlers import KEYED, RATE, rated, td
from tests.process.harness import Place, end, kill_every, size
from tests.process.journal import Run
from tests.process.usage import Spell, most_at_once
from tests.servers.postgres import PostgresServer
from treadle import Rate


def by_key(place: Place, keys: dict[str, tuple[int, str]]) -> dict[tuple[int, str], list[Run]]:
    found: defaultdict[tuple[int, str], list[Run]] = defaultdict(list)
    for run in place.runs():
        found[keys[run.id]].append(run)
    return found


def test_no_key_is_ever_exceeded(place: Place) -> None:
    n, tenants, processes = size("LIMIT_KEYS", 360), size("LIMIT_KEYS_TENANTS", 4), size("LIMIT_KEYS_PROCESSES", 3)
    supervisor = place.worker(processes=processes, beat=1.0, concurrency=20)
    place.wait_for_workers(processes)
    wanted = [(limit, f"t{m % tenants}") for limit in KEYED for m in range(n // 3)]
    requests = [KEYED[limit].using(tenant=tenant).request(seconds=0.05) for limit, tenant in wanted]
    keys = {job.id: key for job, key in zip(td.enqueue_many(requests), wanted, strict=True)}
    kills = dict(kill_every(1.0, place.worker_pids, lambda: len(keys) - place.count("completed")))
    assert end(supervisor) == 0
    most = {key: most_at_once(runs, kills) for key, runs in by_key(place, keys).items()}
    print(f"{len(place.runs())} runs of {len(most)} keys, {len(kills)} kills: {most}")
    assert len(most) == 3 * tenants
    assert all(at_once <= limit for (limit, _), at_once in most.items())
    assert place.sql("SELECT count(*) FROM treadle_limited_leases") == [(0,)]
    assert place.sql("SELECT count(*) FROM treadle_ready") == [(0,)]


def check_slots_of_keys(place: Place, faults: Callable[[], AbstractContextManager[list[Restart]]]) -> None:
    """Between the faults, the slots of each key are in use as long as jobs wait for them. (The worker processes have
    more slots than all keys together. The jobs take long compared with the commits between two of them, and longer
    the more of them run at once, so that jobs of all limits wait until the end.)"""
    n, tenants, processes = size("LIMIT_KEYS", 600), size("LIMIT_KEYS_TENANTS", 4), size("LIMIT_KEYS_PROCESSES", 3)
    supervisor = place.worker(processes=processes, beat=1.0, concurrency=100)
    place.wait_for_workers(processes)
    wanted = [(limit, f"t{m % tenants}") for m in range(n // 3) for limit in KEYED]
    requests = [KEYED[limit].using(tenant=tenant).request(seconds=float(limit)) for limit, tenant in wanted]
    keys = {job.id: key for job, key in zip(td.enqueue_many(requests), wanted, strict=True)}
    with faults() as restarts:
        kills = kill_every(10.0, lambda: living(place), lambda: len(keys) - completed(place))
    assert end(supervisor) == 0
    killed, troubles = dict(kills), [Spell(kill.at, kill.at) for kill in kills]
    troubles += [Spell(restart.gone, restart.back) for restart in restarts]
    busy, time, filling = dict.fromkeys(KEYED, 0.0), dict.fromkeys(KEYED, 0.0), list[float]()
    for (limit, _), runs in by_key(place, keys).items():
        assert usage.most_at_once(runs, killed) <= limit
        after = usage.aftermaths(runs, killed, troubles, limit)
        steady = sum(spell.seconds for _, spell in after)
        filling += [spell.seconds for spell, _ in after]
        time[limit] += steady
        busy[limit] += steady and steady * usage.used(runs, killed, [spell for _, spell in after], limit)
    shares = {limit: busy[limit] / time[limit] if time[limit] else 0.0 for limit in KEYED}  # 0: never all in use
    print(
        f"{len(place.runs())} runs of {3 * tenants} keys, {len(kills)} kills, {len(restarts)} restarts: in use "
        f"{', '.join(f'{share:.1%} of {limit}' for limit, share in shares.items())}; until all were: {summary(filling)}"
    )
    assert min(shares.values()) >= 0.9


@pytest.mark.torture
def test_the_slots_of_keys_are_in_use_between_kills(place: Place) -> None:
    check_slots_of_keys(place, lambda: nullcontext([]))


@pytest.mark.torture
def test_the_slots_of_keys_are_in_use_between_kills_and_crashes_of_the_server(
    server: PostgresServer, tmp_path: Path
) -> None:
    with Place(tmp_path, server.url()) as place:
        check_slots_of_keys(place, lambda: crashing(server, 25.0))


def test_as_many_start_as_the_rate_allows_and_no_window_has_more(place: Place) -> None:
    """A start is noted a little after the claim that took its token, so that some may come closer together."""
    n, tenants = size("RATES", 120), 2
    supervisor = place.worker(processes=2, beat=1.0, concurrency=20)
    place.wait_for_workers(2)
    requests = [rated.using(tenant=f"t{m % tenants}").request() for m in range(n)]
    keys = {job.id: (0, job.tenant) for job in td.enqueue_many(requests)}
    kills = dict(kill_every(2.0, place.worker_pids, lambda: len(keys) - place.count("completed")))
    assert end(supervisor) == 0
    late = 250_000_000
    window = round(RATE.per * 1e9)
    for runs in by_key(place, keys).values():
        starts = sorted(run.started for run in runs)
        most = max(sum(at <= other < at + window - late for other in starts) for at in starts)
        seconds = (starts[-1] - starts[0]) / 1e9
        share = len(starts) / (len(starts) + usage.missed_starts(starts, list(kills.values()), RATE))
        print(
            f"{len(starts)} starts in {seconds:.1f} s, {len(kills)} kills: {most} in a window, {share:.1%} of allowed"
        )
        assert share >= 0.95
        assert most <= RATE.count + RATE.burst
        assert len(starts) <= RATE.burst + RATE.count * seconds / RATE.per + 0.3 * RATE.count


def test_missed_starts_are_counted_where_no_fault_explains_them() -> None:
    second, rate = 1_000_000_000, Rate(10, per=1, burst=2)
    steady = [n * second // 10 for n in range(20)]

    assert usage.missed_starts(steady, [], rate) == 0
    assert usage.missed_starts([0, 0, second], [], rate) == 8  # ten tokens in a second, and room for two
    assert usage.missed_starts([0, 0, second], [second // 2], rate) == 0
