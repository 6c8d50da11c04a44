"""Where handlers run, what they may return and raise, and that none can kill the worker."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
from typing import Any

import pytest

from tests import stores
from tests.eventually import eventually
from tests.worker import process_jobs
from tests.worker.helpers import ended, now, place, working
from treadle import Context, Status, Treadle
from treadle.stores.base import WorkerRow
from treadle.testing import drain

word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="clean")


def test_a_plain_function_runs_in_a_thread_and_its_result_is_stored(td: Treadle) -> None:
    @td.job
    def add(a: int, b: int) -> dict[str, Any]:
        return {"sum": a + b, "thread": threading.current_thread() is not threading.main_thread()}

    job = add.enqueue(1, b=2)
    with working(td):
        assert td.result(job.id) == {"sum": 3, "thread": True}
    done = now(td, job)
    assert (done.status, done.attempts, done.error) == (Status.COMPLETED, 1, None)
    assert done.started_at
    assert done.completed_at
    assert done.started_at <= done.completed_at


def test_an_async_function_runs_on_the_workers_loop(td: Treadle) -> None:
    @td.job
    async def greet(name: str) -> str:
        await asyncio.sleep(0)
        return f"hello {name}, from {threading.current_thread().name}"

    with working(td) as background:
        assert td.result(greet.enqueue(name="ann").id) == f"hello ann, from {background.thread.name}"


def test_a_process_handler_runs_in_a_child_that_is_used_again(in_children: Treadle) -> None:
    with working(in_children, concurrency=1):
        pids = {in_children.result(process_jobs.own_pid.enqueue().id) for _ in range(3)}
        pids.add(in_children.result(process_jobs.own_pid_async.enqueue().id))
    assert len(pids) == 1
    assert pids != {os.getpid()}


def test_the_attempts_of_a_child_share_one_loop_and_leave_no_task_on_it(in_children: Treadle) -> None:
    """A pool of connections that a module keeps is bound to the loop on which it was opened."""
    with working(in_children, concurrency=1):
        found = [in_children.result(process_jobs.leaves_a_task.enqueue().id) for _ in range(3)]
    assert found == [(1, []), (1, [True]), (1, [True, True])]


def test_a_process_handlers_exception_comes_back_with_its_traceback(in_children: Treadle) -> None:
    job = process_jobs.complain.enqueue(about="the weather")
    with working(in_children):
        assert ended(in_children, job).error == "ValueError: the weather"
    (attempt,) = in_children.attempts(job.id)
    assert "in complain" in (attempt.traceback or "")


@pytest.mark.parametrize("handler", ["complain", "complains_here", "complains_async"])
def test_a_traceback_begins_in_the_handler(in_children: Treadle, handler: str) -> None:
    """In a child, in a thread and on the event loop."""
    job = getattr(process_jobs, handler).enqueue(about="the weather")
    with working(in_children):
        ended(in_children, job)
    _, first, *_ = (in_children.attempts(job.id)[0].traceback or "").splitlines()
    assert "process_jobs.py" in first


def test_a_handler_that_kills_its_child_is_charged_for_each_crash_and_fails_in_the_end(in_children: Treadle) -> None:
    job, neighbor = process_jobs.die.enqueue(code=3), process_jobs.own_pid.enqueue()
    with working(in_children):
        failed = ended(in_children, job)
        assert ended(in_children, neighbor).status is Status.COMPLETED
    assert (failed.status, failed.attempts, failed.error) == (Status.FAILED, 2, "its process exited with 3")
    assert [attempt.outcome for attempt in in_children.attempts(job.id)] == ["retried", "failed"]


def test_a_process_handler_declared_on_a_registry_runs_in_a_child(in_children: Treadle) -> None:
    in_children.include(process_jobs.apart)
    job = process_jobs.declared_apart.using(max_attempts=1).enqueue()
    with working(in_children):
        assert in_children.result(job.id) == "ran"


def test_the_context_says_what_runs(td: Treadle) -> None:
    @td.job(queue="slow")
    def look(ctx: Context, n: int) -> list[Any]:
        return [ctx.id, ctx.type, ctx.queue, ctx.tenant, ctx.subject, ctx.attempt, ctx.max_attempts, ctx.snoozes, n]

    job = look.using(tenant="acme", subject="call-7", max_attempts=2).enqueue(n=1)
    drain(td)
    assert now(td, job).result == [job.id, "look", "slow", "acme", "call-7", 1, 2, 0, 1]


def test_default_arguments_are_the_handlers_own(td: Treadle) -> None:
    @td.job
    def greet(name: str, greeting: str = "hello") -> str:
        return f"{greeting} {name}"

    first, second = greet.enqueue("ann"), greet.enqueue(name="bob", greeting="bye")
    drain(td)
    assert (now(td, first).result, now(td, second).result) == ("hello ann", "bye bob")


def test_a_job_is_still_an_ordinary_function(td: Treadle) -> None:
    @td.job
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    assert (double(4), double.__name__, double.__doc__) == (8, "double", "Twice as much.")


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_context_variables_of_one_handler_are_invisible_to_the_next(td: Treadle, kind: str) -> None:
    def mark() -> str:
        found = word.get()
        word.set("dirty")
        return found

    async def amark() -> str:
        return mark()

    job = td.job(type="mark")(amark if kind == "async" else mark)
    jobs = [job.enqueue() for _ in range(5)]
    with working(td, concurrency=1):
        assert [td.result(job.id) for job in jobs] == ["clean"] * 5


def test_context_variables_of_one_handler_are_invisible_to_the_next_in_a_child(in_children: Treadle) -> None:
    jobs = [process_jobs.set_and_return.enqueue() for _ in range(3)]
    with working(in_children, concurrency=1):
        assert [in_children.result(job.id) for job in jobs] == ["clean"] * 3


def test_timeouts_and_task_groups_work_inside_async_handlers(td: Treadle) -> None:
    @td.job
    async def structured() -> list[Any]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, n)) for n in range(3)]
        with pytest.raises(ExceptionGroup):  # noqa: PT012
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.Event().wait())
                raise ValueError("all of them")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        task = asyncio.current_task()
        return [[t.result() for t in tasks], task is not None and task.cancelling()]

    jobs = [structured.enqueue() for _ in range(4)]  # in the same slots, one after another
    with working(td, concurrency=2):
        assert [td.result(job.id) for job in jobs] == [[[0, 1, 2], 0]] * 4


def test_async_handlers_run_at_the_same_time(td: Treadle) -> None:
    barrier: list[asyncio.Barrier] = []

    @td.job
    async def meet() -> None:
        if not barrier:
            barrier.append(asyncio.Barrier(5))
        await barrier[0].wait()

    jobs = [meet.enqueue() for _ in range(5)]
    with working(td, concurrency=5):
        assert {ended(td, job).status for job in jobs} == {Status.COMPLETED}


def test_handlers_that_never_wait_let_others_run(td: Treadle) -> None:
    released = threading.Event()

    @td.job
    async def busy() -> None:
        if not released.is_set():
            busy.enqueue()

    @td.job
    async def patient() -> None:
        await asyncio.sleep(0.01)
        released.set()

    with working(td, concurrency=4):
        busy.enqueue()
        assert ended(td, patient.enqueue()).status is Status.COMPLETED
    drain(td)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words for it")

    __repr__ = __str__


class Alien(BaseException):
    pass


def _overflow() -> None:
    _overflow()


RAISES = {
    "a BaseException": (Alien("from outside"), "Alien: from outside"),
    "SystemExit": (SystemExit(3), "SystemExit: 3"),
    "KeyboardInterrupt": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "GeneratorExit": (GeneratorExit(), "GeneratorExit"),
    "an exception that cannot be printed": (Unprintable(), "Unprintable: <unprintable>"),
    "a NUL": (ValueError("a\0b"), "ValueError: a\ufffdb"),
    "a lone surrogate": (ValueError("a\ud800b"), "ValueError: a?b"),
    "StopIteration": (StopIteration(1), "StopIteration: 1"),
}


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("what", RAISES)
def test_whatever_a_handler_raises_fails_only_its_own_job(td: Treadle, kind: str, what: str) -> None:
    error, text = RAISES[what]

    def bad() -> None:
        raise error

    async def abad() -> None:
        raise error

    @td.job
    async def good() -> str:
        return "still here"

    job = td.job(type="bad", max_attempts=1)(abad if kind == "async" else bad)
    first = job.enqueue()
    with working(td, concurrency=1):
        failed = ended(td, first)
        assert td.result(good.enqueue().id) == "still here"
    if kind == "async" and what == "StopIteration":  # a coroutine cannot raise it
        text = "RuntimeError: coroutine raised StopIteration"
    assert (failed.status, failed.error) == (Status.FAILED, text)
    assert td.attempts(first.id)[0].traceback


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_an_infinite_recursion_fails_only_its_own_job(td: Treadle, kind: str) -> None:
    def deep() -> None:
        _overflow()

    async def adeep() -> None:
        _overflow()

    job = td.job(type="deep", max_attempts=1)(adeep if kind == "async" else deep).enqueue()
    with working(td):
        error = ended(td, job).error
    assert error
    assert error.startswith("RecursionError: maximum recursion depth")


def test_an_async_handler_that_cancels_itself_has_failed(td: Treadle) -> None:
    @td.job(max_attempts=1)
    async def odd() -> None:
        raise asyncio.CancelledError("my own doing")

    job = odd.enqueue()
    with working(td):
        assert (ended(td, job).status, now(td, job).error) == (Status.FAILED, "CancelledError: my own doing")


def test_sys_exit_in_a_thread_does_not_stop_the_worker(td: Treadle) -> None:
    @td.job(max_attempts=1)
    def leave() -> None:
        sys.exit("that is all")

    job = leave.enqueue()
    with working(td) as background:
        assert ended(td, job).error == "SystemExit: that is all"
        assert background.thread.is_alive()


@pytest.mark.parametrize("result", [object(), {1, object()}, "x" * 1_100_000, "\0"])
def test_a_result_that_cannot_be_stored_fails_at_once_since_a_retry_would_do_the_work_again(
    td: Treadle, result: Any
) -> None:
    runs: list[int] = []

    @td.job(max_attempts=5)
    def odd() -> Any:
        runs.append(1)
        return result

    job = odd.enqueue()
    drain(td, raising=False)
    assert (now(td, job).status, len(runs)) == (Status.FAILED, 1)
    assert "the handler returned what cannot be stored" in (now(td, job).error or "")


def test_a_result_over_the_limit_is_named_with_its_size_and_the_limit(td: Treadle) -> None:
    @td.job
    def much() -> str:
        return "x" * (1 << 20)

    job = much.enqueue()
    drain(td, raising=False)
    assert "the result of 'much' is 1,048,578 bytes and the limit is 1,048,576" in (now(td, job).error or "")


def test_a_job_of_an_unknown_type_stays_pending_with_no_attempt(td: Treadle) -> None:
    @td.job
    def known() -> None: ...

    stranger = td.enqueue("stranger", {"x": 1})
    with working(td):
        ended(td, known.enqueue())
    assert place(td, stranger) == (Status.PENDING, 0)


def test_a_payload_that_no_longer_fits_is_an_ordinary_failure_with_its_reason(td: Treadle, treadle_url: str) -> None:
    @td.job(max_attempts=2, backoff=0)
    def resize(width: int) -> None: ...

    older = Treadle(treadle_url)
    jobs = [older.enqueue("resize", payload) for payload in ({"width": "wide"}, {"height": 1}, {})]
    older.close()
    drain(td, raising=False)
    errors = [now(td, job).error or "" for job in jobs]
    assert {place(td, job) for job in jobs} == {
        (Status.FAILED, 5)
    }  # as set by its producer, which did not know the type
    assert [error.startswith("BadArguments: resize: ") for error in errors] == [True] * 3
    assert "Expected `int`, got `str`" in errors[0]
    assert "unknown field `height`" in errors[1]
    assert "missing argument 'width'" in errors[2]
    assert all("it takes (width: " in error for error in errors)


def test_progress_is_seen_while_the_handler_runs_and_gone_when_it_has_ended(td: Treadle) -> None:
    go = threading.Event()

    @td.job
    def steps(ctx: Context) -> None:
        ctx.progress(0.1)
        ctx.progress(0.5, "half of it")
        go.wait(15)

    with working(td):
        job = steps.enqueue()
        progress = eventually(lambda: (progress := now(td, job).progress) and progress.fraction == 0.5 and progress)
        go.set()
        assert progress is not None
        assert (progress.fraction, progress.message) == (0.5, "half of it")
        assert ended(td, job).progress is None


def test_progress_of_a_child_is_seen_while_it_runs(in_children: Treadle, tmp_path: Any) -> None:
    with working(in_children):
        job = process_jobs.report_progress.enqueue(path=str(tmp_path / "go"))
        progress = eventually(lambda: now(in_children, job).progress)
        (tmp_path / "go").touch()
        assert progress is not None
        assert (progress.fraction, progress.message) == (0.25, "a quarter")
        assert ended(in_children, job).status is Status.COMPLETED


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_progress_is_a_fraction(td: Treadle, fraction: float) -> None:
    @td.job(max_attempts=1)
    def wrong(ctx: Context) -> None:
        ctx.progress(fraction)

    job = wrong.enqueue()
    drain(td, raising=False)
    assert "from 0 to 1" in (now(td, job).error or "")


def test_rows_broken_by_hand_stop_no_other_job(treadle_url: str) -> None:
    """The drain ends: no job is claimed again and again."""
    td = Treadle(treadle_url, **stores.quick(treadle_url))

    @td.job(max_attempts=1)
    def work(n: int) -> int:
        return n

    twice, many, payload, over, *whole = td.enqueue_many([work.request(n=n) for n in range(7)])
    [lease] = td.claim(1, lease=3600)
    td.store.register(WorkerRow(id="broken", name="broken", concurrency=1))
    for statement in (
        "INSERT INTO treadle_ready (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion,"
        " updated_at) SELECT id, queue, type, tenant, priority, created_at, 0, 0, 0, created_at"
        f" FROM treadle_jobs WHERE id = '{twice.id}'",
        f"UPDATE treadle_ready SET attempts = 2147483647 WHERE id = '{many.id}'",
        f"UPDATE treadle_jobs SET payload = '[1]' WHERE id = '{payload.id}'",
        "INSERT INTO treadle_finished (id, lease, token, status, queue, type, tenant, attempts, worker, run_at,"
        " completed_at) SELECT id, 0, 0, 'cancelled', queue, type, tenant, 0, '', created_at, created_at"
        f" FROM treadle_jobs WHERE id = '{over.id}'",
        "UPDATE treadle_workers SET host = '[5]', types = '5'",
        "SELECT 1" if stores.is_postgres(treadle_url) else "DELETE FROM treadle_meta WHERE key = 'lease'",
    ):
        stores.rows(treadle_url, statement)

    drain(td, raising=False)

    assert [td.result(job.id) for job in whole] == [4, 5, 6]
    assert td.result(many.id) == 1
    assert (now(td, payload).status, now(td, over).status) == ("failed", "cancelled")
    lease.complete()
    assert now(td, twice).status == "completed"
    td.close()
