"""Managing jobs while a worker runs."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests import stores
from tests.worker.helpers import ended, working
from treadle import Context, Fail, Job, JobNotFound, Status, Treadle
from treadle.errors import BadOption, UnknownOption
from treadle.ids import new_id
from treadle.job import Reschedule
from treadle.stores import open_store
from treadle.testing import drain


def test_run_now_wakes_an_idle_worker(td: Treadle, treadle_url: str) -> None:
    """The request comes from another store, as from another process."""

    @td.job
    def hello() -> str:
        return "hello"

    job = td.enqueue("hello", delay=3600)
    other = open_store(treadle_url, **stores.quick(treadle_url))
    with working(td):
        other.run_now(job.id)
        assert ended(td, job).result == "hello"
    other.close()


def test_reschedule_wakes_an_idle_worker(td: Treadle, treadle_url: str) -> None:
    @td.job
    def hello() -> str:
        return "hello"

    job = td.enqueue("hello", delay=3600)
    other = open_store(treadle_url, **stores.quick(treadle_url))
    with working(td):
        other.reschedule(job.id, Reschedule(delay=0))
        assert ended(td, job).result == "hello"
    other.close()


def test_a_reschedule_is_checked_as_an_enqueue_is(td: Treadle) -> None:
    job = td.enqueue("a")
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, BadOption, "at least one of run_at or delay, priority and queue"),
        ({"delay": -1}, BadOption, "delay=-1"),
        ({"delay": 1, "run_at": datetime.now(UTC)}, BadOption, "either delay or run_at"),
        ({"run_at": "soon"}, BadOption, "run_at='soon'"),
        ({"priority": 1.5}, BadOption, "priority=1.5"),
        ({"queue": ""}, BadOption, "cannot be empty"),
        ({"tenant": "acme"}, UnknownOption, "unknown option 'tenant'"),
    ]
    for changes, error, said in wrong:
        with pytest.raises(error, match=said):
            td.reschedule(job.id, **changes)
        with pytest.raises(error, match=said):
            td.bulk("reschedule", "type:a", **changes)
    with pytest.raises(BadOption, match="retry takes none"):
        td.bulk("retry", "type:a", priority=1)
    assert td.get(job.id) == job


def test_a_bulk_retry_is_run(td: Treadle) -> None:
    tries: list[int] = []

    @td.job
    def fails_once(n: int) -> None:
        tries.append(n)
        if tries.count(n) == 1:
            raise Fail("not yet")

    jobs = [fails_once.enqueue(n) for n in range(3)]
    with working(td):
        assert {Status.FAILED} == {ended(td, job).status for job in jobs}
        [*_, work] = td.bulk("retry", "status:failed", expected=3)
        assert (3, 0) == (work.done, work.skipped)
        for job in jobs:
            td.result(job.id, timeout=15)
    assert [0, 0, 1, 1, 2, 2] == sorted(tries)


# Expiry


def test_a_chore_cancels_a_job_that_nobody_claims(td: Treadle) -> None:
    job = td.enqueue("unknown", start_within=0.001)
    with working(td, beat=0.1):
        assert ended(td, job).status is Status.CANCELLED
        assert ended(td, job).error == "expired: it was not started within 0.001s of its run_at"


def test_a_tick_cancels_a_job_that_nobody_claims(td: Treadle) -> None:
    job = td.enqueue("unknown", run_at=datetime(2026, 1, 1, tzinfo=UTC), start_within=timedelta(hours=1))
    assert td.tick(max_seconds=1).cancelled == 1
    assert ended(td, job).status is Status.CANCELLED


def test_an_expired_job_never_runs(td: Treadle) -> None:
    ran: list[int] = []

    @td.job
    def note(n: int) -> None:
        ran.append(n)

    late = note.using(run_at=datetime(2026, 1, 1, tzinfo=UTC), start_within=60).enqueue(1)
    good = note.using(start_within=3600).enqueue(2)
    with working(td):
        assert ended(td, good).status is Status.COMPLETED
        assert ended(td, late).status is Status.CANCELLED
    assert [2] == ran


@pytest.mark.parametrize("wrong", [0, -1, True, "5m", float("nan"), float("inf"), timedelta(0), None], ids=repr)
def test_a_wrong_start_within_is_refused(td: Treadle, wrong: Any) -> None:
    with pytest.raises(BadOption, match=r"start_within=.*seconds after its run_at"):
        td.enqueue("a", start_within=wrong)
    assert [] == td.jobs().jobs


# Clone


def like(job: Job) -> tuple[object, ...]:
    return job.type, job.payload, job.queue, job.tenant, job.subject, job.priority, job.max_attempts


def test_a_clone_is_a_new_job_like_the_old_one(td: Treadle) -> None:
    job = td.enqueue("mail", {"to": "ada"}, queue="q", tenant="t", subject="s", priority=3, max_attempts=2)
    td.cancel(job.id)

    clone = td.clone(job.id)

    assert clone.id != job.id
    assert like(clone) == like(job)
    assert clone.status is Status.PENDING


def test_a_clone_may_differ(td: Treadle) -> None:
    job = td.enqueue("mail", {"to": "ada"}, tenant="t")

    clone = td.clone(job.id, {"to": "bob"}, priority=7)

    assert (clone.payload, clone.priority, clone.tenant) == ({"to": "bob"}, 7, "t")


@pytest.mark.not_libsql
def test_a_clone_can_join_a_transaction(td: Treadle, treadle_url: str) -> None:
    job = td.enqueue("mail")
    with closing(stores.connect(treadle_url)) as connection:
        for end, exists in (("ROLLBACK", False), ("COMMIT", True)):
            connection.execute("BEGIN")
            clone = td.clone(job.id, connection=connection)
            assert td.get(clone.id) is None
            connection.execute(end)
            assert (td.get(clone.id) is not None) is exists


def test_a_job_in_place_of_its_id_is_explained(td: Treadle) -> None:
    job: Any = td.enqueue("mail")
    with pytest.raises(JobNotFound, match=r"pass job\.id"):
        td.cancel(job)


def test_a_clone_of_a_missing_job_raises_job_not_found(td: Treadle) -> None:
    with pytest.raises(JobNotFound):
        td.clone(new_id())


def test_all_management_calls_have_async_twins(td: Treadle) -> None:
    asyncio.run(_call_async_twins(td))


async def _call_async_twins(td: Treadle) -> None:
    job = await td.aenqueue("mail", {"to": "ada"}, delay=3600)

    assert [job.id] == [found.id for found in await td.ajobs("type:mail")]
    assert "1" == str(await td.acount("status:scheduled"))
    assert 1 == (await td.acounts_by_state())["scheduled"].value
    assert [{"type": "mail", "count": 1}] == await td.acounts(("type",))
    assert 1 == (await td.aqueue_stats())[0].counts["scheduled"]
    assert ([], {}, [], []) == (
        await td.ausage(),
        await td.alatency(),
        await td.afailures(),
        await td.aproblems(),
    )
    assert job.id == (await td.arun_now(job.id)).id
    assert (await td.areschedule(job.id, priority=3)).priority == 3
    assert {"to": "ada"} == (await td.aclone(job.id)).payload


def test_why_names_what_a_handler_waits_for(td: Treadle) -> None:
    """As handlers leave it, and as it is after what it waited for."""

    @td.job
    def page(n: int) -> int:
        return n

    @td.job
    def call(ctx: Context) -> Any:
        ctx.sleep("cool down", 60)
        answer = ctx.wait_for("approve", timeout=60)
        return [answer, *ctx.gather("pages", [page.using(delay=60).request(n=n) for n in range(3)])]

    job = call.enqueue()
    child = td.enqueue("later", after=job)
    seen = []
    for go_on in (td.run_now, lambda _: td.signal("approve", True), lambda _: None):
        drain(td)
        reason = td.why(job.id).reasons[0]
        seen.append((reason.code, reason.data["step"]))
        go_on(job.id)
    assert seen == [("sleeping", "cool down"), ("waits_for_signal", "approve"), ("waits_for_subjobs", "pages")]
    assert td.why(child.id).reasons[0].text.endswith("which is blocked itself")
