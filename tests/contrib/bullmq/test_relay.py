"""Jobs of the user's own transactions: in Redis are exactly those that committed."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from tests import stores
from tests.contrib.bullmq.conftest import Bench
from tests.eventually import eventually
from tests.servers.databases import Databases
from treadle import Dedupe, Treadle
from treadle.contrib.bullmq import Bull, Relay, UnsupportedByBullMQ
from treadle.errors import BadOption


@pytest.fixture
def td(bench: Bench, postgres_databases: Databases) -> Iterator[Treadle]:
    bench.url = bench.environment["TREADLE_URL"] = postgres_databases.reused(stores.make_tables)
    app = Treadle(bench.url)
    yield app
    app.close()


@pytest.fixture
def relay_here(bench: Bench, td: Treadle) -> Iterator[Relay]:
    """A relay in the test's own process."""
    made = Relay(td, bench.redis, types=["work"])
    yield made
    made.close()


def in_redis(bench: Bench) -> set[str]:
    return {key.rpartition(":")[2] for key in bench.server.client.scan_iter("bull:default:*-*-*-*-*", 1000)}


def relay(bench: Bench) -> subprocess.Popen[str]:
    return bench.start("worker", "tests.contrib.bullmq.app:relay", "-c", "4")


def transaction(bench: Bench, td: Treadle, n: int, *, commit: bool) -> str:
    with psycopg.connect(bench.url) as connection:
        job = td.enqueue("work", {"n": n}, connection=connection, priority=n % 3)
        if not commit:
            connection.rollback()
    return job.id


@pytest.mark.parametrize(("count", "kills"), [(40, 2), pytest.param(2000, 20, marks=pytest.mark.torture)])
def test_exactly_what_committed_is_in_redis(bench: Bench, td: Treadle, count: int, kills: int) -> None:
    chance, process = random.Random(count), relay(bench)
    committed = set()
    for n in range(count):
        commit = chance.random() < 0.6
        id = transaction(bench, td, n, commit=commit)
        if commit:
            committed.add(id)
        if n % (count // kills) == count // kills - 1:
            eventually(lambda: in_redis(bench) & committed)
            bench.kill(process)
            process = relay(bench)
    eventually(lambda: in_redis(bench) >= committed, within=240)
    eventually(lambda: td.count("status:completed").value == len(committed), within=240)
    bench.kill(process)
    assert in_redis(bench) == committed
    assert bench.server.client.zcard("bull:default:prioritized") == len(committed)


def test_while_redis_is_down_jobs_wait(bench: Bench, td: Treadle) -> None:
    id = transaction(bench, td, 1, commit=True)
    bench.server.kill()
    try:
        process = relay(bench)
        eventually(lambda: (job := td.get(id)) is not None and job.snoozes == 1)
    finally:
        bench.server.start()
    td.run_now(id)
    eventually(lambda: in_redis(bench) == {id})
    eventually(lambda: (job := td.get(id)) is not None and job.result == {"queue": "default"})
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


@pytest.mark.parametrize("setting", ["maxmemory", "min-replicas-to-write"])
def test_while_redis_refuses_jobs_wait(bench: Bench, td: Treadle, relay_here: Relay, setting: str) -> None:
    """It is full, or has too few replicas."""
    id = transaction(bench, td, 1, commit=True)
    bench.server.client.config_set(setting, 1)
    try:
        relay_here.tick()
    finally:
        bench.server.client.config_set(setting, 0)
    job = td.get(id)
    assert job is not None
    assert (job.snoozes, job.attempts) == (1, 0)
    td.run_now(id)
    relay_here.tick()
    assert in_redis(bench) == {id}


def test_a_dedupe_key_is_held_in_redis(bench: Bench, td: Treadle, relay_here: Relay) -> None:
    """In the database, the first has completed when it is in Redis, and holds it no longer."""
    plain, early = Dedupe("k"), Dedupe("k", until="started")
    jobs = []
    for tenant, key in [("acme", plain), ("acme", plain), ("beta", plain), ("acme", early)]:
        jobs.append(td.enqueue("work", {"n": 1}, tenant=tenant, dedupe=key))
        relay_here.tick()
    first, second, *others = (job.id for job in jobs)
    assert in_redis(bench) == {first, *others}
    assert td.result(second) == {"queue": "default", "holder": first}


def test_a_job_with_parents_or_a_batch_fails_at_once(bench: Bench, td: Treadle, relay_here: Relay) -> None:
    parent = td.enqueue("work", {"n": 1})
    child = td.enqueue("work", {"n": 2}, after=parent)
    with td.batch("b") as batch:
        member = batch.add(td.request("work", {"n": 3}))
    while relay_here.tick().ran:
        pass
    assert in_redis(bench) == {parent.id}
    for id, what in ((child.id, "after="), (member.id, "a batch")):
        job = td.get(id)
        assert job is not None
        assert (job.status, job.attempts) == ("failed", 1)
        assert f"a request for 'work' has {what}: BullMQ cannot keep that promise" in str(job.error)


def test_close_also_closes_the_connection_to_redis(bench: Bench, td: Treadle, relay_here: Relay) -> None:
    def connections() -> set[str]:
        return {client["id"] for client in bench.server.client.client_list()}

    before, of_a_user = connections(), Bull(bench.redis)
    td.enqueue("work", {"n": 1})
    relay_here.tick()
    assert connections() - before
    relay_here.close()
    eventually(lambda: connections() <= before)

    td.enqueue("work", {"n": 2})  # it reconnects
    relay_here.tick()
    relay_here.close()
    assert len(in_redis(bench)) == 2

    other = Relay(td, bench.redis, types=["work"], bull=of_a_user)
    td.enqueue("work", {"n": 3})
    other.tick()
    other.close()
    assert connections() - before
    of_a_user.close()


def test_what_bullmq_cannot_keep_is_refused_at_start(bench: Bench) -> None:
    app = Treadle(bench.url)

    @app.job(fair="tenant")
    def work(n: int) -> None: ...

    with pytest.raises(UnsupportedByBullMQ, match="type 'work' declares fair"):
        Relay(app, bench.redis, types=[work])
    relay = Relay(app, bench.redis, types=[work], bull=Bull(bench.redis, app, without=["fair"]))
    assert relay.registry["work"].published("").arguments == app.registry["work"].published("").arguments
    with pytest.raises(BadOption, match="types"):
        Relay(app, bench.redis, types=[])
