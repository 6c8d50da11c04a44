"""What a PostgreSQL server, its network and a pooler in between can do to workers, and what they may not lose by it."""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.process import history
from tests.process.handlers import storm_slow, three_at_once, waits_at_a_gate, waits_at_a_gate_in_a_thread, wl
from tests.process.harness import Kill, Place, end, eventually, size
from tests.process.nemesis import KILL_LISTENERS, KILL_ONE, LISTENERS, crash, every, kill_a_backend
from tests.process.test_limits import LIMIT, most_at_once
from tests.servers.namespaces import Network
from tests.servers.postgres import Server, free_port
from tests.servers.proxy import Proxy
from tests.servers.wire import Message
from tests.worker.helpers import working
from windlass import Context, Job, StoreUnusable, Windlass
from windlass.errors import CommitUnknown
from windlass.stores.postgres import server as sql
from windlass.stores.postgres.connection import POOLS

MakePostgres = Callable[..., Server]


def execute(url: str, sql: str) -> list[tuple[Any, ...]]:
    with closing(psycopg.connect(url, autocommit=True, application_name="test")) as connection:
        found = connection.execute(sql)
        return found.fetchall() if found.description else []


def with_options(url: str, **options: object) -> str:
    return f"{url}{'&' if '?' in url else '?'}{'&'.join(f'{name}={value}' for name, value in options.items())}"


def check(place: Place, jobs: Sequence[Job], kills: Sequence[Kill] = ()) -> history.History:
    """Nothing lost, nothing ended twice, and every run accounted for."""
    found = history.History([job.id for job in jobs], place.runs(), dict(kills), history.read(place.url))
    print(history.told(found))
    assert history.breaches(found) == []
    return found


# A server that goes and comes


@pytest.fixture
def server(make_postgres: MakePostgres) -> Server:
    return make_postgres(everywhere=True)


def survivors(place: Place, kills: Sequence[Kill]) -> list[int]:
    """The workers that may be killed; none while there is no server to ask."""
    try:
        return sorted(set(place.worker_pids()) - {kill.pid for kill in kills})
    except StoreUnusable:
        return []


def completed(place: Place) -> int:
    try:
        return place.count("completed")
    except StoreUnusable:
        return -1


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


def told(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.2f} / {statistics.median(seconds):.2f} / {max(seconds):.2f} s (min / median / max)"


def test_an_outage_takes_no_job_from_a_living_worker(server: Server, tmp_path: Path) -> None:
    """For twelve beats nobody can beat, and so nobody is dead."""
    beat, seconds = 0.5, size("OUTAGE", 6)
    with Place(tmp_path, server.url()) as place:
        handlers = waits_at_a_gate, waits_at_a_gate_in_a_thread
        jobs = wl.enqueue_many([handler.request(gate="over") for handler in handlers for _ in range(20)])
        supervisors = [place.worker(processes=2, concurrency=10, beat=beat) for _ in range(2)]
        eventually(lambda: len(place.runs()) == len(jobs))
        leases = "SELECT id, lease, worker FROM windlass_leases ORDER BY lease"
        before, workers = place.sql(leases), {row.id: row.beats for row in wl.workers()}

        server.stop()
        time.sleep(seconds)  # the outage itself
        server.start()

        def beats() -> dict[str, int]:
            return {row.id: row.beats for row in wl.workers()}

        eventually(lambda: all(beats().get(id, count + 4) >= count + 4 for id, count in workers.items()))
        assert beats().keys() == workers.keys()
        assert place.sql(leases) == before
        place.open_gate("over")
        eventually(lambda: place.count("completed") == len(jobs))
        assert place.sql("SELECT * FROM windlass_attempts") == []
        assert len(place.runs()) == len(jobs)
        assert sorted(place.sql("SELECT id, lease FROM windlass_finished")) == sorted(row[:2] for row in before)
        assert [end(supervisor) for supervisor in supervisors] == [0, 0]


def test_a_supervisor_that_loses_a_worker_in_an_outage_fills_its_seat_and_returns_its_jobs(
    server: Server, tmp_path: Path
) -> None:
    """As it would have at any other time: only what had started is charged, and the new worker starts by itself."""
    with Place(tmp_path, server.url()) as place:
        started = wl.enqueue_many([waits_at_a_gate.request(gate="later") for _ in range(3)])
        supervisor = place.worker(processes=1, concurrency=3, beat=60)
        eventually(lambda: len(place.runs()) == 3)
        [pid] = place.worker_pids()

        server.stop()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: place.said("its jobs will be returned later") and place.said("cannot be reached") > 2)
        server.start()

        eventually(lambda: len(place.runs()) == 6)
        place.open_gate("later")
        eventually(lambda: place.count("completed") == 3)
        errors = [attempt.error for job in started for attempt in wl.attempts(job.id)]
        assert errors == ["its worker was killed by SIGKILL"] * 3
        assert end(supervisor) == 0


# Commits without an answer


@pytest.fixture
def cut_app(postgres_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Windlass]:
    """An app whose connections the proxy can break, and whose worker is quick to try again."""
    monkeypatch.setattr("windlass.worker.worker.PAUSE", 0.01)
    app = Windlass(postgres_proxy.url())
    yield app
    app.close()


def test_an_enqueue_whose_commit_has_no_answer_makes_one_job(cut_app: Windlass, postgres_proxy: Proxy) -> None:
    n = size("CUTS", 100)
    cut_app.store.open()
    jobs = []
    for i in range(n):
        cut = postgres_proxy.cut_next_commit(before=i % 2 == 0, within="INSERT INTO windlass.jobs")
        jobs.append(cut_app.enqueue("work", {"n": i}, dedupe=f"key {i}" if i % 3 == 0 else None))
        cut.wait()
    found = execute(postgres_proxy.target, "SELECT id::text, (payload ->> 'n')::int FROM windlass.jobs ORDER BY 2")
    assert found == [(job.id, i) for i, job in enumerate(jobs)]


def test_an_enqueue_of_which_nothing_can_be_learned_says_so(cut_app: Windlass, postgres_proxy: Proxy) -> None:
    cut_app.enqueue("work")
    cut = postgres_proxy.cut_next_commit(within="INSERT INTO windlass.jobs")
    postgres_proxy.refuse()  # what is connected goes on
    with pytest.raises(CommitUnknown, match="look whether it has happened"):
        cut_app.enqueue("work")
    cut.wait()
    postgres_proxy.accept()
    assert [row["count"] for row in cut_app.counts()] == [2]


@pytest.mark.parametrize(
    "step", ["INSERT INTO windlass.leases", "DELETE FROM windlass.leases"], ids=["claim", "settle"]
)
def test_a_worker_whose_commits_have_no_answer_runs_each_job_once(
    cut_app: Windlass, postgres_proxy: Proxy, step: str
) -> None:
    """Leases that it does not know of are given back at the beats, uncharged; an outcome is written once."""
    runs: Counter[str] = Counter()

    @cut_app.job(max_attempts=1)
    async def work(ctx: Context) -> None:
        runs[ctx.id] += 1

    n = size("CUTS", 100)
    jobs = []
    with closing(Windlass(postgres_proxy.target)) as producer, working(cut_app, beat=0.05, concurrency=5):
        for i in range(n):
            cut = postgres_proxy.cut_next_commit(before=i % 2 == 0, within=step)
            jobs += [producer.enqueue("work", max_attempts=1) for _ in range(2)]
            cut.wait()
        eventually(lambda: producer.counts() == [{"status": "completed", "count": len(jobs)}])
    assert runs == Counter(job.id for job in jobs)
    query = "SELECT (SELECT count(*) FROM windlass.leases), (SELECT count(*) FROM windlass.attempts)"
    assert execute(postgres_proxy.target, query) == [(0, 0)]


# Broken connections


def drop_all(place_url: str, proxy: Proxy) -> Callable[[], None]:
    return proxy.drop_all


def kill_one(place_url: str, proxy: Proxy) -> Callable[[], None]:
    return kill_a_backend(place_url)


@pytest.mark.parametrize(("nemesis", "seconds"), [(kill_one, 0.1), (drop_all, 0.5)], ids=["killed", "dropped"])
def test_workers_whose_connections_are_broken_again_and_again_lose_nothing(
    postgres_url: str, postgres_proxy: Proxy, tmp_path: Path, nemesis: Any, seconds: float
) -> None:
    n = 100 * size("NEMESIS_SECONDS", 3)
    with Place(tmp_path, postgres_url) as place:
        jobs = wl.enqueue_many([storm_slow.request(seconds=0.1) for _ in range(n)])
        url = {"WINDLASS_URL": postgres_proxy.url()}
        supervisors = [place.worker(processes=1, concurrency=6, beat=0.5, env=url) for _ in range(2)]
        eventually(place.runs)
        workers = {row.id for row in place.store.workers()}
        # The test's own connections may be among those, and are mended as all others are.
        with every(seconds, nemesis(postgres_url, postgres_proxy)) as strikes:
            eventually(lambda: completed(place) == n, within=60 + n / 10)
        print(f"{len(strikes)} strikes")
        assert len(strikes) > 3
        assert {row.id for row in wl.workers()} >= workers
        assert [end(supervisor) for supervisor in supervisors] == [0, 0]
        check(place, jobs)


def test_a_restart_of_the_server_is_not_seen_by_callers(make_postgres: MakePostgres) -> None:
    """Though every connection that they have kept is broken, in each lane."""
    server = make_postgres()
    with closing(Windlass(server.url())) as app, ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            list(threads.map(lambda _: app.store.insert([app_request(app)]), range(20)))  # several connections
            list(threads.map(lambda _: app.counts(), range(20)))
            server.restart("immediate")
            assert app.enqueue("work").status == "pending"
            assert app.counts()
        assert app.counts() == [{"status": "pending", "count": 63}]


def app_request(app: Windlass) -> Any:
    from windlass.ids import new_id
    from windlass.job import NewJob

    return NewJob(id=new_id(), type="work")


def test_a_host_that_is_cut_off_loses_its_jobs_to_another_and_comes_back(
    server: Server, network: Network, tmp_path: Path
) -> None:
    """Half-open connections: nobody hears of their end. A deadline of TCP's has to notice."""
    quick = {"tcp_user_timeout": 1000, "keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 2}
    with Place(tmp_path, server.url()) as place:
        url = with_options(server.url(host=network.address), connect_timeout=2, **quick)
        jobs = wl.enqueue_many([waits_at_a_gate.request(gate="open") for _ in range(4)])
        lonely = place.worker(concurrency=4, beat=0.5, host=network.hosts[0], env={"WINDLASS_URL": url})
        eventually(lambda: len(place.runs()) == len(jobs))
        [first] = wl.workers()

        network.hosts[0].cut_off()
        other = place.worker(concurrency=4, beat=0.5, host=network.hosts[1], env={"WINDLASS_URL": url})
        eventually(lambda: len(place.runs()) > len(jobs))  # the other has them now: suspects, a few at a time
        eventually(lambda: place.said("no heartbeat"))
        place.open_gate("open")  # for both: the lonely one ends its runs too, and can tell nobody
        eventually(lambda: place.count("completed") == len(jobs))
        network.hosts[0].plug_in()

        eventually(lambda: lonely.pid in place.worker_pids())
        reborn = next(row for row in wl.workers() if row.host["pid"] == lonely.pid)
        assert reborn.id != first.id
        errors = {attempt.error for job in jobs for attempt in wl.attempts(job.id)}
        assert errors == {"its worker stopped beating; it ran beside others and runs again alone"}
        more = wl.enqueue_many([storm_slow.request(seconds=0.2) for _ in range(20)])
        eventually(lambda: place.count("completed") == len(jobs) + len(more))
        assert lonely.pid in {run.pid for run in place.runs() if run.id in {job.id for job in more}}
        assert [end(lonely), end(other)] == [0, 0]


def test_who_is_answered_by_nobody_does_not_wait_for_ever(
    postgres_proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Something in between acknowledges all and passes nothing on, so that TCP sees no fault."""
    monkeypatch.setattr("windlass.stores.postgres.connection.ANSWER_SECONDS", 1.0)
    app = Windlass(with_options(postgres_proxy.url(), connect_timeout=2))

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


def test_who_falls_silent_in_a_transaction_loses_its_locks(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped while it claims may hold the lock of a limited type."""
    assert "'15s'" in sql.BEGIN
    monkeypatch.setattr(sql, "BEGIN", sql.BEGIN.replace("'15s'", "'200ms'"))
    with closing(Windlass(postgres_url)) as app:
        app.job(type="work", concurrency=1)(lambda: None)
        app.store.publish([job_type.policy for job_type in app.registry.types.values()])
        stopped, goes_on, tries = threading.Event(), threading.Event(), []

        def steps(tx: Any) -> Any:
            tries.append(1)
            tx.execute(sql.LOCK_TYPES, {"types": ["work"]})
            if len(tries) == 1:
                stopped.set()
                goes_on.wait(30)
            return tx.value("SELECT 7")

        with ThreadPoolExecutor(1) as thread:
            silent = thread.submit(app.store.database.write, "other", steps)
            assert stopped.wait(30)
            assert app.store.database.write("claim", lambda tx: tx.value(sql.LOCK_TYPES, {"types": ["work"]})) or True
            goes_on.set()
            assert silent.result(30) == 7  # taken again, as after any break before the commit
        assert len(tries) == 2


def test_a_server_without_a_free_connection_is_waited_for(make_postgres: MakePostgres) -> None:
    server = make_postgres(options={"max_connections": 20, "superuser_reserved_connections": 0})
    with closing(Windlass(server.url())) as app:

        @app.job
        async def work() -> str:
            return "done"

        with working(app, beat=0.2) as background:
            assert app.result(work.enqueue().id, timeout=10) == "done"
            worker = background.worker.id
            hogs: list[psycopg.Connection[Any]] = []
            hog(hogs, server.url())
            # Whatever connection windlass loses now is the hogs'.
            eventually(lambda: not hogs[0].execute(KILL_ONE).fetchall() or hog(hogs, server.url()))
            with pytest.raises(StoreUnusable, match="too many clients"):
                work.enqueue()
            for connection in hogs:
                connection.close()
            assert app.result(eventually_enqueued(work).id, timeout=30) == "done"
            assert background.worker.id == worker


def hog(hogs: list[psycopg.Connection[Any]], url: str) -> None:
    """Take every connection that there is."""
    with suppress(psycopg.OperationalError):
        while True:
            hogs.append(psycopg.connect(url, autocommit=True, application_name="hog"))


def eventually_enqueued(work: Any) -> Job:
    """The server takes a moment to see that somebody has left."""

    def try_it() -> Job | None:
        with suppress(StoreUnusable):
            return work.enqueue()
        return None

    return eventually(try_it)


def test_more_threads_than_a_lane_has_connections_wait_for_each_other(postgres_url: str) -> None:
    with closing(Windlass(postgres_url)) as app, ThreadPoolExecutor(60) as threads:
        keys = [f"key {i % 50}" for i in range(300)]
        jobs = list(threads.map(lambda key: app.enqueue("work", dedupe=key), keys))
        assert len({job.id for job in jobs}) == 50
        assert len(list(threads.map(lambda job: app.get(job.id), jobs))) == 300
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'windlass' AND datname = current_database()"
        )
        assert execute(postgres_url, query)[0][0] <= sum(POOLS.values())


def test_of_several_hosts_in_the_url_the_one_that_is_up_is_used(make_postgres: MakePostgres, tmp_path: Path) -> None:
    server = make_postgres()
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{server.port}"
    url = with_options(server.url().replace(f"127.0.0.1:{server.port}", hosts), target_session_attrs="read-write")
    with Place(tmp_path, server.url()) as place:
        jobs = wl.enqueue_many([storm_slow.request(seconds=0.1) for _ in range(60)])
        worker = place.worker(concurrency=4, beat=0.5, env={"WINDLASS_URL": url})
        eventually(place.runs)
        server.restart("immediate")
        eventually(lambda: completed(place) == len(jobs))
        assert end(worker) == 0
        check(place, jobs)
        with closing(Windlass(url)) as app:
            assert hosts in app.store.where
            assert app.enqueue("work").status == "pending"


# Notifications


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is not told, does not know."""
    monkeypatch.setattr("windlass.worker.worker.POLL", 600)


@pytest.mark.usefixtures("no_polls")
def test_a_listener_that_was_killed_listens_again(postgres_url: str) -> None:
    with closing(Windlass(postgres_url)) as app, closing(Windlass(postgres_url)) as other:

        @app.job
        async def work() -> str:
            return "heard"

        with working(app):
            assert other.result(other.enqueue("work").id, timeout=30) == "heard"
            for _ in range(3):
                [before] = execute(postgres_url, KILL_LISTENERS)
                [after] = eventually(lambda: execute(postgres_url, LISTENERS))
                assert before != after
                assert other.result(other.enqueue("work").id, timeout=30) == "heard"


class Pooler(Proxy):
    """As one in transaction mode: who listens has a session only as long as his transaction. It greets by itself."""

    def from_server(self, message: Message) -> Message | None:
        if message.kind == b"K":
            return Message(b"K", bytes(8))
        return None if message.kind == b"A" else message


@pytest.mark.parametrize("proxy", [Proxy, Pooler])
def test_behind_a_pooler_nothing_is_prepared(postgres_url: str, proxy: type[Proxy]) -> None:
    """A session that another client has used may have another statement of the same name."""
    with proxy(postgres_url) as between, closing(Windlass(between.url())) as app:
        for _ in range(10):
            app.enqueue("work")
        names = app.store.database.read("insert", lambda tx: tx.execute("SELECT name FROM pg_prepared_statements"))
        assert bool(names.fetchall()) is (proxy is Proxy)


def test_behind_a_pooler_that_loses_notifications_a_worker_says_so_and_polls(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("windlass.stores.postgres.listen.TEST_SECONDS", 0.3)
    with (
        Pooler(postgres_url) as pooler,
        closing(Windlass(pooler.url())) as app,
        closing(Windlass(postgres_url)) as other,
    ):

        @app.job
        async def work() -> str:
            return "found"

        with working(app):
            assert caplog.text.count("is there a pooler in transaction mode in between?") == 1
            for _ in range(3):
                assert other.result(other.enqueue("work").id, timeout=10) == "found"
            assert caplog.text.count("is there a pooler in transaction mode in between?") == 1


# Forks


def test_a_childs_end_does_not_end_its_parents_sessions(postgres_url: str, tmp_path: Path) -> None:
    with Place(tmp_path, postgres_url) as place:
        script = place.python("-W", "error", "-m", "tests.process.fork_sessions")
        assert script.wait(60) == 0, place.log.read_text()
        assert place.log.read_text() == ""
        before, *after = [words[2:-1] for words in place.noted("sessions")]
        assert after == [before] * 3
        assert len(place.noted("acked")) == place.count("pending") == 7
