"""An enqueue inside a handler is stored with the handler's completion, or not at all."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import msgspec
import pytest

from tests.eventually import eventually
from tests.worker import process_jobs
from tests.worker.helpers import ended, now, place, working
from treadle import Context, Fail, Job, Snooze, Status, Treadle
from treadle.errors import WaitsForItself
from treadle.stores.base import ClaimRequest
from treadle.stores.rows import Claim
from treadle.testing import ManualClock, drain, enqueued


def test_a_follow_up_is_stored_when_its_handler_completes_and_not_before(td: Treadle) -> None:
    seen: list[object] = []

    @td.job
    def first() -> str:
        follow_up = second.enqueue(n=1)
        seen.append(td.get(follow_up.id))
        return follow_up.id

    @td.job
    def second(n: int) -> None: ...

    job = first.enqueue()
    drain(td)
    assert seen == [None]
    (follow_up,) = enqueued(td, second, n=1)
    assert follow_up.id == now(td, job).result
    assert follow_up.status is Status.COMPLETED


def test_follow_ups_of_every_kind_are_stored_together(td: Treadle) -> None:
    @td.job
    async def fan_out() -> None:
        tile.enqueue(n=0)  # no warning: nothing is written here
        await tile.aenqueue(n=1)
        td.enqueue_many([tile.request(n=2), tile.request(n=3)])
        await td.aenqueue_many([tile.request(n=4)])
        td.enqueue("tile", {"n": 5}, tenant="acme")
        await td.aenqueue("unknown_here", {"n": 6})
        await asyncio.to_thread(tile.enqueue, n=7)
        async with asyncio.TaskGroup() as group:
            group.create_task(tile.aenqueue(n=8))

    @td.job
    def tile(n: int) -> None: ...

    fan_out.enqueue()
    drain(td)
    assert sorted(job.payload["n"] for job in enqueued(td, tile)) == [0, 1, 2, 3, 4, 5, 7, 8]
    assert [place(td, job) for job in enqueued(td, "unknown_here")] == [(Status.PENDING, 0)]


@pytest.mark.parametrize(
    "ending", [ValueError("retried"), Snooze(30), Fail("no use")], ids=["a retry", "a snooze", "a failure"]
)
def test_follow_ups_are_dropped_when_the_attempt_ends_otherwise(timed: Treadle, ending: Exception) -> None:
    @timed.job(backoff=30)
    def first() -> None:
        second.enqueue()
        raise ending

    @timed.job
    def second() -> None: ...

    first.enqueue()
    drain(timed, raising=False)
    assert enqueued(timed, second) == []


def test_follow_ups_of_the_attempt_that_completes_are_stored_once(timed: Treadle, treadle_clock: ManualClock) -> None:
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
    treadle_clock.advance(30)
    drain(timed)
    assert len(enqueued(timed, second)) == 1


def test_follow_ups_are_dropped_when_the_job_is_cancelled(td: Treadle) -> None:
    began = threading.Event()

    @td.job
    async def first() -> None:
        await second.aenqueue()
        began.set()
        await asyncio.Event().wait()

    @td.job
    def second() -> None: ...

    with working(td):
        job = first.enqueue()
        assert began.wait(15)
        td.cancel(job.id)
        assert ended(td, job).status is Status.CANCELLED
    assert enqueued(td, second) == []


def test_a_detached_enqueue_is_stored_at_once_however_the_handler_ends(td: Treadle) -> None:
    seen: list[Job | None] = []

    @td.job(max_attempts=1)
    def first() -> None:
        seen.append(td.get(second.using(detached=True).enqueue().id))
        td.enqueue_many([second.request()], detached=True)
        raise ValueError("all the same")

    @td.job
    def second() -> None: ...

    first.enqueue()
    drain(td, raising=False)
    assert seen[0] is not None
    assert [job.status for job in enqueued(td, second)] == [Status.COMPLETED] * 2


def test_an_enqueue_after_the_handler_has_ended_is_direct(td: Treadle) -> None:
    let_go = threading.Event()
    threads: list[threading.Thread] = []

    @td.job
    def first() -> None:
        context = contextvars.copy_context()

        def later() -> None:
            let_go.wait(15)
            context.run(second.enqueue)

        threads.append(threading.Thread(target=later))
        threads[0].start()

    @td.job
    def second() -> None: ...

    with working(td):
        assert ended(td, first.enqueue()).status is Status.COMPLETED
        assert enqueued(td, second) == []
        let_go.set()
        threads[0].join(15)
        (job,) = enqueued(td, second)
        assert ended(td, job).status is Status.COMPLETED


def test_an_enqueue_on_another_app_is_not_a_follow_up(td: Treadle, tmp_path: object) -> None:
    other = Treadle(f"sqlite:///{tmp_path}/other.db", synchronous="NORMAL")

    @td.job(max_attempts=1)
    def first() -> None:
        other.enqueue("elsewhere")
        raise ValueError

    first.enqueue()
    drain(td, raising=False)
    assert len(enqueued(other, "elsewhere")) == 1
    other.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_waiting_inside_a_handler_for_its_own_follow_up_is_an_error(td: Treadle, kind: str) -> None:
    @td.job(max_attempts=1)
    def first() -> None:
        td.result(second.enqueue().id)

    @td.job(max_attempts=1, type="afirst")
    async def afirst() -> None:
        await td.aresult((await second.aenqueue()).id)

    @td.job
    def second() -> None: ...

    job = (first if kind == "sync" else afirst).enqueue()
    drain(td, raising=False)
    error = now(td, job).error or ""
    assert error.startswith(WaitsForItself.__name__)
    assert "detached=True" in error


def test_waiting_inside_a_handler_for_a_detached_job_works(td: Treadle) -> None:
    @td.job
    async def first() -> str:
        job = await second.using(detached=True).aenqueue()
        return str(await td.aresult(job.id))

    @td.job
    def second() -> str:
        return "from the other one"

    with working(td, concurrency=2):
        assert td.result(first.enqueue().id) == "from the other one"


def test_a_child_sends_its_follow_ups_to_the_worker(in_children: Treadle) -> None:
    with working(in_children, concurrency=1):
        follow_up = in_children.result(process_jobs.enqueue_follow_up.enqueue().id)
        assert isinstance(in_children.result(follow_up), int)


def test_a_follow_up_with_a_key_in_use_is_the_job_that_holds_it(td: Treadle) -> None:
    @td.job
    def first() -> None:
        second.using(dedupe="one").enqueue(n=1)
        second.using(dedupe="one").enqueue(n=2)

    @td.job
    def second(n: int) -> None: ...

    first.enqueue()
    drain(td)
    assert [job.payload for job in enqueued(td, second)] == [{"n": 1}]


def test_a_follow_up_that_cannot_be_stored_fails_its_handlers_job_and_no_other(td: Treadle) -> None:
    @td.job(max_attempts=1)
    def first() -> None:
        broken = msgspec.structs.replace(second.request(), priority=2**70)  # no database has such a number
        td.enqueue_many([broken])

    @td.job
    def second() -> None: ...

    jobs = [first.enqueue(), second.enqueue()]
    with working(td):
        eventually(lambda: all(now(td, job).status.is_final for job in jobs))
    assert [now(td, job).status for job in jobs] == [Status.FAILED, Status.COMPLETED]
    assert "its outcome could not be stored" in (now(td, jobs[0]).error or "")


def test_a_tick_runs_the_follow_ups_of_a_transaction_that_commits_while_it_looks(
    td: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its read is older than the commit, and there is nothing left to settle that would make it read again."""
    looked, notified = threading.Event(), threading.Event()

    @td.job
    def first(ctx: Context) -> None:
        assert looked.wait(15)
        with ctx.transaction():
            second.enqueue()

    @td.job
    def second() -> None: ...

    claim = td.store.claim

    def slow(worker: str, wanted: ClaimRequest) -> Claim:
        found = claim(worker, wanted)
        if not found and not looked.is_set():
            looked.set()
            assert notified.wait(15)
        return found

    td.on("job_completed", lambda event: notified.set())
    first.enqueue()
    monkeypatch.setattr(td.store, "claim", slow)
    assert td.tick().completed == 2
