"""`treadle.testing`: the helpers with which users test their own apps."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest

from treadle import BadArguments, Context, Snooze, Status, Treadle
from treadle.errors import BadConnection, BadOption
from treadle.stores.base import TypePolicy
from treadle.testing import ManualClock, adrain, assert_enqueued, drain, enqueued, refute_enqueued, temporary

# An app as users write it: made at import, on its real database, which no test may touch.
td = Treadle("sqlite:////nonexistent/production.db")
sent: list[str] = []


@td.job(backoff=60, max_attempts=2)
def send_mail(to: str, subject: str = "hello") -> str:
    if to == "nobody":
        raise ConnectionError("no such mailbox")
    sent.append(to)
    return subject


@td.job
async def sign_up(name: str) -> None:
    await send_mail.using(delay=3600).aenqueue(to=name)


@td.job(run="process")
def where() -> int:
    return os.getpid()


@td.job(run="process")
async def where_async() -> int:
    return os.getpid()


# temporary


def test_inside_the_block_the_app_is_on_a_database_that_is_gone_afterwards() -> None:
    production = td.store
    with temporary(td):
        send_mail.enqueue(to="ann")
        path = Path(td.store.where)
        assert path.exists()
        assert len(enqueued(td, send_mail)) == 1
    assert td.store is production
    assert not path.parent.exists()
    with temporary(td):
        assert enqueued(td, send_mail) == []


def test_a_file_that_the_user_names_is_kept_without_its_jobs(tmp_path: Path) -> None:
    path = tmp_path / "shop-test.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    for _ in range(2):
        with temporary(td, url=f"sqlite:///{path}"):
            assert td.counts() == []
            send_mail.using(dedupe="once").enqueue(to="ann")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM orders").fetchall() == []


def test_a_file_that_may_be_in_use_is_left_alone(tmp_path: Path) -> None:
    real = Treadle(f"sqlite:///{tmp_path}/shop.db")
    real.enqueue("send_mail", {"to": "ann"})
    with pytest.raises(BadOption, match="with `test` in its name"), temporary(td, url=real.store.url):
        pass
    assert [{"status": "pending", "count": 1}] == real.counts()
    real.close()


def test_a_connection_to_another_file_names_the_url_that_is_missing(tmp_path: Path) -> None:
    for place in (tmp_path / "site.db", ":memory:"):
        with temporary(td), closing(sqlite3.connect(place)) as connection:
            connection.row_factory = lambda cursor, row: None
            where = f"it is open on {'a database in memory' if place == ':memory:' else place}, and temporary(td) keeps"
            missing = rf"{re.escape(f'{where} the jobs in {td.store.where}; ')}.*: temporary\(td, url=…\), or"
            with pytest.raises(BadConnection, match=missing):
                send_mail.using(connection=connection).enqueue(to="ann")
            assert td.counts() == []


def test_a_connection_to_the_temporary_file_is_used(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop-test.db"
    with temporary(td, url=url), closing(sqlite3.connect(tmp_path / "shop-test.db")) as connection:
        with connection:
            send_mail.using(connection=connection).enqueue(to="ann")
        assert len(enqueued(td, send_mail)) == 1
        connection.isolation_level = None
        with pytest.raises(BadConnection, match="no transaction is open on it"):
            send_mail.using(connection=connection).enqueue(to="ann")
        with pytest.raises(BadConnection, match="it is not a sqlite3 connection"):
            send_mail.using(connection="ann").enqueue(to="ann")


def test_an_exception_in_the_block_restores_the_app_too() -> None:
    production = td.store
    with pytest.raises(KeyError), temporary(td):
        raise KeyError
    assert td.store is production


def test_async_enqueues_use_the_temporary_database_too() -> None:
    async def main() -> list[str]:
        await send_mail.aenqueue(to="before")
        with temporary(td):
            await send_mail.aenqueue(to="inside")
            return [job.payload["to"] for job in enqueued(td, send_mail)]

    with temporary(td):
        assert asyncio.run(main()) == ["inside"]
        assert [job.payload["to"] for job in enqueued(td, send_mail)] == ["before"]


def test_policies_published_in_one_database_are_not_used_for_another() -> None:
    with temporary(td):
        td.store.publish([TypePolicy(type="unknown_here", max_attempts=2)])
        assert td.enqueue("unknown_here").max_attempts == 2
    with temporary(td):
        assert td.enqueue("unknown_here").max_attempts == 5


def test_two_apps_may_share_a_clock(treadle_clock: ManualClock) -> None:
    other = Treadle("sqlite:////nonexistent/other.db")
    with temporary(td, clock=treadle_clock), temporary(other, clock=treadle_clock):
        treadle_clock.advance(60)
        assert send_mail.enqueue(to="ann").created_at == other.enqueue("x").created_at == treadle_clock.now()


# the clock


def test_the_clock_starts_at_the_real_time_and_stands_still() -> None:
    clock = ManualClock()
    first = clock.now()
    assert abs(first - datetime.now(UTC)) < timedelta(seconds=5)
    assert (clock.now(), clock()) == (first, int(first.timestamp() * 1_000_000))
    assert clock.advance(90) == first + timedelta(seconds=90) == clock.now()
    assert clock.advance(timedelta(days=1)) == first + timedelta(days=1, seconds=90)
    with pytest.raises(BadOption, match="time goes forward"):
        clock.advance(-1)


def test_a_delayed_job_runs_when_the_clock_says_so() -> None:
    sent.clear()
    with temporary(td) as clock:
        sign_up.enqueue(name="ann")
        report = drain(td)
        assert (report.ran, report.completed, report.next_due_at) == (1, 1, clock.now() + timedelta(hours=1))
        assert assert_enqueued(td, send_mail, to="ann").run_at == clock.now() + timedelta(hours=1)
        clock.advance(3599)
        assert drain(td).ran == 0
        clock.advance(1)
        assert drain(td).ran == 1
    assert sent == ["ann"]


def test_a_worker_that_idles_on_a_moved_clock_does_not_wait_for_the_real_one(treadle_url: str) -> None:
    clock = ManualClock()
    app = Treadle(treadle_url, clock=clock)

    @app.job
    def work() -> str:
        return "ran"

    async def main() -> str:
        async with app.worker():
            job = await work.using(delay=3600).aenqueue()
            clock.advance(3600)
            return str(await app.aresult(job.id, timeout=10))

    assert asyncio.run(main()) == "ran"
    app.close()


# drain


def test_drain_runs_follow_ups_and_more_due_jobs_than_it_has_slots() -> None:
    app = Treadle("sqlite:////nonexistent/other.db")

    @app.job
    def count_down(n: int) -> None:
        if n:
            count_down.enqueue(n=n - 1)

    with temporary(app):
        for n in range(30):
            count_down.enqueue(n=n % 3)
        report = drain(app)
        assert (report.ran, report.completed, report.released) == (60, 60, 0)
        assert {job.status for job in enqueued(app, count_down)} == {Status.COMPLETED}


def test_drain_raises_with_the_traceback_of_a_failure_after_all_jobs_have_run() -> None:
    sent.clear()
    with temporary(td) as clock:
        send_mail.enqueue(to="nobody")
        send_mail.enqueue(to="ann")
        with pytest.raises(AssertionError) as caught:
            drain(td)
        text = str(caught.value)
        assert text.startswith(
            "1 attempt failed; to allow that: drain(td, raising=False)\nsend_mail(to='nobody') is retried"
        )
        assert "(attempt 1 of 2)" in text
        assert 'raise ConnectionError("no such mailbox")' in text
        assert sent == ["ann"]
        clock.advance(60)
        with pytest.raises(AssertionError, match=r"send_mail\(to='nobody'\) failed \(attempt 2 of 2\)"):
            drain(td)
        assert drain(td).ran == 0  # an old failure is not reported again


def test_drain_counts_failures_when_it_is_asked_not_to_raise() -> None:
    with temporary(td) as clock:
        job = send_mail.enqueue(to="nobody")
        assert drain(td, raising=False).retried == 1
        clock.advance(60)
        assert drain(td, raising=False).failed == 1
        assert [attempt.error for attempt in td.attempts(job.id)] == ["ConnectionError: no such mailbox"] * 2


def test_a_failure_whose_retry_completed_is_not_reported_by_drain() -> None:
    app = Treadle("sqlite:////nonexistent/other.db")

    @app.job(backoff=0)
    def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError

    with temporary(app):
        flaky.enqueue()
        report = drain(app)
    assert (report.ran, report.retried, report.completed) == (2, 1, 1)


def test_drain_gives_up_on_a_job_that_enqueues_itself_forever() -> None:
    app = Treadle("sqlite:////nonexistent/other.db")

    @app.job
    def again() -> None:
        again.enqueue()

    @app.job
    def not_yet() -> None:
        raise Snooze(0)

    for job in (again, not_yet):
        with temporary(app):
            job.enqueue()
            with pytest.raises(AssertionError, match="drain ran 20 jobs and more are due; does a job enqueue itself"):
                drain(app, max_jobs=20)


def test_drain_gives_up_on_a_job_that_never_ends() -> None:
    app = Treadle("sqlite:////nonexistent/other.db")

    @app.job
    async def wait(n: int) -> None:
        await asyncio.Event().wait()

    with temporary(app):
        wait.enqueue(n=7)
        with pytest.raises(AssertionError, match=r"drain has run for 2 s; still running: wait\(n=7\)"):
            drain(app, max_seconds=2)


def test_drain_with_invalid_bounds_is_refused() -> None:
    with temporary(td), pytest.raises(BadOption, match="at least 1 job"):
        drain(td, max_jobs=0)


def test_process_handlers_run_in_the_tests_process_so_that_they_see_patches() -> None:
    with temporary(td), mock.patch("os.getpid", return_value=-1):
        jobs = [where.enqueue(), where_async.enqueue()]
        drain(td)
        assert [td.result(job.id) for job in jobs] == [-1, -1]
    assert where.job_type.run == where_async.job_type.run == "process"


def test_drain_and_adrain_work_while_a_loop_runs_and_adrain_uses_that_loop() -> None:
    app = Treadle("sqlite:////nonexistent/other.db")
    ran_in: list[int] = []

    @app.job
    async def work() -> None:
        ran_in.append(threading.get_ident())

    async def main() -> None:
        with temporary(app):
            await work.aenqueue()
            assert (await adrain(app)).completed == 1
            await work.aenqueue()
            assert drain(app).completed == 1

    asyncio.run(main())
    assert ran_in[0] == threading.get_ident() != ran_in[1]


# enqueued


def test_enqueued_finds_jobs_by_function_or_type_and_some_of_their_payload() -> None:
    with temporary(td):
        first, second = send_mail.enqueue(to="ann"), send_mail.enqueue("bob", subject="bye")
        other = td.enqueue("unknown_here", {"to": "ann"})
        drain(td)  # a job that has run was enqueued too
        assert [job.id for job in enqueued(td, send_mail)] == [first.id, second.id]
        assert [job.id for job in enqueued(td, "send_mail", to="bob")] == [second.id]
        assert [job.id for job in enqueued(td, send_mail.using(priority=3), subject="bye")] == [second.id]
        assert [job.id for job in enqueued(td, "unknown_here", to=mock.ANY)] == [other.id]
        assert enqueued(td, send_mail, to="ann", subject="bye") == []


def test_enqueued_compares_values_as_they_are_stored() -> None:
    app = Treadle("sqlite:////nonexistent/other.db")
    moment = datetime(2024, 2, 29, tzinfo=UTC)

    @app.job
    def remind(at: datetime, days: tuple[int, ...]) -> None: ...

    with temporary(app):
        remind.enqueue(at=moment, days=(1, 2))
        assert len(enqueued(app, remind, at=moment, days=(1, 2))) == 1
        assert enqueued(app, remind, at=moment + timedelta(days=1)) == []
        assert enqueued(app, remind, at=object()) == []


def test_enqueued_finds_more_than_one_page() -> None:
    with temporary(td):
        td.enqueue_many([send_mail.request(to=f"{n}") for n in range(450)])
        assert [job.payload["to"] for job in enqueued(td, send_mail)] == [f"{n}" for n in range(450)]


def test_assert_enqueued_returns_the_newest_job_or_shows_which_jobs_exist() -> None:
    with temporary(td):
        with pytest.raises(AssertionError, match=r"^send_mail\(\) was not enqueued; there are no jobs$"):
            assert_enqueued(td, send_mail)
        send_mail.enqueue(to="ann")
        newest = send_mail.enqueue(to="ann", subject="again")
        assert assert_enqueued(td, send_mail, to="ann").id == newest.id
        drain(td)
        td.enqueue("other")
        with pytest.raises(AssertionError) as caught:
            assert_enqueued(td, send_mail, to="bob")
        assert str(caught.value).splitlines() == [
            "send_mail(to='bob') was not enqueued; the jobs are:",
            "  send_mail(to='ann') completed",
            "  send_mail(to='ann', subject='again') completed",
            "  other() pending",
        ]


def test_what_is_not_a_job_is_refused_with_what_to_pass() -> None:
    with temporary(td), pytest.raises(TypeError, match=r"not a job; pass a function with @td\.job, a task"):
        assert_enqueued(td, len)  # type: ignore[arg-type]


def test_refute_enqueued_shows_the_matching_jobs() -> None:
    with temporary(td):
        refute_enqueued(td, send_mail)
        for _ in range(30):
            send_mail.enqueue(to="ann")
        refute_enqueued(td, send_mail, to="bob")
        with pytest.raises(AssertionError) as caught:
            refute_enqueued(td, send_mail, to="ann")
        lines = str(caught.value).splitlines()
        assert (lines[0], lines[-1]) == (
            "send_mail(to='ann') was enqueued 30 times; the jobs are:",
            "  … and 10 more",
        )


def test_a_misspelled_argument_is_refused_because_no_job_could_have_it() -> None:
    with temporary(td), pytest.raises(BadArguments, match=r"unknown argument 'too'; it takes \(to, subject\)"):
        refute_enqueued(td, send_mail, too="ann")
