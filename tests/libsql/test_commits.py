"""Commits whose reply is lost: they have happened, but the caller cannot know. Fifty of each kind."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.conformance.helpers import check_consistency, enlist, everything, put, put_many, select, take
from tests.eventually import eventually
from tests.servers.front import Front
from tests.servers.libsql import LibSQLServer
from treadle import Context, Treadle
from treadle.errors import CommitUnknown
from treadle.job import Status
from treadle.stores.libsql.connection import Database
from treadle.stores.libsql.server import Server, Unreachable
from treadle.stores.libsql.store import LibSQLStore
from treadle.worker import settler, worker

MANY = 50
JOBS = MANY + 10
"""Each job is claimed and settled alone. For each reply that arrives, one is lost."""
BEAT = 1.0
"""Seconds. Slow enough for a busy machine: others declare a worker dead after three missed beats."""


class Losses:
    """Loses every second reply to the commits of one store call, until `left` is 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: Counter[str] = Counter()
        self._turn: Counter[str] = Counter()
        self._here = threading.local()
        self._lock = threading.Lock()
        write, post = Database.write, Server.post

        def noted(database, pool, steps, *args, **kwargs):
            self._here.verb = pool
            try:
                return write(database, pool, steps, *args, **kwargs)
            finally:
                self._here.verb = ""

        def lossy(server, body, address=None):
            answer = post(server, body, address)
            if b'"COMMIT"' in body and self._lost(getattr(self._here, "verb", "")):
                raise Unreachable("the answer was lost")
            return answer

        monkeypatch.setattr(Database, "write", noted)
        monkeypatch.setattr(Server, "post", lossy)

    def _lost(self, verb: str) -> bool:
        with self._lock:
            self._turn[verb] += 1
            lost = self.left[verb] > 0 and self._turn[verb] % 2 == 1
            self.left[verb] -= lost
            return lost


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> Losses:
    return Losses(monkeypatch)


@pytest.fixture
def td(own_server: LibSQLServer) -> Iterator[Treadle]:
    """An app on its own server, so that a failure does not affect other tests."""
    app = Treadle(own_server.url)
    app.store.open()
    yield app
    check_consistency(app.store)
    app.close()


def test_an_enqueue_whose_reply_is_lost_is_looked_up_and_makes_one_job(td, losses):
    losses.left["insert"] = MANY

    stored = [put(td.store, dedupe=str(n)) for n in range(MANY)]

    assert 0 == losses.left["insert"]
    assert sorted(job.id for job in stored) == sorted(job.id for job in everything(td.store))


def test_an_enqueue_that_cannot_be_looked_up_reports_that_it_may_have_happened(own_server, monkeypatch):
    store = LibSQLStore(own_server.url)
    store.open()
    post = Server.post

    def lost(server, body, address=None):
        post(server, body, address)
        own_server.kill()
        raise Unreachable("the answer was lost")

    monkeypatch.setattr(Server, "post", lost)
    with pytest.raises(CommitUnknown, match="check whether it happened"):
        put(store)
    monkeypatch.undo()
    own_server.start()
    assert 1 == len(everything(store))


def test_a_reply_lost_within_a_transaction_costs_a_server_timeout_but_no_job(own_server):
    """The server keeps the lost client's write lock for 5 s if another client waits. No other client can end it."""
    lost = []

    def once(body: bytes, answer: bytes) -> bytes | None:
        if lost or b'"baton":null' in body:
            return answer
        lost.append(body)
        return None

    with Front(own_server.port) as front:
        store = LibSQLStore(f"libsql+http://127.0.0.1:{front.port}")
        put_many(store, 3)
        worker = enlist(store)
        front.change = once

        assert 3 == len(take(store, 3, worker=worker))
        assert lost
        check_consistency(store)


def unended(td):
    return [row for row in td.counts() if not Status(row["status"]).is_final]


@pytest.mark.parametrize("verb", ["claim", "settle"])
def test_a_worker_runs_each_job_once_and_leaves_no_lease(td, losses, verb, monkeypatch):
    monkeypatch.setattr(worker, "PAUSE", 0.01)
    monkeypatch.setattr(settler, "PAUSE", 0.01)
    runs: Counter[int] = Counter()

    @td.job(max_attempts=1)
    async def work(ctx: Context, n: int) -> None:
        runs[n] += 1

    td.enqueue_many([work.request(n=n) for n in range(JOBS)])
    losses.left[verb] = MANY

    async def main() -> None:
        async with td.worker(concurrency=1, beat=BEAT), td.worker(concurrency=1, beat=BEAT):
            # A beat returns leases that the worker does not know.
            await asyncio.to_thread(eventually, lambda: not unended(td), 180, every=BEAT / 4)
            assert [] == select(td.store, "SELECT id FROM treadle.leases")

    asyncio.run(main())

    assert 0 == losses.left[verb]
    assert [{"status": Status.COMPLETED, "count": JOBS}] == td.counts()
    assert dict.fromkeys(range(JOBS), 1) == runs
