"""Middleware goes around every attempt, wherever it runs. Lifespans open what handlers share."""

from __future__ import annotations

import asyncio
import contextvars
import os
import re
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests import stores
from tests.eventually import eventually
from tests.worker import lifespan_jobs
from tests.worker.helpers import ended, now, working
from treadle import Context, Fail, Registry, Retry, Snooze, Status, Treadle
from treadle.middleware import BadMiddleware, LifespanFailed
from treadle.outcome import TimedOut
from treadle.stores import open_store
from treadle.testing import drain

word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="unset")


@pytest.fixture
def happened() -> list[str]:
    return []


def noting(happened: list[str], name: str) -> Callable[[Context], Generator[None]]:
    def note(ctx: Context) -> Generator[None]:
        happened.append(f"before {name}")
        try:
            yield
        except BaseException as error:
            happened.append(f"{name} sees {type(error).__name__}")
            raise
        happened.append(f"after {name}")

    return note


def test_plain_middleware_goes_around_sync_and_async_handlers_in_order(td: Treadle, happened: list[str]) -> None:
    td.middleware(noting(happened, "outer"))

    @td.job
    def plain(x: int) -> int:
        happened.append(f"plain {x}")
        return x

    @td.job
    async def asynchronous(x: int) -> int:
        happened.append(f"asynchronous {x}")
        return x

    td.middleware(noting(happened, "inner"))  # declared later, and still around all of them
    first = plain.enqueue(1)
    drain(td)
    second = asynchronous.enqueue(2)
    td.tick()
    assert (td.result(first.id), td.result(second.id)) == (1, 2)
    around = ["before outer", "before inner", "{}", "after inner", "after outer"]
    assert happened == [line.format("plain 1") for line in around] + [line.format("asynchronous 2") for line in around]


@pytest.mark.sqlite_only
def test_async_middleware_goes_around_async_handlers(td: Treadle, happened: list[str]) -> None:
    td.middleware(noting(happened, "plain"))

    @td.middleware
    async def session(ctx: Context) -> AsyncGenerator[None]:
        await asyncio.sleep(0)
        token = word.set(f"{ctx.type} {ctx.attempt}")
        yield
        word.reset(token)
        happened.append("closed")

    @td.job
    async def reads() -> str:
        return word.get()

    job = reads.enqueue()
    drain(td)
    assert td.result(job.id) == "reads 1"
    assert happened == ["before plain", "closed", "after plain"]


@pytest.mark.sqlite_only
def test_the_middleware_of_a_registry_goes_around_its_own_jobs_inside_the_apps(
    td: Treadle, happened: list[str]
) -> None:
    mail, templates = Registry(), Registry()
    templates.middleware(noting(happened, "templates"))
    mail.include(templates)
    mail.middleware(noting(happened, "mail"))

    @templates.job
    def render() -> None: ...

    @mail.job
    def send() -> None: ...

    @td.job
    def other() -> None: ...

    td.include(mail)
    td.middleware(noting(happened, "app"))
    for function, around in ((render, ["app", "mail", "templates"]), (send, ["app", "mail"]), (other, ["app"])):
        happened.clear()
        function.enqueue()
        drain(td)
        assert happened == [f"before {name}" for name in around] + [f"after {name}" for name in around[::-1]]


@pytest.mark.sqlite_only
@pytest.mark.parametrize("is_async", [False, True])
def test_exceptions_come_through_and_may_be_replaced_or_swallowed(
    td: Treadle, happened: list[str], is_async: bool
) -> None:
    td.middleware(noting(happened, "outer"))

    @td.middleware
    def translate(ctx: Context) -> Generator[None]:
        try:
            yield
        except KeyError:
            raise Fail("no such customer") from None
        except PermissionError:
            raise Retry("login again", delay=900) from None
        except ConnectionError:
            raise Snooze(300) from None
        except ZeroDivisionError:
            pass

    def raising(kind: str) -> None:
        errors: list[type[Exception]] = [KeyError, PermissionError, ConnectionError, ZeroDivisionError]
        raise next(error for error in errors if error.__name__ == kind)

    async def araising(kind: str) -> None:
        raising(kind)

    handler = td.job(type="raising")(araising if is_async else raising)
    jobs = [handler.enqueue(kind) for kind in ("KeyError", "PermissionError", "ConnectionError", "ZeroDivisionError")]
    drain(td, raising=False)
    failed, retried, snoozed, swallowed = (now(td, job) for job in jobs)
    assert (failed.status, failed.error) == (Status.FAILED, "no such customer")
    assert (retried.status, retried.attempts) == (Status.PENDING, 1)
    assert td.attempts(retried.id)[0].error == "login again"
    assert (snoozed.status, snoozed.attempts, snoozed.snoozes) == (Status.PENDING, 0, 1)
    assert (swallowed.status, swallowed.result) == (Status.COMPLETED, None)
    assert {line for line in happened if "sees" in line} == {
        "outer sees Fail",
        "outer sees Retry",
        "outer sees Snooze",
    }


@pytest.mark.sqlite_only
def test_a_middleware_may_stop_the_handler_from_running(td: Treadle) -> None:
    @td.middleware
    def maintenance(ctx: Context) -> Generator[None]:
        if ctx.tenant == "acme":
            raise Snooze(60)
        yield

    ran: list[str] = []

    @td.job
    def work(name: str) -> None:
        ran.append(name)

    held = work.using(tenant="acme").enqueue("held")
    work.enqueue("runs")
    drain(td)
    assert ran == ["runs"]
    assert now(td, held).snoozes == 1


@pytest.mark.sqlite_only
def test_a_middleware_sees_that_an_async_handler_timed_out(td: Treadle, happened: list[str]) -> None:
    td.middleware(noting(happened, "outer"))

    @td.job(timeout=0.05, max_attempts=1)
    async def hangs() -> None:
        await asyncio.Event().wait()

    job = hangs.enqueue()
    drain(td, raising=False)
    assert happened == ["before outer", f"outer sees {TimedOut.__name__}"]
    assert now(td, job).error == "timed out after 0.05 s"


@pytest.mark.sqlite_only
def test_a_handler_that_called_complete_completes_although_it_times_out(td: Treadle, happened: list[str]) -> None:
    td.middleware(noting(happened, "outer"))

    @td.job(timeout=0.05, max_attempts=1)
    async def hangs(ctx: Context) -> None:
        ctx.complete("done")
        await asyncio.Event().wait()

    job = hangs.enqueue()
    drain(td)
    assert td.result(job.id) == "done"
    assert happened == ["before outer", "outer sees CancelledError"]


@pytest.mark.sqlite_only
def test_an_async_middleware_counts_against_the_timeout(td: Treadle) -> None:
    @td.middleware
    async def hangs(ctx: Context) -> AsyncGenerator[None]:
        await asyncio.Event().wait()
        yield

    @td.job(timeout=0.05, max_attempts=1)
    async def work() -> None: ...

    job = work.enqueue()
    drain(td, raising=False)
    assert now(td, job).error == "timed out after 0.05 s"


@pytest.mark.sqlite_only
def test_arguments_that_do_not_fit_come_through_the_middleware(td: Treadle, happened: list[str]) -> None:
    td.middleware(noting(happened, "outer"))
    other = Treadle(td.store.url)
    job = other.enqueue("work", {"n": "seven"}, max_attempts=1)
    other.close()

    @td.job
    def work(n: int) -> None: ...

    drain(td, raising=False)
    assert now(td, job).status is Status.FAILED
    assert happened == ["before outer", "outer sees BadArguments"]


def test_a_durable_handler_is_suspended_through_its_middleware(td: Treadle, happened: list[str]) -> None:
    td.middleware(noting(happened, "outer"))

    @td.job
    def waits(ctx: Context) -> Any:
        return ctx.wait_for("go")

    job = waits.enqueue()
    drain(td)
    td.signal("go", "gone")
    drain(td)
    assert td.result(job.id) == "gone"
    assert happened == ["before outer", "outer sees Suspend", "before outer", "after outer"]


@pytest.mark.sqlite_only
def test_an_async_middleware_around_a_plain_handler_is_refused_at_the_start(td: Treadle) -> None:
    @td.middleware
    async def session(ctx: Context) -> AsyncGenerator[None]:
        yield

    @td.job
    def resize() -> None: ...

    resize.enqueue()
    for start in (drain, lambda td: td.tick()):
        with pytest.raises(BadMiddleware, match=r"session is async, but the handler of 'resize' is a plain function"):
            start(td)
    assert [job.attempts for job in td.jobs()] == [0]


@pytest.mark.sqlite_only
def test_what_is_not_a_generator_is_refused_at_decoration(td: Treadle) -> None:
    def returns(ctx: Context) -> Any: ...

    with pytest.raises(BadMiddleware, match=r"returns cannot be a middleware: it is not a generator; write it with"):
        td.middleware(returns)
    with pytest.raises(BadMiddleware, match=r"returns cannot be a lifespan"):
        td.lifespan(returns)  # type: ignore[type-var]


@pytest.mark.sqlite_only
def test_parameters_that_nothing_fills_are_refused_at_decoration(td: Treadle) -> None:
    def opens(app: Any) -> Generator[None]:
        yield

    async def around() -> AsyncGenerator[None]:
        yield

    with pytest.raises(BadMiddleware, match=r"opens cannot be a lifespan: it takes \(app.*\); write def opens\(\)$"):
        td.lifespan(opens)  # type: ignore[type-var]
    with pytest.raises(BadMiddleware, match=r"a middleware: it takes \(\); write async def around\(ctx\)$"):
        td.middleware(around)  # type: ignore[type-var]


@pytest.mark.sqlite_only
@pytest.mark.parametrize("is_async", [False, True])
def test_the_error_of_a_second_yield_names_the_middleware(td: Treadle, is_async: bool) -> None:
    @td.middleware
    def harmless(ctx: Context) -> Generator[None]:
        yield

    def twice(ctx: Context) -> Generator[None]:
        yield
        yield

    async def atwice(ctx: Context) -> AsyncGenerator[None]:
        yield
        yield

    td.middleware(atwice if is_async else twice)

    @td.job(max_attempts=1)
    async def work() -> None: ...

    job = work.enqueue()
    drain(td, raising=False)
    [attempt] = td.attempts(job.id)
    problem = r"BadMiddleware: middleware \S+twice: generator didn't stop; each run of it reaches one yield"
    assert re.match(problem, attempt.error or "")


@pytest.mark.sqlite_only
def test_the_error_of_a_lifespan_without_a_yield_names_it(td: Treadle) -> None:
    @td.lifespan
    def never() -> Generator[None]:
        if not td:
            yield

    with pytest.raises(LifespanFailed, match=r"lifespan \S+never: generator didn't yield; each run of it reaches one"):
        drain(td)


# Lifespans


@pytest.mark.sqlite_only
def test_handlers_find_what_lifespans_have_opened_until_the_worker_has_stopped(
    td: Treadle, happened: list[str]
) -> None:
    extra = Registry()

    @td.lifespan
    async def resources() -> AsyncGenerator[dict[str, Any]]:
        happened.append("opens")
        task = asyncio.current_task()
        yield {"http": "client"}
        assert asyncio.current_task() is task  # as the task groups of anyio want it
        happened.append("closes")

    @extra.lifespan
    def plain() -> Generator[dict[str, Any]]:
        happened.append("opens, too")
        yield {"model": "weights"}
        happened.append("closes first")

    @td.middleware
    def sees(ctx: Context) -> Generator[None]:
        happened.append(f"runs with {ctx.state['http']}")
        yield

    td.include(extra)

    @td.job
    async def asynchronous(ctx: Context) -> str:
        return f"{ctx.state['http']} {ctx.state['model']}"

    @td.job
    def in_thread(ctx: Context) -> str:
        return f"{ctx.state['http']} {ctx.state['model']}"

    jobs = [asynchronous.enqueue(), in_thread.enqueue()]
    with working(td):
        assert [td.result(job.id) for job in jobs] == ["client weights"] * 2
    assert happened == ["opens", "opens, too", *["runs with client"] * 2, "closes first", "closes"]


@pytest.mark.sqlite_only
def test_without_a_lifespan_the_state_is_empty(td: Treadle) -> None:
    @td.job
    def count(ctx: Context) -> int:
        return len(ctx.state)

    job = count.enqueue()
    drain(td)
    assert td.result(job.id) == 0


@pytest.mark.sqlite_only
@pytest.mark.parametrize(
    ("yielded", "problem"),
    [
        (ConnectionError("no route to the mail server"), "ConnectionError: no route to the mail server"),
        (["http"], r"TypeError: it yielded \['http'\]; yield a dict"),
        ({"first": 2}, "ValueError: another lifespan has yielded 'first' already"),
    ],
)
def test_a_lifespan_that_fails_stops_the_worker_and_closes_the_others(
    td: Treadle, happened: list[str], yielded: Any, problem: str
) -> None:
    @td.lifespan
    async def first() -> AsyncGenerator[dict[str, Any]]:
        try:
            yield {"first": 1}
        finally:
            happened.append("first closes")

    @td.lifespan
    def broken() -> Generator[Any]:
        if isinstance(yielded, Exception):
            raise yielded
        yield yielded

    @td.job
    def work() -> None: ...

    work.enqueue()
    with pytest.raises(LifespanFailed, match=f"broken failed, so the worker cannot start: {problem}"):
        drain(td)
    assert happened == ["first closes"]
    assert td.workers() == []
    assert [job.status for job in td.jobs()] == [Status.PENDING]


@pytest.mark.sqlite_only
def test_a_lifespan_that_fails_at_the_end_is_logged(td: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    @td.lifespan
    def broken() -> Generator[None]:
        yield
        raise OSError("the disk is full")

    drain(td)
    assert "a lifespan failed when the worker stopped" in caplog.text
    assert "the disk is full" in caplog.text


@pytest.fixture
def in_lifespan_children(treadle_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(lifespan_jobs.JOURNAL, str(tmp_path / "journal"))
    monkeypatch.setenv(lifespan_jobs.PARENT, str(os.getpid()))
    app, before = lifespan_jobs.td, lifespan_jobs.td.store
    app._use(open_store(treadle_url, **stores.quick(treadle_url)))
    yield app
    app.close()
    app._use(before)


def test_children_have_middleware_and_a_lifespan_of_their_own(in_lifespan_children: Treadle, tmp_path: Path) -> None:
    with working(in_lifespan_children, concurrency=1):
        for job in (lifespan_jobs.plain, lifespan_jobs.asynchronous):
            assert in_lifespan_children.result(job.enqueue().id) is True
    lines = (tmp_path / "journal").read_text().splitlines()
    assert [line for line in lines if line.startswith("worker")] == [
        "worker: lifespan opens",
        "worker: lifespan closes",
    ]
    around = ["child: before {0}", "child: {0} runs", "child: after {0}"]
    ran = [line.format(type) for type in ("plain", "asynchronous") for line in around]
    assert [line for line in lines if line.startswith("child")] == [
        "child: lifespan opens",
        *ran,
        "child: lifespan closes",
    ]


@pytest.mark.sqlite_only
def test_a_lifespan_that_fails_in_a_child_costs_the_job_nothing(
    in_lifespan_children: Treadle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    td = in_lifespan_children
    monkeypatch.setenv(lifespan_jobs.FAILS, "yes")
    job = lifespan_jobs.plain.enqueue()
    with working(td, concurrency=1):
        eventually(lambda: "no route to the mail server" in caplog.text)
        monkeypatch.delenv(lifespan_jobs.FAILS)
        assert td.result(job.id) is True
    assert (ended(td, job).attempts, td.attempts(job.id)) == (1, [])
