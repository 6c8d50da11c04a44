"""Claims of a worker that has nothing to run."""

from __future__ import annotations

from contextlib import closing

from tests.worker.helpers import working
from treadle import Treadle

JOBS = 20


def test_an_idle_worker_claims_without_a_thread(postgres_url, monkeypatch):
    """While a job runs, or its outcome is not stored yet, a thread may claim the next one."""
    with closing(Treadle(postgres_url)) as td:
        claim, by_thread = td.store.claim, []

        def claim_in_thread(*args):
            claimed = claim(*args)
            by_thread.extend(claimed)
            return claimed

        @td.job
        async def work(n: int) -> int:
            return n

        monkeypatch.setattr(td.store, "claim", claim_in_thread)
        with working(td):
            assert [td.result(work.enqueue(n=n).id, timeout=10) for n in range(JOBS)] == [*range(JOBS)]

    assert len(by_thread) < JOBS / 2
