"""Commits on PostgreSQL whose reply never arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.eventually import eventually
from tests.process.faults import execute
from tests.process.harness import size
from tests.servers.proxy import Proxy
from tests.worker.helpers import working
from treadle import Context, Treadle
from treadle.errors import CommitUnknown


@pytest.fixture
def cut_app(postgres_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Treadle]:
    """An app whose connections the proxy can break, and whose worker is quick to try again."""
    monkeypatch.setattr("treadle.worker.worker.PAUSE", 0.01)
    app = Treadle(postgres_proxy.url())
    yield app
    app.close()


def test_an_enqueue_whose_commit_gets_no_reply_makes_one_job(cut_app: Treadle, postgres_proxy: Proxy) -> None:
    n = size("CUTS", 100)
    cut_app.store.open()
    jobs = []
    for i in range(n):
        cut = postgres_proxy.cut_next_commit(before=i % 2 == 0, within="INSERT INTO treadle.jobs")
        jobs.append(cut_app.enqueue("work", {"n": i}, dedupe=f"key {i}" if i % 3 == 0 else None))
        cut.wait()
    found = execute(postgres_proxy.target, "SELECT id::text, (payload ->> 'n')::int FROM treadle.jobs ORDER BY 2")
    assert found == [(job.id, i) for i, job in enumerate(jobs)]


def test_an_enqueue_of_unknown_result_says_so(cut_app: Treadle, postgres_proxy: Proxy) -> None:
    cut_app.enqueue("work")
    cut = postgres_proxy.cut_next_commit(within="INSERT INTO treadle.jobs")
    postgres_proxy.refuse()  # existing connections continue
    with pytest.raises(CommitUnknown, match="check whether it happened"):
        cut_app.enqueue("work")
    cut.wait()
    postgres_proxy.accept()
    assert [row["count"] for row in cut_app.counts()] == [2]


@pytest.mark.parametrize("step", ["INSERT INTO treadle.leases", "DELETE FROM treadle.leases"], ids=["claim", "settle"])
def test_a_worker_whose_commits_get_no_reply_runs_each_job_once(
    cut_app: Treadle, postgres_proxy: Proxy, step: str
) -> None:
    """The heartbeat releases leases that the worker does not know, without charge. An outcome is written once."""
    runs: Counter[str] = Counter()

    @cut_app.job(max_attempts=1)
    async def work(ctx: Context) -> None:
        runs[ctx.id] += 1

    n = size("CUTS", 100)
    jobs = []
    with closing(Treadle(postgres_proxy.target)) as producer, working(cut_app, beat=0.05, concurrency=5):
        for i in range(n):
            cut = postgres_proxy.cut_next_commit(before=i % 2 == 0, within=step)
            jobs += [producer.enqueue("work", max_attempts=1) for _ in range(2)]
            cut.wait()
        eventually(lambda: producer.counts() == [{"status": "completed", "count": len(jobs)}])
    assert runs == Counter(job.id for job in jobs)
    query = "SELECT (SELECT count(*) FROM treadle.leases), (SELECT count(*) FROM treadle.attempts)"
    assert execute(postgres_proxy.target, query) == [(0, 0)]
