"""Outcomes are kept until they are written. A job fails only if its own outcome cannot be written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from tests import stores
from tests.eventually import eventually
from tests.worker.helpers import Background, ended, now, running, working
from treadle import Context, Job, Status, Treadle
from treadle.errors import JobNotFound, SchemaTooNew
from treadle.stores.rows import Settled

WAITING = "waiting to be settled"


@pytest.fixture(autouse=True)
def _tries_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.worker.settler.PAUSE", 0.01)


class Table:
    """The table in which jobs end. Without it the store cannot be used: on PostgreSQL, SQLite and libSQL alike."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.is_there = True

    def hide(self) -> None:
        stores.rows(self._url, "ALTER TABLE treadle_finished RENAME TO hidden")
        self.is_there = False

    def show(self) -> None:
        hidden = "treadle.hidden" if stores.is_postgres(self._url) else "hidden"
        name = "finished" if stores.is_postgres(self._url) else "treadle_finished"
        stores.rows(self._url, f"ALTER TABLE {hidden} RENAME TO {name}")
        self.is_there = True


@pytest.fixture
def table(td: Treadle, treadle_url: str) -> Iterator[Table]:
    td.store.open()
    table = Table(treadle_url)
    yield table
    if not table.is_there:
        table.show()


Settle = Callable[[Sequence[Any]], Settled]


def wrap_settle(td: Treadle, monkeypatch: pytest.MonkeyPatch, before: Callable[[list[str]], None]) -> None:
    """Call `before` with the ids of the jobs whenever the worker settles some."""
    settle: Settle = td.store.settle

    def wrapped(outcomes: Sequence[Any]) -> Settled:
        before([claimed.id for claimed, _ in outcomes])
        return settle(outcomes)

    monkeypatch.setattr(td.store, "settle", wrapped)


def ran_once(td: Treadle, job: Job) -> bool:
    found = ended(td, job)
    return (found.status, found.attempts, td.attempts(job.id)) == (Status.COMPLETED, 1, [])


def test_outcomes_are_kept_however_long_the_store_cannot_be_used(
    td: Treadle, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    """Their handlers do not run again, and the worker stays the same: it still beats."""
    gate, runs = threading.Event(), list[str]()

    @td.job(max_attempts=1)
    def work(ctx: Context) -> str:
        runs.append(ctx.id)
        gate.wait(30)
        return "done"

    with working(td, beat=0.05, concurrency=3) as background:
        jobs = [work.enqueue() for _ in range(3)]
        eventually(lambda: len(runs) == 3)
        [worker] = td.workers()
        table.hide()
        gate.set()
        eventually(lambda: caplog.text.count(WAITING) > 5)
        eventually(lambda: td.workers()[0].beats > worker.beats + 5)
        assert background.worker.outcomes["completed"] == 3
        table.show()
        assert all(ran_once(td, job) for job in jobs)
        assert [row.id for row in td.workers()] == [worker.id]
    assert sorted(runs) == sorted(job.id for job in jobs)


class Batches:
    """A worker whose first batch is that of the job `first`, and whose second has all other jobs of the test."""

    def __init__(self, td: Treadle, monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
        self.worker = Background(td, beat=0.05, concurrency=jobs)
        self._jobs = jobs
        self._first_is_settling = threading.Event()
        self.sizes: list[int] = []
        self.before: Callable[[list[str]], None] = lambda _: None
        wrap_settle(td, monkeypatch, self._before)

    def wait(self, ctx: Context) -> None:
        """To be called by handlers: only that of the first job goes on at once."""
        if ctx.subject != "first":
            assert self._first_is_settling.wait(30)

    def _before(self, ids: list[str]) -> None:
        self.sizes.append(len(ids))
        if len(self.sizes) == 1:
            self._first_is_settling.set()
            eventually(lambda: self.worker.worker._attempts.unsettled == self._jobs)
        self.before(ids)


def test_a_store_that_fails_while_outcomes_are_written_one_by_one_fails_no_job(
    td: Treadle, table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batches = Batches(td, monkeypatch, 4)

    @td.job(max_attempts=1)
    def bad(ctx: Context) -> None:
        batches.wait(ctx)
        td.enqueue_many([msgspec.structs.replace(good.request(), priority=2**70)])  # no database has such a number

    @td.job(max_attempts=1)
    def good(ctx: Context) -> None:
        batches.wait(ctx)

    def before(ids: list[str]) -> None:
        if table.is_there and WAITING not in caplog.text and len(batches.sizes) > 2 and refused.id not in ids:
            table.hide()
        elif not table.is_there and caplog.text.count(WAITING) > 2:
            table.show()

    batches.before = before
    first = good.using(subject="first").enqueue()
    refused, *others = td.enqueue_many([bad.request(), good.request(), good.request()])
    with running(batches.worker):
        eventually(lambda: caplog.text.count(WAITING) > 2 and table.is_there)
        assert all(ran_once(td, job) for job in (first, *others))
        assert ended(td, refused).status is Status.FAILED
    assert "its outcome could not be stored" in (now(td, refused).error or "")
    assert batches.sizes[:3] == [1, 3, 1]


@pytest.mark.parametrize(
    "error",
    [MemoryError(), OSError(24, "files"), RuntimeError("threads"), JobNotFound("its key"), SchemaTooNew("here", 2, 1)],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.sqlite_only
def test_no_job_fails_for_an_error_that_is_not_about_its_outcome(
    td: Treadle, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    errors = [error] * 3

    @td.job(max_attempts=1)
    def work() -> None: ...

    def before(_: list[str]) -> None:
        if errors:
            raise errors.pop()

    wrap_settle(td, monkeypatch, before)
    with working(td):
        assert ran_once(td, work.enqueue())
    assert errors == []


@pytest.mark.sqlite_only
def test_a_job_that_can_neither_complete_nor_fail_takes_no_other_with_it(
    td: Treadle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batches = Batches(td, monkeypatch, 4)

    @td.job
    def work(ctx: Context) -> None:
        batches.wait(ctx)

    def before(ids: list[str]) -> None:
        if stuck.id in ids and "could not be failed either" not in caplog.text:
            raise ValueError("planted")

    batches.before = before
    first = work.using(subject="first").enqueue()
    stuck, *others = td.enqueue_many([work.request() for _ in range(3)])
    with running(batches.worker):
        assert all(ran_once(td, job) for job in (first, *others))
        assert ended(td, stuck).status is Status.COMPLETED  # released, and run again
    assert "could not be failed either" in caplog.text
    assert batches.sizes[:2] == [1, 3]
