"""Claims on an event loop: on PostgreSQL, for workers that are idle."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from tests.conformance.helpers import enlist, ids, limit, new_job, place_of, put, put_many, settle_one, take
from tests.conformance.test_pauses import ACME, pause
from tests.conformance.test_postgres_round_trips import CountingPooler
from tests.conformance.test_waiting import waiting_for
from tests.eventually import eventually
from tests.servers.proxy import Proxy
from treadle.clock import SECOND
from treadle.errors import CommitUnknown
from treadle.job import Status
from treadle.stores.base import ClaimRequest
from treadle.stores.postgres.sockets import readable
from treadle.stores.postgres.store import PostgresStore
from treadle.waits import NewSignal

pytestmark = pytest.mark.only("postgresql")
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture
def proxy(postgres_url):
    with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def store(proxy):
    with closing(PostgresStore(proxy.url())) as store:
        enlist(store)
        yield store


class Loop(asyncio.Runner):
    """An event loop that claims."""

    def __init__(self, store):
        super().__init__()
        self.thread = ThreadPoolExecutor(1)
        self.claims = store.claims_on_loop(self.thread)

    def __exit__(self, *args):
        self.claims.close()
        self.thread.shutdown()
        super().__exit__(*args)

    def claim(self, most=100):
        return self.run(self.claims.claim("w1", ClaimRequest(limit=most)))


def test_they_are_as_those_of_a_thread(store):
    jobs = put_many(store, 5)
    store.insert([new_job(delay=60 * SECOND)])

    with Loop(store) as loop:
        first, rest, none = loop.claim(2), loop.claim(), loop.claim()

    assert [ids(jobs[:2]), ids(jobs[2:]), []] == [ids(first), ids(rest), ids(none)]
    assert first.due is None
    assert 59 < rest.due.in_seconds < 60
    assert 59 < none.due.in_seconds < 60
    assert {one.number for one in [*first, *rest]} == set(store.beat("w1").leases)


@pytest.mark.parametrize(
    "in_the_way",
    [
        lambda store: limit(store, "noop", 1),
        lambda store: store.declare_dead("w1", "test", started=()),
        lambda store: pause(store, ACME),
    ],
    ids=["a limit", "a dead worker", "a pause"],
)
def test_what_is_not_simple_is_for_a_thread(store, in_the_way):
    put(store, tenant="acme")
    in_the_way(store)

    with Loop(store) as loop:
        assert loop.claim() is None

    assert 0 == len(store.beat(enlist(store, "w2")).leases)


def test_a_signal_lets_a_job_go(store):
    job = put(store)
    (claimed,) = take(store, worker="w1")
    settle_one(store, claimed, waiting_for("approved"))

    with Loop(store) as loop:
        assert [] == loop.claim()
        store.signal(NewSignal("approved"))
        assert [job.id] == ids(loop.claim())


def test_a_connection_that_has_ended_is_replaced_after_a_pause(store, proxy):
    with Loop(store) as loop:
        assert [] == loop.claim()
        job = put(store)
        proxy.drop_all()
        eventually(lambda: readable((loop.claims._connection.fileno(),), 0))
        assert loop.claim() is None

        loop.claims._not_before = 0.0
        assert [job.id] == ids(loop.claim())


def test_a_server_that_is_gone_is_for_a_thread_to_report(store, proxy):
    proxy.refuse()
    proxy.drop_all()

    with Loop(store) as loop:
        assert loop.claim() is None


def test_a_claim_whose_answer_is_lost_may_be_committed(store, proxy):
    """As in a thread. The worker's beat then shows a lease that it does not know of, which it releases."""
    with Loop(store) as loop:
        loop.claim()
        job = put(store)
        cut = proxy.cut_next_commit(match=lambda sql: "treadle.leases" in sql)
        with pytest.raises(CommitUnknown):
            loop.claim()
        cut.wait()

    assert (Status.PROCESSING, 1) == place_of(store, job.id)
    assert 1 == len(store.beat("w1").leases)


def test_an_answer_that_does_not_come_is_not_waited_for(store, proxy, monkeypatch):
    monkeypatch.setattr("treadle.stores.postgres.connection.ANSWER_SECONDS", 0.2)
    with Loop(store) as loop:
        loop.claim()
        proxy.freeze()
        with pytest.raises(CommitUnknown, match=r"no answer within 0\.2 s"):
            loop.claim()
        proxy.thaw()


def test_a_claim_that_is_cancelled_closes_its_connection(store, proxy, postgres_url):
    async def cancelled():
        task = asyncio.create_task(loop.claims.claim("w1", ClaimRequest(limit=1)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Loop(store) as loop, psycopg.connect(postgres_url, autocommit=True) as other:
        loop.claim()
        (before,) = other.execute(CONNECTIONS).fetchone()
        proxy.freeze()
        loop.run(cancelled())
        proxy.thaw()
        eventually(lambda: other.execute(CONNECTIONS).fetchone() == (before - 1,))


def test_behind_a_pooler_a_thread_claims(postgres_url):
    with CountingPooler(postgres_url) as pooler, closing(PostgresStore(pooler.url())) as store:
        enlist(store)
        put(store)
        with Loop(store) as loop:
            assert loop.claim() is None
            opened = pooler.answers
            assert loop.claim() is None
            assert opened == pooler.answers
