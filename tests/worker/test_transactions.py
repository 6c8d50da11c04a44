"""`ctx.transaction()`: the user's rows, the follow-ups and the completion commit together."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import stores
from tests.worker import process_jobs
from tests.worker.helpers import ended, now, place, working
from treadle import Context, Status, Treadle
from treadle.errors import TransactionOver
from treadle.outcome import NOT_COMMITTED
from treadle.stores.transaction import BUSY_SECONDS
from treadle.testing import drain, enqueued

Words = Callable[[], list[str]]


def _words(app: Treadle) -> Iterator[Words]:
    app.store.open()
    connection = stores.connect(app.store.url)
    connection.execute("CREATE TABLE words (word TEXT)")
    yield lambda: [row[0] for row in connection.execute("SELECT word FROM words ORDER BY word").fetchall()]
    connection.close()


@pytest.fixture
def words(td: Treadle) -> Iterator[Words]:
    """The words in a table of the user, in the same database."""
    yield from _words(td)


def test_rows_follow_ups_result_and_completion_are_committed_together(td: Treadle, words: Words) -> None:
    seen: list[Any] = []

    @td.job
    def work(ctx: Context) -> str:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO words VALUES ('done')")
            after.enqueue()
            ctx.result = {"words": 1}
            seen.extend([words(), now(td, job).status, enqueued(td, after)])
        seen.extend([words(), now(td, job).status, len(enqueued(td, after))])
        return "not this"

    @td.job
    def after() -> None: ...

    job = work.enqueue()
    drain(td)
    assert seen == [[], Status.PROCESSING, [], ["done"], Status.COMPLETED, 1]
    done = now(td, job)
    assert (done.status, done.attempts, done.result) == (Status.COMPLETED, 1, {"words": 1})


def test_an_exception_inside_the_block_rolls_everything_back(td: Treadle, words: Words) -> None:
    @td.job(max_attempts=2, backoff=0)
    def work(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(f"INSERT INTO words VALUES ('attempt {ctx.attempt}')")
            after.enqueue(n=ctx.attempt)
            if ctx.attempt == 1:
                raise ValueError("in the middle")

    @td.job
    def after(n: int) -> None: ...

    job = work.enqueue()
    drain(td)
    assert words() == ["attempt 2"]
    assert [after.payload for after in enqueued(td, after)] == [{"n": 2}]
    assert [attempt.error for attempt in td.attempts(job.id)] == ["ValueError: in the middle"]
    assert place(td, job) == (Status.COMPLETED, 2)


def test_a_block_that_failed_may_be_tried_again_in_the_same_attempt(td: Treadle, words: Words) -> None:
    @td.job(max_attempts=1)
    def work(ctx: Context) -> None:
        with pytest.raises(ValueError, match="once"), ctx.transaction() as connection:  # noqa: PT012
            connection.execute("INSERT INTO words VALUES ('first')")
            after.enqueue(n=1)
            raise ValueError("once")
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO words VALUES ('second')")
            after.enqueue(n=2)

    @td.job
    def after(n: int) -> None: ...

    job = work.enqueue()
    drain(td)
    assert (place(td, job), words()) == ((Status.COMPLETED, 1), ["second"])
    assert [after.payload for after in enqueued(td, after)] == [{"n": 2}]


def test_a_second_block_is_an_error(td: Treadle, words: Words) -> None:
    @td.job
    def work(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO words VALUES ('first')")
        with pytest.raises(TransactionOver, match="in one block"), ctx.transaction():
            raise AssertionError("not reached")

    job = work.enqueue()
    drain(td)
    assert (place(td, job), words()) == ((Status.COMPLETED, 1), ["first"])


def test_an_exception_after_the_block_is_only_logged(
    td: Treadle, words: Words, caplog: pytest.LogCaptureFixture
) -> None:
    @td.job
    def work(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO words VALUES ('done')")
        raise ValueError("too late to matter")

    job = work.enqueue()
    with caplog.at_level(logging.WARNING, "treadle"):
        drain(td)
    assert (place(td, job), words()) == ((Status.COMPLETED, 1), ["done"])
    assert "raised after its transaction had completed it: ValueError: too late to matter" in caplog.text
    assert td.attempts(job.id) == []


@pytest.mark.not_libsql
@pytest.mark.parametrize(
    ("end", "kind", "said"),
    [
        ("COMMIT", "completed", "completed"),
        ("ROLLBACK", "retried", f"retrying in 5.0s: {NOT_COMMITTED}"),
    ],
)
def test_a_completion_is_reported_after_the_users_transaction_has_ended(
    td: Treadle, caplog: pytest.LogCaptureFixture, end: str, kind: str, said: str
) -> None:
    @td.job(max_attempts=2, backoff=lambda _: 5.03439)
    def work(ctx: Context) -> None:
        connection = stores.connect(td.store.url)
        connection.execute("BEGIN")
        ctx.complete("done", connection=connection)
        connection.execute(end)
        connection.close()

    job = work.enqueue()
    with caplog.at_level(logging.INFO, "treadle"):
        report = td.tick()
    assert (1, 1) == (report.ran, getattr(report, kind))
    assert [f"job {job.id} (work) {said}"] == [r.getMessage() for r in caplog.records if r.name == "treadle.jobs"]


def test_an_enqueue_after_the_block_is_direct(td: Treadle) -> None:
    seen: list[int] = []

    @td.job
    def work(ctx: Context) -> None:
        with ctx.transaction():
            pass
        after.enqueue()
        seen.append(len(enqueued(td, after)))

    @td.job
    def after() -> None: ...

    work.enqueue()
    drain(td)
    assert seen == [1]


def test_a_worker_that_lost_the_job_writes_nothing(td: Treadle, words: Words) -> None:
    began, go = threading.Event(), threading.Event()

    @td.job(backoff=0)
    def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            began.set()
            go.wait(15)
        with ctx.transaction() as connection:
            connection.execute(f"INSERT INTO words VALUES ('attempt {ctx.attempt}')")
            after.enqueue(n=ctx.attempt)

    @td.job
    def after(n: int) -> None: ...

    with working(td, beat=0.05) as background:
        job = work.enqueue()
        assert began.wait(15)
        td.store.declare_dead(background.worker.id, "it was silent")
        assert ended(td, job).status is Status.COMPLETED
        go.set()  # the first attempt continues long after the second has ended
    assert words() == ["attempt 2"]
    assert [after.payload for after in enqueued(td, after)] == [{"n": 2}]
    assert place(td, job) == (Status.COMPLETED, 2)


def test_a_lost_lease_raises_in_the_handler_and_is_not_a_failure(td: Treadle, words: Words) -> None:
    from treadle import LeaseLost

    lost: list[int] = []

    @td.job(backoff=0)
    def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            td.store.declare_dead(background.worker.id, "it was silent")
        try:
            with ctx.transaction() as connection:
                connection.execute(f"INSERT INTO words VALUES ('attempt {ctx.attempt}')")
        except LeaseLost:
            lost.append(ctx.attempt)
            raise

    with working(td, beat=0.05) as background:
        job = work.enqueue()
        assert ended(td, job).status is Status.COMPLETED
    assert (lost, words()) == ([1], ["attempt 2"])
    assert [attempt.error for attempt in td.attempts(job.id)] == ["it was silent"]


@pytest.mark.sqlite_only
def test_a_block_that_takes_too_long_loses_the_lock_and_is_an_error(
    td: Treadle, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.stores.sqlite.store.TRANSACTION_SECONDS", 1.0)
    writing, let_go = threading.Event(), threading.Event()

    @td.job(max_attempts=1)
    def slow(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO words VALUES ('never seen')")
            writing.set()
            let_go.wait(15)

    @td.job
    def other() -> None: ...

    with working(td):
        job = slow.enqueue()
        assert writing.wait(30)
        assert ended(td, other.enqueue()).status is Status.COMPLETED  # others can write while the block goes on
        assert now(td, job).status is Status.PROCESSING
        let_go.set()
        error = ended(td, job).error or ""
    assert error.startswith("TransactionOver: ctx.transaction() was held for ")
    assert "the limit is 1 s" in error
    assert words() == []


@pytest.mark.sqlite_only
def test_the_connection_of_a_block_that_took_too_long_is_unusable(
    td: Treadle, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.stores.sqlite.store.TRANSACTION_SECONDS", 0.1)

    @td.job(max_attempts=1)
    def slow(ctx: Context) -> None:
        with ctx.transaction() as connection:
            while True:
                connection.execute("INSERT INTO words VALUES ('never seen')")

    job = slow.enqueue()
    drain(td, raising=False)
    assert (now(td, job).error or "").startswith("TransactionOver: ")
    assert words() == []


def test_atransaction_does_the_same_for_an_async_handler(td: Treadle, words: Words) -> None:
    @td.job(max_attempts=2, backoff=0)
    async def work(ctx: Context) -> None:
        async with ctx.atransaction() as connection:
            connection.execute(f"INSERT INTO words VALUES ('attempt {ctx.attempt}')")
            await asyncio.sleep(0)
            await after.aenqueue(n=ctx.attempt)
            ctx.result = "stored"
            if ctx.attempt == 1:
                raise ValueError("in the middle")
        with pytest.raises(TransactionOver):
            async with ctx.atransaction():
                raise AssertionError("not reached")

    @td.job
    def after(n: int) -> None: ...

    job = work.enqueue()
    drain(td)
    assert words() == ["attempt 2"]
    assert [after.payload for after in enqueued(td, after)] == [{"n": 2}]
    assert (*place(td, job), now(td, job).result) == (Status.COMPLETED, 2, "stored")


def test_a_cancel_inside_atransaction_rolls_back(td: Treadle, words: Words) -> None:
    began = threading.Event()

    @td.job
    async def work(ctx: Context) -> None:
        async with ctx.atransaction() as connection:
            connection.execute("INSERT INTO words VALUES ('never seen')")
            began.set()
            await asyncio.Event().wait()

    job = work.enqueue()
    with working(td, grace=0):
        assert began.wait(60)
    assert place(td, job) == (Status.PENDING, 0)
    assert words() == []


@pytest.mark.sqlite_only
def test_a_cancel_while_atransaction_waits_for_the_write_lock_does_not_block_the_loop(
    td: Treadle, words: Words
) -> None:
    """The event loop releases the write lock. It could not if it waited for the transaction's thread."""
    late: list[float] = []
    writer = sqlite3.connect(td.store.where, isolation_level=None, check_same_thread=False)

    @td.job(timeout=0.1, max_attempts=1)
    async def work(ctx: Context) -> None:
        writer.execute("BEGIN IMMEDIATE")
        loop = asyncio.get_running_loop()
        due = loop.time() + 0.3

        def let_go() -> None:
            late.append(loop.time() - due)
            writer.execute("ROLLBACK")

        loop.call_at(due, let_go)
        async with ctx.atransaction() as connection:
            connection.execute("INSERT INTO words VALUES ('never seen')")

    job = work.enqueue()
    with working(td):
        assert ended(td, job).error == "timed out after 0.1 s"
    writer.close()
    assert words() == []
    assert late[0] < BUSY_SECONDS / 2, "the loop stood still until the transaction gave up"


def test_a_result_that_cannot_be_stored_rolls_the_block_back(td: Treadle, words: Words) -> None:
    @td.job(max_attempts=1)
    def work(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO words VALUES ('never seen')")
            ctx.result = object()

    job = work.enqueue()
    drain(td, raising=False)
    assert (now(td, job).error or "").startswith("NotJSON: the result=<object ")
    assert words() == []


def test_a_block_that_commits_itself_is_an_error(td: Treadle, words: Words) -> None:
    @td.job(max_attempts=1)
    def work(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO words VALUES ('kept')")
            connection.commit()

    job = work.enqueue()
    drain(td, raising=False)
    assert (now(td, job).status, words()) == (Status.FAILED, ["kept"])
    assert (now(td, job).error or "").startswith("TransactionOver: the block committed or rolled back by itself")


def test_a_handler_in_a_child_has_a_transaction_on_the_workers_database(in_children: Treadle) -> None:
    fixture = _words(in_children)
    words = next(fixture)
    with working(in_children):
        job = process_jobs.write_and_complete.enqueue(word="from a child")
        assert in_children.result(job.id) == "from a child"
        (follow_up,) = enqueued(in_children, process_jobs.own_pid)
        assert ended(in_children, follow_up).status is Status.COMPLETED
    assert words() == ["from a child"]
    assert list(fixture) == []
