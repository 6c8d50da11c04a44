"""An enqueue inside a handler is stored with the handler's completion, or not at all."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from itertools import count

import msgspec
import pytest

from tests.worker import process_jobs
from tests.worker.helpers import ended, eventually, now, place, working
from windlass import Context, Fail, Job, Snooze, Status, WaitsForItself, Windlass
from windlass.stores.base import Due, Wanted
from windlass.testing import ManualClock, drain, enqueued


def test_a_follow_up_is_stored_when_its_handler_completes_and_not_before(wl: Windlass) -> None:
    seen: list[object] = []

    @wl.job
    def first() -> str:
        follow_up = second.enqueue(n=1)
        seen.append(wl.get(follow_up.id))
        return follow_up.id

    @wl.job
    def second(n: int) -> None: ...

    job = first.enqueue()
    drain(wl)
    assert seen == [None]
    (follow_up,) = enqueued(wl, second, n=1)
    assert follow_up.id == now(wl, job).result
    assert follow_up.status is Status.COMPLETED


def test_follow_ups_of_every_kind_are_stored_together(wl: Windlass) -> None:
    @wl.job
    async def fan_out() -> None:
        tile.enqueue(n=0)  # no warning: nothing is written here
        await tile.aenqueue(n=1)
        wl.enqueue_many([tile.request(n=2), tile.request(n=3)])
        await wl.aenqueue_many([tile.request(n=4)])
        wl.enqueue("tile", {"n": 5}, tenant="acme")
        await wl.aenqueue("unknown_here", {"n": 6})
        await asyncio.to_thread(tile.enqueue, n=7)
        async with asyncio.TaskGroup() as group:
            group.create_task(tile.aenqueue(n=8))

    @wl.job
    def tile(n: int) -> None: ...

    fan_out.enqueue()
    drain(wl)
    assert sorted(job.payload["n"] for job in enqueued(wl, tile)) == [0, 1, 2, 3, 4, 5, 7, 8]
    assert [place(wl, job) for job in enqueued(wl, "unknown_here")] == [(Status.PENDING, 0)]


@pytest.mark.parametrize(
    "ending", [ValueError("retried"), Snooze(30), Fail("no use")], ids=["a retry", "a snooze", "a failure"]
)
def test_follow_ups_are_dropped_when_the_attempt_ends_otherwise(timed: Windlass, ending: Exception) -> None:
    @timed.job(backoff=30)
    def first() -> None:
        second.enqueue()
        raise ending

    @timed.job
    def second() -> None: ...

    first.enqueue()
    drain(timed, raising=False)
    assert enqueued(timed, second) == []


def test_follow_ups_of_the_attempt_that_completes_are_stored_once(timed: Windlass, windlass_clock: ManualClock) -> None:
    attempts = iter([ValueError("not yet"), None])

    @timed.job(backoff=30)
    def first() -> None:
        second.enqueue()
        if error := next(attempts):
            raise error

    @timed.job
    def second() -> None: ...

    first.enqueue()
    drain(timed, raising=False)
    windlass_clock.advance(30)
    drain(timed)
    assert len(enqueued(timed, second)) == 1


def test_follow_ups_are_dropped_when_the_job_is_cancelled(wl: Windlass) -> None:
    began = threading.Event()

    @wl.job
    async def first() -> None:
        await second.aenqueue()
        began.set()
        await asyncio.Event().wait()

    @wl.job
    def second() -> None: ...

    with working(wl):
        job = first.enqueue()
        assert began.wait(15)
        wl.cancel(job.id)
        assert ended(wl, job).status is Status.CANCELLED
    assert enqueued(wl, second) == []


def test_a_detached_enqueue_is_stored_at_once_whatever_becomes_of_the_handler(wl: Windlass) -> None:
    seen: list[Job | None] = []

    @wl.job(max_attempts=1)
    def first() -> None:
        seen.append(wl.get(second.using(detached=True).enqueue().id))
        wl.enqueue_many([second.request()], detached=True)
        raise ValueError("all the same")

    @wl.job
    def second() -> None: ...

    first.enqueue()
    drain(wl, raising=False)
    assert seen[0] is not None
    assert [job.status for job in enqueued(wl, second)] == [Status.COMPLETED] * 2


def test_an_enqueue_after_the_handler_has_ended_is_direct(wl: Windlass) -> None:
    let_go = threading.Event()
    threads: list[threading.Thread] = []

    @wl.job
    def first() -> None:
        context = contextvars.copy_context()

        def later() -> None:
            let_go.wait(15)
            context.run(second.enqueue)

        threads.append(threading.Thread(target=later))
        threads[0].start()

    @wl.job
    def second() -> None: ...

    with working(wl):
        assert ended(wl, first.enqueue()).status is Status.COMPLETED
        assert enqueued(wl, second) == []
        let_go.set()
        threads[0].join(15)
        (job,) = enqueued(wl, second)
        assert ended(wl, job).status is Status.COMPLETED


def test_an_enqueue_on_another_app_is_no_follow_up(wl: Windlass, tmp_path: object) -> None:
    other = Windlass(f"sqlite:///{tmp_path}/other.db", synchronous="NORMAL")

    @wl.job(max_attempts=1)
    def first() -> None:
        other.enqueue("elsewhere")
        raise ValueError

    first.enqueue()
    drain(wl, raising=False)
    assert len(enqueued(other, "elsewhere")) == 1
    other.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_waiting_inside_a_handler_for_its_own_follow_up_is_an_error(wl: Windlass, kind: str) -> None:
    @wl.job(max_attempts=1)
    def first() -> None:
        wl.result(second.enqueue().id)

    @wl.job(max_attempts=1, type="afirst")
    async def afirst() -> None:
        await wl.aresult((await second.aenqueue()).id)

    @wl.job
    def second() -> None: ...

    job = (first if kind == "sync" else afirst).enqueue()
    drain(wl, raising=False)
    error = now(wl, job).error or ""
    assert error.startswith(WaitsForItself.__name__)
    assert "detached=True" in error


def test_waiting_inside_a_handler_for_a_detached_job_works(wl: Windlass) -> None:
    @wl.job
    async def first() -> str:
        job = await second.using(detached=True).aenqueue()
        return str(await wl.aresult(job.id))

    @wl.job
    def second() -> str:
        return "from the other one"

    with working(wl, concurrency=2):
        assert wl.result(first.enqueue().id) == "from the other one"


def test_a_child_hands_its_follow_ups_to_the_worker(in_children: Windlass) -> None:
    with working(in_children, concurrency=1):
        follow_up = in_children.result(process_jobs.hand_on.enqueue().id)
        assert isinstance(in_children.result(follow_up), int)


def test_a_follow_up_with_a_held_key_is_the_job_that_holds_it(wl: Windlass) -> None:
    @wl.job
    def first() -> None:
        second.using(dedupe="one").enqueue(n=1)
        second.using(dedupe="one").enqueue(n=2)

    @wl.job
    def second(n: int) -> None: ...

    first.enqueue()
    drain(wl)
    assert [job.payload for job in enqueued(wl, second)] == [{"n": 1}]


def test_a_follow_up_that_cannot_be_stored_fails_its_handlers_job_and_no_other(wl: Windlass) -> None:
    @wl.job(max_attempts=1)
    def first() -> None:
        broken = msgspec.structs.replace(second.request(), priority=2**70)  # no database has such a number
        wl.enqueue_many([broken])

    @wl.job
    def second() -> None: ...

    jobs = [first.enqueue(), second.enqueue()]
    with working(wl):
        eventually(lambda: all(now(wl, job).status.is_final for job in jobs))
    assert [now(wl, job).status for job in jobs] == [Status.FAILED, Status.COMPLETED]
    assert "its outcome could not be stored" in (now(wl, jobs[0]).error or "")


def test_a_tick_runs_the_follow_ups_of_a_transaction_that_commits_while_it_looks(
    wl: Windlass, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its look is older than the commit, and there is nothing left to settle that would make it look again."""
    looked, told = threading.Event(), threading.Event()

    @wl.job
    def first(ctx: Context) -> None:
        assert looked.wait(15)
        with ctx.transaction():
            second.enqueue()

    @wl.job
    def second() -> None: ...

    due, looks = wl.store.due, count(1)

    def slow(wanted: Wanted) -> Due:
        found = due(wanted)
        if next(looks) > 1:  # after the first, a tick looks again in any case
            looked.set()
            assert told.wait(15)
        return found

    wl.on("job_completed", lambda event: told.set())
    first.enqueue()
    monkeypatch.setattr(wl.store, "due", slow)
    assert wl.tick().completed == 2
