"""Enqueue and wait: from threads, from tasks, by name, with options."""

from __future__ import annotations

import asyncio
import inspect
import threading
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests import stores
from tests.eventually import eventually
from tests.worker.helpers import now, working
from treadle import BadArguments, Fail, JobFailed, NotJSON, ResultTimeout, Status, StoreBusy, Treadle, TreadleError
from treadle.batches import Batches
from treadle.errors import BadOption, BlocksTheLoop, UnknownOption
from treadle.job import NewJob
from treadle.lease import Lease
from treadle.limit_changes import AppLimits
from treadle.schedules import Schedules
from treadle.stores.base import Inserted
from treadle.testing import ManualClock, drain, enqueued


@pytest.fixture
def commits(td: Treadle, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many enqueues each commit had."""
    counted: list[int] = []
    insert_groups = td.store.insert_groups

    def counting(groups: Sequence[Sequence[NewJob]]) -> list[Inserted]:
        counted.append(len(groups))
        return insert_groups(groups)

    monkeypatch.setattr(td.store, "insert_groups", counting)
    td._use(td.store)
    return counted


def test_enqueues_from_many_threads_are_each_stored_once_and_share_commits(
    td: Treadle, treadle_url: str, commits: list[int]
) -> None:
    @td.job
    def note(n: int) -> None: ...

    td.store.open()
    start, stored = threading.Barrier(65), []

    def enqueue(n: int) -> None:
        start.wait()
        stored.append(note.enqueue(n=n))

    threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(64)]
    with stores.nobody_can_write(treadle_url):
        for thread in threads:
            thread.start()
        start.wait()
        eventually(lambda: commits and len(td._group._waiting) == 64 - commits[0])  # all except those of the commit
    for thread in threads:
        thread.join()
    assert sorted(job.payload["n"] for job in enqueued(td, note)) == list(range(64))
    assert {job.id for job in stored} == {job.id for job in enqueued(td, note)}
    assert (len(commits), sum(commits)) == (2, 64)


def test_enqueues_from_many_tasks_are_each_stored_once_and_share_commits(td: Treadle, commits: list[int]) -> None:
    @td.job
    def note(n: int) -> None: ...

    async def main() -> list[Any]:
        return await asyncio.gather(*(note.aenqueue(n=n) for n in range(512)))

    stored = asyncio.run(main())
    assert [job.payload["n"] for job in stored] == list(range(512))
    assert {job.id for job in stored} == {job.id for job in enqueued(td, note)}
    assert 0 < len(commits) < 50


def test_a_caller_whose_job_cannot_be_stored_is_the_only_one_that_fails(td: Treadle) -> None:
    import msgspec

    @td.job
    def note(n: int) -> None: ...

    async def main() -> list[Any]:
        broken = msgspec.structs.replace(note.request(n=-1), priority=2**70)
        return await asyncio.gather(
            note.aenqueue(n=0), td.aenqueue_many([broken]), note.aenqueue(n=2), return_exceptions=True
        )

    first, second, third = asyncio.run(main())
    assert isinstance(second, Exception)
    assert [job.id for job in enqueued(td, note)] == [first.id, third.id]


@pytest.mark.sqlite_only
def test_a_busy_database_is_a_typed_error_that_suggests_the_cause(
    td: Treadle, treadle_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    td.store.open()
    defaults = list(type(td.store.database).writing.__wrapped__.__defaults__)  # type: ignore[attr-defined]
    monkeypatch.setattr(type(td.store.database).writing.__wrapped__, "__defaults__", (0.1, *defaults[1:]))  # type: ignore[attr-defined]
    with (
        stores.nobody_can_write(treadle_url),
        pytest.raises(StoreBusy, match=r"pass it as connection=…"),
    ):
        td.enqueue("work")
    assert td.enqueue("work").status is Status.PENDING


@pytest.mark.not_libsql
def test_a_job_on_the_users_connection_exists_if_and_only_if_that_commits(td: Treadle, treadle_url: str) -> None:
    @td.job
    def work(n: int) -> None: ...

    td.store.open()
    connection = stores.connect(treadle_url)
    connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.execute("BEGIN")
    connection.execute("INSERT INTO orders VALUES (1)")
    work.using(connection=connection).enqueue(n=1)
    td.enqueue_many([work.request(n=2)], connection=connection)
    assert enqueued(td, work) == []
    connection.execute("COMMIT")
    assert [job.payload["n"] for job in enqueued(td, work)] == [1, 2]
    connection.execute("BEGIN")
    connection.execute("INSERT INTO orders VALUES (2)")
    work.using(connection=connection).enqueue(n=3)
    connection.execute("ROLLBACK")
    connection.close()
    assert len(enqueued(td, work)) == 2


def test_many_jobs_are_stored_all_or_none(td: Treadle) -> None:
    import msgspec

    @td.job
    def work(n: int) -> None: ...

    requests = [work.request(n=n) for n in range(5)]
    with pytest.raises(Exception):  # noqa: B017, PT011
        td.enqueue_many([*requests[:3], msgspec.structs.replace(requests[3], priority=2**70)])
    assert enqueued(td, work) == []
    assert [job.payload["n"] for job in td.enqueue_many(requests)] == [0, 1, 2, 3, 4]
    assert td.enqueue_many([]) == []
    with pytest.raises(BadOption, match="a list of requests"):
        td.enqueue_many([{"n": 1}])  # type: ignore[list-item]


# By name


def test_an_enqueue_by_name_uses_the_policy_that_workers_have_published(td: Treadle, treadle_url: str) -> None:
    @td.job(type="resize", queue="pictures", priority=7, max_attempts=2)
    def resize(width: int) -> int:
        return width

    producer = Treadle(treadle_url)
    before = producer.enqueue("resize", {"width": 1})
    assert (before.queue, before.priority, before.max_attempts) == ("default", 0, 5)
    with working(td):
        pass
    producer = Treadle(treadle_url)
    job = producer.enqueue("resize", {"width": 3}, tenant="acme")
    assert (job.queue, job.priority, job.max_attempts, job.tenant) == ("pictures", 7, 2, "acme")
    other = producer.enqueue("resize", {"width": 3}, priority=1, queue="now", max_attempts=9)
    assert (other.queue, other.priority, other.max_attempts) == ("now", 1, 9)
    drain(td)
    assert [now(td, job).result, now(td, other).result] == [3, 3]
    producer.close()


def test_an_enqueue_by_name_of_a_known_type_is_checked_against_its_handler(td: Treadle) -> None:
    @td.job
    def resize(width: int) -> None: ...

    with pytest.raises(BadArguments, match="unknown argument 'widht'"):
        td.enqueue("resize", {"widht": 3})
    with pytest.raises(NotJSON, match="width='wide'"):
        td.enqueue("resize", {"width": "wide"})
    with pytest.raises(BadArguments, match="a payload is a JSON object"):
        td.enqueue("resize", [3])  # type: ignore[arg-type]
    assert td.counts() == []


# Arguments and options


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (((), {}), "missing argument 'a'"),
        (((1, 2, 3), {}), "3 positional arguments"),
        (((1,), {"a": 1}), "'a' was given twice"),
        (((1,), {"c": 1}), "unknown argument 'c'"),
    ],
)
def test_arguments_that_the_handler_does_not_take_are_refused(td: Treadle, arguments: Any, problem: str) -> None:
    @td.job
    def work(a: int, b: int = 0) -> None: ...

    args, kwargs = arguments
    with pytest.raises(BadArguments, match=problem):
        work.enqueue(*args, **kwargs)
    assert td.counts() == []


def test_a_value_that_would_not_round_trip_is_refused_with_the_fix(td: Treadle) -> None:
    @td.job
    def work(when: Any) -> None: ...

    @td.job
    def dated(when: datetime) -> str:
        return when.isoformat()

    moment = datetime(2024, 2, 29, tzinfo=UTC)
    with pytest.raises(NotJSON, match="annotate the parameter"):
        work.enqueue(when=moment)
    job = dated.enqueue(when=moment)
    drain(td)
    assert now(td, job).result == "2024-02-29T00:00:00+00:00"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"priorty": 1}, UnknownOption, "did you mean 'priority'"),
        ({"colour": 1}, UnknownOption, "known options: after, connection, dedupe, delay"),
        ({"delay": -1}, BadOption, "0 or more"),
        ({"delay": 1, "run_at": datetime.now(UTC)}, BadOption, "either delay or run_at"),
        ({"run_at": 17}, BadOption, "for seconds from now use delay"),
        ({"priority": 1.5}, BadOption, "a whole number"),
        ({"priority": 40_000}, BadOption, "32767"),
        ({"max_attempts": 0}, BadOption, "at least 1"),
        ({"tenant": None}, BadOption, "a string"),
        ({"queue": ""}, BadOption, "cannot be empty"),
        ({"subject": "x" * 201}, BadOption, "200 characters"),
    ],
)
def test_invalid_options_are_refused(td: Treadle, options: Any, error: type[Exception], text: str) -> None:
    @td.job
    def work() -> None: ...

    with pytest.raises(error, match=text):
        work.using(**options).enqueue()
    with pytest.raises(error, match=text):
        td.enqueue("work", {}, **options)


@pytest.mark.parametrize("key", ["", "x" * 600, "a\0b", 7])
def test_invalid_dedupe_keys_are_refused(td: Treadle, key: Any) -> None:
    with pytest.raises(BadOption, match="key"):
        td.enqueue("work", dedupe=key)


def test_options_of_using_are_set_on_the_job(timed: Treadle, treadle_clock: ManualClock) -> None:
    @timed.job
    def work() -> None: ...

    job = work.using(delay=60, priority=5, tenant="acme", subject="call-7").using(priority=6, queue="slow").enqueue()
    assert (job.priority, job.tenant, job.subject, job.queue) == (6, "acme", "call-7", "slow")
    assert job.run_at == treadle_clock.now() + timedelta(seconds=60)
    moment = datetime(2099, 1, 1, tzinfo=UTC)
    assert work.using(run_at=moment).enqueue().run_at == moment
    assert now(timed, job) == job


def test_the_same_key_twice_is_one_job_until_it_has_ended(td: Treadle) -> None:
    @td.job(dedupe=True)
    def sync(org: str) -> None: ...

    @td.job(dedupe=lambda video, quality: f"video-{video}")
    def subtitle(video: int, quality: str) -> None: ...

    first = sync.enqueue(org="a")
    assert sync.enqueue(org="a").id == first.id
    assert sync.enqueue(org="b").id != first.id
    assert sync.using(tenant="acme").enqueue(org="a").id != first.id
    assert sync.using(dedupe=None).enqueue(org="a").id != first.id
    assert subtitle.enqueue(1, "low").id == subtitle.enqueue(1, "high").id
    drain(td)
    assert sync.enqueue(org="a").id != first.id


# Waiting for results


def test_result_waits_and_says_when_it_has_waited_long_enough(td: Treadle) -> None:
    job = td.enqueue("nobody_runs_this")
    with pytest.raises(
        ResultTimeout, match=r"is still pending after 0\.05 s; wait longer, or see why: td\.why\("
    ) as caught:
        td.result(job.id, timeout=0.05)
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(ResultTimeout):
        asyncio.run(td.aresult(job.id, timeout=0.05))


def test_result_of_a_job_that_did_not_complete_says_why(td: Treadle) -> None:
    @td.job
    def hopeless() -> None:
        raise Fail("no such video")

    failed, cancelled = hopeless.enqueue(), td.enqueue("other")
    drain(td, raising=False)
    td.cancel(cancelled.id)
    with pytest.raises(JobFailed, match="failed: no such video"):
        td.result(failed.id)
    with pytest.raises(JobFailed, match="cancelled"):
        td.result(cancelled.id)


# On an event loop


def test_a_sync_enqueue_on_a_running_loop_warns_where_it_is_called(td: Treadle) -> None:
    @td.job
    def work() -> None: ...

    job = work.enqueue()
    drain(td)

    async def main() -> None:
        for call in (
            lambda: work.enqueue(),
            lambda: work.using(priority=1).enqueue(),
            lambda: td.enqueue("work"),
            lambda: td.enqueue_many([work.request()]),
            lambda: td.result(job.id),
        ):
            with pytest.warns(BlocksTheLoop, match="aenqueue") as caught:
                call()
            assert [(w.filename, w.lineno) for w in caught] == [(__file__, call.__code__.co_firstlineno)]

    asyncio.run(main())


def test_each_call_with_a_twin_warns_on_a_running_event_loop(td: Treadle) -> None:
    """Once, also if it makes others."""

    async def main() -> None:
        id = (await td.aenqueue("work")).id
        for call in (
            lambda: td.get(id),
            lambda: td.cancel(id),
            lambda: td.retry(id),
            lambda: td.why(id),
            lambda: td.counts(),
            lambda: td.pause(queue="mail"),
            lambda: td.drain(queue="mail", timeout=0),
            lambda: td.get_signal("go"),
            lambda: td.signal("go"),
            lambda: td.problems(),
            lambda: td.rescue(),
            lambda: td.tick(),
            lambda: td.schedules.list(),
            lambda: td.schedules.put("nightly", "work", every=60),
            lambda: td.limits.list(),
            lambda: td.batches.list(),
            lambda: td.claim()[0].release(),
        ):
            with pytest.warns(BlocksTheLoop) as caught:
                call()
            assert {(w.filename, w.lineno) for w in caught} == {(__file__, call.__code__.co_firstlineno)}
            names = [str(w.message).rpartition("await its twin: a")[2] for w in caught]
            assert names == [name for name in call.__code__.co_names if name in names], names

    asyncio.run(main())


def test_every_twin_is_of_a_call_that_warns() -> None:
    for kind in (*Treadle.__mro__, Schedules, AppLimits, Batches, Lease):
        for made in list(vars(kind).values()):
            if inspect.iscoroutinefunction(made) and (call := getattr(made, "__wrapped__", None)):
                assert getattr(vars(kind)[call.__name__], "__wrapped__", None) is call


def test_async_calls_and_follow_ups_do_not_warn(td: Treadle) -> None:
    @td.job
    async def first() -> None:
        second.enqueue()

    @td.job
    def second() -> None: ...

    async def main() -> None:
        await first.aenqueue()
        await td.aenqueue("first")
        await td.aenqueue_many([first.request()])
        async with td.worker() as worker:
            await worker.drained()

    with warnings.catch_warnings():
        warnings.simplefilter("error", BlocksTheLoop)
        asyncio.run(main())
    assert len(enqueued(td, second)) == 3


def test_a_job_of_a_registry_without_an_app_cannot_be_enqueued() -> None:
    from treadle import Registry

    registry = Registry()

    @registry.job
    def work() -> None: ...

    with pytest.raises(TreadleError, match=r"td.include\(registry\)"):
        work.enqueue()
