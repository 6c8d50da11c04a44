"""Faults that break, block or use up the connections to a PostgreSQL server, and what workers must not lose."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.eventually import eventually
from tests.process.fault_injection import KILL_ONE, every, kill_a_backend
from tests.process.faults import MakePostgres, check, completed, execute, with_options
from tests.process.handlers import storm_slow, td, waits_at_a_gate
from tests.process.harness import Place, end, size
from tests.servers.namespaces import Network
from tests.servers.postgres import PostgresServer, free_port
from tests.servers.proxy import Proxy
from tests.worker.helpers import working
from treadle import Job, Treadle
from treadle.codec import as_json
from treadle.errors import StoreUnusable
from treadle.stores.postgres import insert_claim_settle_sql as hot
from treadle.stores.postgres import sql
from treadle.stores.postgres.connection import POOLS


def drop_all(place_url: str, proxy: Proxy) -> Callable[[], None]:
    return proxy.drop_all


def kill_one(place_url: str, proxy: Proxy) -> Callable[[], None]:
    return kill_a_backend(place_url)


@pytest.mark.parametrize(("fault", "seconds"), [(kill_one, 0.1), (drop_all, 0.5)], ids=["killed", "dropped"])
def test_workers_whose_connections_break_repeatedly_lose_no_job(
    postgres_url: str, postgres_proxy: Proxy, tmp_path: Path, fault: Any, seconds: float
) -> None:
    n = 100 * size("FAULT_SECONDS", 3)
    with Place(tmp_path, postgres_url) as place:
        url = {"TREADLE_URL": postgres_proxy.url()}
        supervisors = [place.worker(processes=1, concurrency=6, beat=1.0, env=url) for _ in range(2)]
        place.wait_for_workers(2)
        jobs = td.enqueue_many([storm_slow.request(seconds=0.1) for _ in range(n)])
        eventually(lambda: len({run.pid for run in place.runs()}) == 2)
        workers = {row.id for row in td.workers()}
        # The test's own connections may be among those, and are replaced as all others are.
        with every(seconds, fault(postgres_url, postgres_proxy)) as strikes:
            eventually(lambda: completed(place) == n, within=60 + n / 10)
        print(f"{len(strikes)} strikes")
        assert len(strikes) > 3
        assert {row.id for row in td.workers()} >= workers
        assert [end(supervisor) for supervisor in supervisors] == [0, 0]
        check(place, jobs)


def test_a_host_that_is_cut_off_loses_its_jobs_to_another_and_comes_back(
    server: PostgresServer, network: Network, tmp_path: Path
) -> None:
    """Half-open connections: no side is notified of their end. A TCP timeout has to detect it."""
    quick = {"tcp_user_timeout": 1000, "keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 2}
    with Place(tmp_path, server.url()) as place:
        url = with_options(server.url(host=network.address), connect_timeout=2, **quick)
        jobs = td.enqueue_many([waits_at_a_gate.request(gate="open") for _ in range(4)])
        lonely = place.worker(concurrency=4, beat=0.5, host=network.hosts[0], env={"TREADLE_URL": url})
        eventually(lambda: len(place.runs()) == len(jobs))
        [first] = td.workers()

        network.hosts[0].cut_off()
        other = place.worker(concurrency=4, beat=0.5, host=network.hosts[1], env={"TREADLE_URL": url})
        eventually(lambda: len(place.runs()) > len(jobs))  # the other host has them now: suspects run a few at a time
        eventually(lambda: place.said("no heartbeat"))
        place.open_gate("open")  # for both: the isolated one ends its runs too, and cannot report it
        eventually(lambda: place.count("completed") == len(jobs))
        network.hosts[0].plug_in()

        eventually(lambda: lonely.pid in place.worker_pids())
        reborn = next(row for row in td.workers() if row.host["pid"] == lonely.pid)
        assert reborn.id != first.id
        errors = {attempt.error for job in jobs for attempt in td.attempts(job.id)}
        assert errors == {"its worker stopped beating; other jobs ran there too, so it runs again, alone"}
        more = td.enqueue_many([waits_at_a_gate.request(gate="again") for _ in range(8)])
        ids = {job.id for job in more}
        eventually(lambda: lonely.pid in {run.pid for run in place.runs() if run.id in ids})
        place.open_gate("again")
        eventually(lambda: place.count("completed") == len(jobs) + len(more))
        assert [end(lonely), end(other)] == [0, 0]


def test_a_worker_that_gets_no_reply_does_not_wait_forever(
    postgres_proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A middlebox acknowledges all data and forwards none, so that TCP sees no fault."""
    monkeypatch.setattr("treadle.stores.postgres.connection.ANSWER_SECONDS", 1.0)
    app = Treadle(with_options(postgres_proxy.url(), connect_timeout=2))

    @app.job
    async def work() -> str:
        return "done"

    with working(app, beat=0.2) as background:
        job = work.enqueue()
        assert app.result(job.id, timeout=10) == "done"
        worker = background.worker.id
        postgres_proxy.freeze()
        with pytest.raises(StoreUnusable, match=r"no answer within 1 s|timeout expired"):
            work.enqueue()
        eventually(lambda: "no heartbeat" in caplog.text)
        postgres_proxy.thaw()
        assert app.result(work.enqueue().id, timeout=30) == "done"
        assert background.worker.id == worker
    app.close()


def test_a_worker_that_hangs_in_a_transaction_loses_its_locks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is stopped while it claims may hold the lock of a limit."""
    assert "'15s'" in sql.BEGIN
    monkeypatch.setattr(sql, "BEGIN", sql.BEGIN.replace("'15s'", "'1s'"))
    with closing(Treadle(postgres_url)) as app:
        app.job(type="work", concurrency=1)(lambda: None)
        app.store.publish([job_type.policy for job_type in app.registry.types.values()])
        stopped, goes_on, tries = threading.Event(), threading.Event(), []
        keys = {"keys": as_json([("type:work", "")])}

        def steps(tx: Any) -> Any:
            tries.append(1)
            tx.execute(hot.LOCK_LIMITS, keys)
            if len(tries) == 1:
                stopped.set()
                goes_on.wait(30)
            return tx.value("SELECT 7")

        with ThreadPoolExecutor(1) as thread:
            silent = thread.submit(app.store.database.write, "other", steps)
            assert stopped.wait(30)
            assert app.store.database.write("claim", lambda tx: tx.value(hot.LOCK_LIMITS, keys)) == "type:work"
            goes_on.set()
            assert silent.result(30) == 7  # claimed again, as after any break before the commit
        assert len(tries) == 2


def test_a_worker_waits_for_a_server_without_a_free_connection(make_postgres: MakePostgres) -> None:
    server = make_postgres(options={"max_connections": 20, "superuser_reserved_connections": 0})
    with closing(Treadle(server.url())) as app:

        @app.job
        async def work() -> str:
            return "done"

        with working(app, beat=0.2) as background:
            assert app.result(work.enqueue().id, timeout=10) == "done"
            worker = background.worker.id
            hogs: list[psycopg.Connection[Any]] = []
            hog(hogs, server.url())
            # Any connection that treadle loses now goes to the hogs. A terminated session takes a moment to end.
            eventually(lambda: hogs[0].execute(KILL_ONE) and (hog(hogs, server.url()) or len(hogs) == 20))
            with pytest.raises(StoreUnusable, match="too many clients"):
                work.enqueue()
            for connection in hogs:
                connection.close()
            assert app.result(eventually_enqueued(work).id, timeout=30) == "done"
            assert background.worker.id == worker


def hog(hogs: list[psycopg.Connection[Any]], url: str) -> None:
    """Take every free connection."""
    with suppress(psycopg.OperationalError):
        while True:
            hogs.append(psycopg.connect(url, autocommit=True, application_name="hog"))


def eventually_enqueued(work: Any) -> Job:
    """The server takes a moment to see that a client has left."""

    def try_it() -> Job | None:
        with suppress(StoreUnusable):
            return work.enqueue()
        return None

    return eventually(try_it)


def test_more_threads_than_connections_in_a_pool_wait_for_each_other(postgres_url: str) -> None:
    with closing(Treadle(postgres_url)) as app, ThreadPoolExecutor(60) as threads:
        keys = [f"key {i % 50}" for i in range(300)]
        jobs = list(threads.map(lambda key: app.enqueue("work", dedupe=key), keys))
        assert len({job.id for job in jobs}) == 50
        assert len(list(threads.map(lambda job: app.get(job.id), jobs))) == 300
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'treadle' AND datname = current_database()"
        )
        assert execute(postgres_url, query)[0][0] <= sum(POOLS.values())


def test_a_url_with_several_hosts_uses_the_one_that_is_up(make_postgres: MakePostgres, tmp_path: Path) -> None:
    server = make_postgres()
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{server.port}"
    url = with_options(server.url().replace(f"127.0.0.1:{server.port}", hosts), target_session_attrs="read-write")
    with Place(tmp_path, server.url()) as place:
        jobs = td.enqueue_many([storm_slow.request(seconds=0.1) for _ in range(60)])
        worker = place.worker(concurrency=4, beat=0.5, env={"TREADLE_URL": url})
        eventually(place.runs)
        server.restart("immediate")
        eventually(lambda: completed(place) == len(jobs))
        assert end(worker) == 0
        check(place, jobs)
        with closing(Treadle(url)) as app:
            assert hosts in app.store.where
            assert app.enqueue("work").status == "pending"
