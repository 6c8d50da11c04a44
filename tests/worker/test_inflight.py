"""The in-flight cells of a worker: leases that are started and not settled yet."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import threading
import time
from typing import Any

import psutil
import pytest

from tests import stores
from tests.eventually import eventually
from tests.worker.helpers import Background, working
from treadle import Context, Job, Treadle
from treadle.clock import SECOND
from treadle.context import Run
from treadle.outcome import RELEASED, OutcomeKind
from treadle.stores.base import ClaimRequest
from treadle.worker.inflight import Attempts, Inflight, RunningAttempt
from treadle.worker.parts import Parts


class Blocked:
    """A store that commits no outcome until the test allows it."""

    def __init__(self, td: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go, self.asked = threading.Event(), threading.Event()
        self._settle = td.store.settle
        monkeypatch.setattr(td.store, "settle", self._when_let)

    def _when_let(self, ended: Any) -> Any:
        self.asked.set()
        assert self.let_go.wait(15)
        return self._settle(ended)


@pytest.fixture
def blocked(td: Treadle, monkeypatch: pytest.MonkeyPatch) -> Blocked:
    return Blocked(td, monkeypatch)


def noted(background: Background) -> list[int]:
    return background.worker._inflight.started(apart=True)


def test_a_lease_has_a_cell_until_its_outcome_is_committed(td: Treadle, blocked: Blocked) -> None:
    @td.job
    async def quick() -> None: ...

    with working(td) as background:
        job = quick.enqueue()
        assert blocked.asked.wait(15)
        assert len(noted(background)) == 1
        blocked.let_go.set()
        assert td.result(job.id) is None
        eventually(lambda: not noted(background))


@pytest.mark.parametrize("run", ["async", "thread"])
def test_each_lease_has_a_cell_while_nothing_can_be_committed(td: Treadle, blocked: Blocked, run: Any) -> None:
    """A worker claims at most as many jobs as it has cells, and continues when it can commit again."""
    concurrency = 3

    async def aquick(ctx: Context) -> None: ...
    def quick(ctx: Context) -> None: ...

    handler = td.job(type="quick")(aquick if run == "async" else quick)
    jobs = td.enqueue_many([handler.request() for _ in range(10 * concurrency)])
    with working(td, concurrency=concurrency) as background:
        eventually(lambda: len(noted(background)) == 2 * concurrency)
        assert background.worker._room() == 0
        blocked.let_go.set()
        assert [td.result(job.id) for job in jobs] == [None] * len(jobs)
        eventually(lambda: not noted(background))


def test_an_abandoned_lease_has_a_cell_until_its_outcome_is_committed(td: Treadle, blocked: Blocked) -> None:
    """Even though its thread has ended by then."""
    over = threading.Event()

    @td.job(timeout=0.05, max_attempts=1)
    def late(ctx: Context) -> None:
        eventually(lambda: ctx.cancelled)
        assert blocked.asked.wait(15)
        over.set()

    with working(td) as background:
        late.enqueue()
        assert over.wait(15)
        eventually(lambda: not background.worker._attempts.given_up)
        assert len(noted(background)) == 1
        blocked.let_go.set()
        eventually(lambda: not noted(background))


def test_a_lease_that_needs_no_settling_has_no_cell_when_it_has_ended(td: Treadle, blocked: Blocked) -> None:
    """Its transaction has ended the job, or another worker has it now."""

    @td.job
    async def transacts(ctx: Context) -> None:
        async with ctx.atransaction():
            pass

    @td.job
    async def waits() -> None:
        await asyncio.Event().wait()

    with working(td, beat=0.05, grace=0) as background:
        assert td.result(transacts.enqueue().id) is None
        eventually(lambda: not noted(background))
        waits.enqueue()
        [number] = eventually(lambda: noted(background))
        td.store.declare_dead(background.worker.id, "it was silent")
        eventually(lambda: number not in noted(background))
        assert not blocked.asked.is_set()
        blocked.let_go.set()


def test_a_worker_without_a_supervisor_leaves_no_file_open(td: Treadle) -> None:
    @td.job
    def quick() -> None: ...

    def open_files(ticks: int) -> int:
        for _ in range(ticks):
            quick.enqueue()
            assert td.tick().completed == 1
        gc.collect()  # the watch of the worker is closed with it
        return psutil.Process().num_fds()

    before, after = open_files(1), open_files(20)
    assert after < before + 10  # other threads may have opened some


@pytest.mark.sqlite_only
@pytest.mark.parametrize("run", ["async", "thread"])
def test_a_number_that_is_issued_again_after_a_failover_mixes_up_no_attempts(td: Treadle, run: Any) -> None:
    """The lost attempt still runs when the worker claims another job under its number."""
    started, let_go, runs = threading.Event(), threading.Event(), list[str]()

    async def alost() -> None:
        started.set()
        await asyncio.Event().wait()

    def lost() -> None:
        started.set()
        assert let_go.wait(15)

    @td.job
    def other() -> str:
        runs.append("other")
        assert let_go.wait(15)
        return "done"

    handler = td.job(type="lost")(alost if run == "async" else lost)
    with working(td, concurrency=3) as background:
        lease = _claim_is_lost(td, handler.enqueue(), started)
        job = other.enqueue()
        eventually(lambda: runs)
        assert [lease] == stores.rows(td.store.url, "SELECT lease FROM treadle_leases WHERE type = 'other'")
        let_go.set()
        assert td.result(job.id) == "done"
        eventually(lambda: not noted(background))
        eventually(lambda: background.worker._room() == 3)
    assert runs == ["other"]


def _claim_is_lost(td: Treadle, job: Job, started: threading.Event) -> tuple[int]:
    """Fail over to a standby that never got the claim, and on which the job was deleted. Return the lease number."""
    assert started.wait(15)
    with contextlib.closing(sqlite3.connect(td.store.where)) as db, db:
        [lease] = db.execute("DELETE FROM treadle_leases RETURNING lease").fetchall()
        db.execute("UPDATE treadle_meta SET value = ? - 1 WHERE key = 'lease'", lease)
        db.execute("DELETE FROM treadle_jobs WHERE id = ?", (job.id,))
        db.execute("UPDATE treadle_tallies SET count = count - 1 WHERE status = 'all'")
        return lease


@pytest.mark.sqlite_only
def test_the_heartbeat_learns_what_is_left_of_each_timeout(td: Treadle) -> None:
    """A job that waits for its child has no deadline yet. One that has ended is vouched for until it is settled."""

    @td.job(timeout=60)
    def work() -> None: ...

    td.enqueue_many([work.request() for _ in range(3)])
    [waits] = td.store.claim("", ClaimRequest(limit=1, types={"work": 60 * SECOND}))
    [child, started] = td.store.claim("", ClaimRequest(limit=2, types={"work": None}))

    async def follow() -> None:
        attempts = Attempts(Inflight.create(3), dict.fromkeys(OutcomeKind, 0), Parts())
        for claimed in (waits, child, started):
            attempt = RunningAttempt(Run(claimed, td.store), td.registry["work"])
            attempts.running[claimed.number] = attempts.timed[claimed.number] = attempt
        attempts.running[started.number].started_at = time.monotonic() - 70
        [(first, all_of_it), (second, less_than_nothing)] = attempts.time_left()
        assert (first, second, all_of_it) == (waits, started, 60 * SECOND)
        assert -600 * SECOND < less_than_nothing <= -10 * SECOND

        attempts.end(attempts.running[started.number], RELEASED)
        await attempts.ended()
        assert len(attempts.time_left()) == 2
        attempts.settled()
        assert [claimed for claimed, _ in attempts.time_left()] == [waits]

    asyncio.run(follow())
