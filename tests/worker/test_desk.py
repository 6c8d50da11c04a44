"""What people do to jobs while a worker works."""

from __future__ import annotations

import asyncio

import pytest

from tests import stores
from tests.worker.helpers import ended, working
from windlass import Fail, Job, JobNotFound, Status, Windlass
from windlass.ids import new_id
from windlass.stores import open_store


def test_a_job_that_is_to_run_now_is_run_by_a_worker_that_waits(wl: Windlass, windlass_url: str) -> None:
    """Asked for by another process, as far as the worker can tell."""

    @wl.job
    def hello() -> str:
        return "hello"

    job = wl.enqueue("hello", delay=3600)
    other = open_store(windlass_url, **stores.quick(windlass_url))
    with working(wl):
        other.run_now(job.id)
        assert ended(wl, job).result == "hello"
    other.close()


def test_a_bulk_retry_is_run(wl: Windlass) -> None:
    tries: list[int] = []

    @wl.job
    def fails_once(n: int) -> None:
        tries.append(n)
        if tries.count(n) == 1:
            raise Fail("not yet")

    jobs = [fails_once.enqueue(n) for n in range(3)]
    with working(wl):
        assert {Status.FAILED} == {ended(wl, job).status for job in jobs}
        [*_, work] = wl.bulk("retry", "status:failed", expected=3)
        assert (3, 0) == (work.done, work.skipped)
        for job in jobs:
            wl.result(job.id, timeout=15)
    assert [0, 0, 1, 1, 2, 2] == sorted(tries)


# Clone


def like(job: Job) -> tuple[object, ...]:
    return job.type, job.payload, job.queue, job.tenant, job.subject, job.priority, job.max_attempts


def test_a_clone_is_a_new_job_like_the_old_one(wl: Windlass) -> None:
    job = wl.enqueue("mail", {"to": "ada"}, queue="q", tenant="t", subject="s", priority=3, max_attempts=2)
    wl.cancel(job.id)

    clone = wl.clone(job.id)

    assert clone.id != job.id
    assert like(clone) == like(job)
    assert clone.status is Status.PENDING


def test_a_clone_may_differ(wl: Windlass) -> None:
    job = wl.enqueue("mail", {"to": "ada"}, tenant="t")

    clone = wl.clone(job.id, {"to": "bob"}, priority=7)

    assert (clone.payload, clone.priority, clone.tenant) == ({"to": "bob"}, 7, "t")


def test_a_clone_of_nothing_is_a_typed_answer(wl: Windlass) -> None:
    with pytest.raises(JobNotFound):
        wl.clone(new_id())


def test_all_of_it_can_be_asked_for_from_a_loop(wl: Windlass) -> None:
    asyncio.run(_ask(wl))


async def _ask(wl: Windlass) -> None:
    job = await wl.aenqueue("mail", {"to": "ada"}, delay=3600)

    assert [job.id] == [found.id for found in await wl.ajobs("type:mail")]
    assert "1" == str(await wl.acount("status:scheduled"))
    assert 1 == (await wl.atabs())["scheduled"].value
    assert [{"type": "mail", "count": 1}] == await wl.acounts(("type",))
    assert 1 == (await wl.alanes())[0].scheduled
    assert ([], {}, [], []) == (
        await wl.ausage(),
        await wl.alatency(),
        await wl.afailures(),
        await wl.aproblems(),
    )
    assert job.id == (await wl.arun_now(job.id)).id
    assert {"to": "ada"} == (await wl.aclone(job.id)).payload
