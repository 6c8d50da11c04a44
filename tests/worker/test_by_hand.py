"""Leases by hand: claim, settle, reconcile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests import stores
from tests.eventually import eventually
from tests.worker.helpers import ended, is_processing, now, place, working
from treadle import (
    Context,
    Dedupe,
    Fail,
    Job,
    JobNotFound,
    KeyHeld,
    LeaseLost,
    Status,
    Treadle,
    WrongStatus,
    can_retry,
    make_dedupe_key,
)
from treadle.errors import BadOption
from treadle.testing import ManualClock, drain


def test_a_claimed_job_is_processing_until_it_is_completed_with_a_result(timed: Treadle) -> None:
    job = timed.enqueue("resize", {"width": 3})
    (lease,) = timed.claim()
    assert (lease.job.id, lease.job.payload, place(timed, job)) == (job.id, {"width": 3}, (Status.PROCESSING, 1))
    assert timed.claim() == []
    lease.complete({"height": 4})
    assert (*place(timed, job), now(timed, job).result) == (Status.COMPLETED, 1, {"height": 4})


def test_a_claim_takes_at_most_its_limit_and_only_its_types(timed: Treadle) -> None:
    for n in range(3):
        timed.enqueue("a", {"n": n})
    timed.enqueue("b", {"n": 9})
    timed.enqueue("c", {"n": 10}, queue="slow")
    assert [lease.job.payload["n"] for lease in timed.claim(2, types=["a"])] == [0, 1]
    assert [lease.job.payload["n"] for lease in timed.claim(9, queues=["slow"])] == [10]
    assert [lease.job.payload["n"] for lease in timed.claim(9)] == [2, 9]


def test_a_lease_that_fails_waits_as_long_as_it_says(timed: Treadle, treadle_clock: ManualClock) -> None:
    job = timed.enqueue("resize", max_attempts=3)
    timed.claim()[0].fail("no memory", retry_in=90)
    assert (*place(timed, job), now(timed, job).error) == (Status.PENDING, 1, "no memory")
    assert now(timed, job).run_at == treadle_clock.now() + timedelta(seconds=90)
    treadle_clock.advance(89)
    assert timed.claim() == []
    treadle_clock.advance(1)
    timed.claim()[0].fail(ValueError("no memory at all"), retry_in=0)
    timed.claim()[0].fail(ValueError("spent"), retry_in=0)
    assert (*place(timed, job), now(timed, job).error) == (Status.FAILED, 3, "ValueError: spent")


def test_a_lease_that_fails_without_a_delay_waits_as_its_types_backoff_says(
    timed: Treadle, treadle_clock: ManualClock
) -> None:
    @timed.job(backoff=[7])
    def resize() -> None: ...

    job = resize.enqueue()
    timed.claim()[0].fail("not today")
    assert now(timed, job).run_at == treadle_clock.now() + timedelta(seconds=7)


def test_fail_with_fail_ends_the_job(timed: Treadle) -> None:
    job = timed.enqueue("resize")
    timed.claim()[0].fail(Fail("no such picture"), retry_in=5)
    assert (*place(timed, job), now(timed, job).error) == (Status.FAILED, 1, "no such picture")


def test_a_snoozed_lease_costs_no_attempt(timed: Treadle, treadle_clock: ManualClock) -> None:
    job = timed.enqueue("poll", max_attempts=1)
    for _ in range(2):
        timed.claim()[0].snooze(20, at_most=2)
        assert place(timed, job) == (Status.PENDING, 0)
        treadle_clock.advance(20)
    timed.claim()[0].snooze(20, at_most=2)
    assert (now(timed, job).status, now(timed, job).error) == (Status.FAILED, "still not ready after 2 snoozes")


def test_a_released_lease_is_as_it_was(timed: Treadle) -> None:
    job = timed.enqueue("resize")
    timed.claim()[0].release()
    assert (place(timed, job), now(timed, job).run_at) == ((Status.PENDING, 0), job.run_at)


def test_a_lease_lives_by_its_own_deadline(timed: Treadle, treadle_clock: ManualClock) -> None:
    job = timed.enqueue("resize")
    (lease,) = timed.claim(lease=60)
    assert lease.deadline == pytest.approx(treadle_clock.now().timestamp() + 60)
    treadle_clock.advance(59)
    assert timed.rescue() == 0
    treadle_clock.advance(2)
    assert timed.rescue() == 1
    assert place(timed, job) == (Status.PENDING, 1)
    (other,) = timed.claim()
    assert other.number > lease.number
    with pytest.raises(LeaseLost):
        lease.complete("too late")
    with pytest.raises(LeaseLost):
        lease.extend(60)
    other.complete("in time")
    assert now(timed, job).result == "in time"


def test_an_extended_lease_lives_longer(timed: Treadle, treadle_clock: ManualClock) -> None:
    job = timed.enqueue("resize")
    (lease,) = timed.claim(lease=60)
    treadle_clock.advance(50)
    lease.extend(300)
    assert lease.deadline == pytest.approx(treadle_clock.now().timestamp() + 300)
    treadle_clock.advance(290)
    assert timed.rescue() == 0
    lease.complete()
    assert place(timed, job) == (Status.COMPLETED, 1)


@pytest.mark.parametrize("settle", ["complete", "release", "extend", "fail", "snooze"])
def test_a_lease_can_be_settled_once(timed: Treadle, settle: str) -> None:
    timed.enqueue("resize")
    (lease,) = timed.claim()
    lease.fail(Fail("first"))
    arguments: tuple[Any, ...] = {"extend": (5,), "fail": ("x",), "snooze": (5,)}.get(settle, ())
    with pytest.raises(LeaseLost):
        getattr(lease, settle)(*arguments)


def test_a_worker_does_not_touch_jobs_claimed_by_hand(td: Treadle) -> None:
    @td.job
    def resize() -> None: ...

    by_hand, (lease,) = resize.enqueue(), td.claim()
    with working(td):
        assert ended(td, resize.enqueue()).status is Status.COMPLETED
    assert place(td, by_hand) == (Status.PROCESSING, 1)
    lease.complete()


@pytest.mark.parametrize("wrong", [{"n": 0}, {"lease": 0}])
def test_a_claim_with_wrong_options_is_refused(td: Treadle, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        td.claim(**wrong)


def test_aclaim_does_the_same(timed: Treadle) -> None:
    timed.enqueue("resize")
    assert [lease.job.type for lease in asyncio.run(timed.aclaim(5, types=["resize"], lease=10))] == ["resize"]


# Reconcile


def test_reconcile_completes_jobs_whose_work_exists_whatever_their_status(timed: Treadle) -> None:
    seen: list[int] = []

    @timed.job(max_attempts=1)
    def subtitle(video: int) -> None:
        if video == 0:
            raise Fail("no audio")

    @subtitle.already_done
    def exists(jobs: Sequence[Job]) -> list[Job]:
        seen.extend(job.payload["video"] for job in jobs)
        return [job for job in jobs if job.payload["video"] != 9]

    failed = subtitle.enqueue(video=0)
    subtitle.job_type.already_done = None  # the worker reconciles too
    drain(timed, raising=False)
    subtitle.already_done(exists)
    waiting, processing, undone = (subtitle.enqueue(video=n) for n in (1, 2, 9))
    timed.claim(2)[0].release()
    assert timed.reconcile() == 3
    assert sorted(seen) == [0, 1, 2, 9]
    assert [now(timed, job).status for job in (failed, waiting, processing, undone)] == [Status.COMPLETED] * 3 + [
        Status.PENDING
    ]
    assert timed.reconcile() == 0


def test_reconcile_reads_more_than_one_page(timed: Treadle) -> None:
    pages: list[int] = []

    @timed.job
    def subtitle(video: int) -> None: ...

    @subtitle.already_done
    def exists(jobs: Sequence[Job]) -> Sequence[Job]:
        pages.append(len(jobs))
        return jobs

    timed.enqueue_many([subtitle.request(video=n) for n in range(250)])
    assert timed.reconcile() == 250
    assert (len(pages) > 1, sum(pages)) == (True, 250)


def test_a_handler_whose_job_was_reconciled_meanwhile_changes_nothing(td: Treadle) -> None:
    @td.job
    async def subtitle(ctx: Context) -> str:
        await asyncio.to_thread(eventually, lambda: now(td, job).status is Status.COMPLETED)
        return "mine"

    job = subtitle.enqueue()
    with working(td):
        eventually(is_processing(td, job))
        subtitle.already_done(lambda jobs: jobs)
        td.reconcile()  # unless the worker's own chore was faster
        assert now(td, job).status is Status.COMPLETED
    assert (*place(td, job), now(td, job).result) == (Status.COMPLETED, 1, None)


def test_an_already_done_that_raises_does_not_stop_the_worker(td: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    @td.job
    def work() -> None: ...

    @work.already_done
    def broken(jobs: Sequence[Job]) -> Sequence[Job]:
        raise ZeroDivisionError

    job = work.using(delay=3600).enqueue()
    with working(td):
        eventually(lambda: "ZeroDivisionError" in caplog.text)
        td.run_now(job.id)
        assert ended(td, job).status is Status.COMPLETED


# Managing


def test_actions_on_a_missing_job_say_so(td: Treadle) -> None:
    assert td.get("nonsense") is None
    for verb in (td.retry, td.cancel, td.delete, lambda id: td.result(id, timeout=1)):
        with pytest.raises(JobNotFound, match="nonsense"):
            verb("nonsense")


def test_actions_are_refused_in_the_wrong_status_and_say_what_would_help(timed: Treadle) -> None:
    job = timed.enqueue("work")
    with pytest.raises(WrongStatus, match="it is pending"):
        timed.retry(job.id)
    (lease,) = timed.claim()
    with pytest.raises(WrongStatus, match="cancel it first"):
        timed.delete(job.id)
    lease.complete()
    with pytest.raises(WrongStatus, match="it is completed"):
        timed.cancel(job.id)
    assert timed.delete(job.id).status is Status.COMPLETED
    assert timed.get(job.id) is None


def test_a_retry_takes_its_key_again_or_names_the_job_that_holds_it(timed: Treadle) -> None:
    first = timed.enqueue("work", dedupe="k")
    timed.claim()[0].fail(Fail("no"))
    second = timed.enqueue("work", dedupe="k")
    assert second.id != first.id
    with pytest.raises(KeyHeld, match=second.id):
        timed.retry(first.id)
    timed.cancel(second.id)
    assert timed.retry(first.id).attempts == 0


def test_a_lease_ends_though_the_rule_of_the_job_that_takes_its_key_is_broken(timed: Treadle, treadle_url: str) -> None:
    latest = Dedupe("k", mode="replace")
    first = timed.enqueue("index", dedupe=latest)
    (lease,) = timed.claim()
    second = timed.enqueue("index", dedupe=latest)
    stores.rows(treadle_url, f"UPDATE treadle_jobs SET dedupe_rule = 'replace' WHERE id = '{second.id}'")
    lease.complete()
    assert now(timed, first).status is Status.COMPLETED
    assert [lease.job.id for lease in timed.claim()] == [second.id]


def test_counts_and_lists_agree_with_what_happened(timed: Treadle) -> None:
    for n in range(5):
        timed.enqueue("a", {"n": n}, tenant="acme" if n % 2 else "", subject=f"video-{n}")
    timed.claim()[0].complete()
    timed.claim()[0].fail(Fail("x"))
    assert timed.counts() == [
        {"status": "completed", "count": 1},
        {"status": "failed", "count": 1},
        {"status": "pending", "count": 3},
    ]
    assert {"status": "pending", "tenant": "acme", "count": 1} in timed.counts(by=("status", "tenant"))
    page = timed.jobs(status="pending", limit=2)
    assert ([job.payload["n"] for job in page], page.next is not None, len(page)) == ([4, 3], True, 2)
    assert [job.payload["n"] for job in timed.jobs(status="pending", limit=2, cursor=page.next)] == [2]
    assert [job.payload["n"] for job in timed.jobs(subject="video-3")] == [3]
    with pytest.raises(BadOption, match="completed"):
        timed.jobs(status="done")
    with pytest.raises(BadOption, match=r"cursor=page\.next"):
        timed.jobs(limit=10_000)
    with pytest.raises(BadOption, match="tenant"):
        timed.counts(by=("colour",))


def test_prune_deletes_jobs_that_ended_long_ago(timed: Treadle, treadle_clock: ManualClock) -> None:
    old, failed = timed.enqueue("a"), timed.enqueue("a")
    timed.claim()[0].complete()
    timed.claim()[0].fail(Fail("x"))
    treadle_clock.advance(timedelta(days=8))
    fresh = timed.enqueue("a")
    timed.claim()[0].complete()
    assert timed.prune() == 1
    assert (timed.get(old.id), now(timed, failed).status, now(timed, fresh).status) == (None, "failed", "completed")
    treadle_clock.advance(1)
    assert timed.prune(older_than=0, status=["failed", "completed"]) == 2


def test_a_worker_prunes_jobs_older_than_its_retention(treadle_url: str, treadle_clock: ManualClock) -> None:
    td = Treadle(treadle_url, clock=treadle_clock, retention=timedelta(hours=1))
    job = td.enqueue("a")
    td.claim()[0].complete()
    treadle_clock.advance(3601)
    with working(td):
        eventually(lambda: td.get(job.id) is None)
    td.close()


def test_a_worker_that_keeps_all_jobs_prunes_their_old_usage(treadle_url: str, treadle_clock: ManualClock) -> None:
    td = Treadle(treadle_url, clock=treadle_clock, retention=None)
    job = td.enqueue("a")
    td.claim()[0].complete()
    treadle_clock.advance(timedelta(days=91))
    with working(td):
        eventually(lambda: stores.rows(treadle_url, "SELECT * FROM treadle_usage") == [])
    assert now(td, job).status is Status.COMPLETED
    td.close()


def test_can_retry_says_whether_a_job_may_run_once_more() -> None:
    assert can_retry("failed", 2, 5)
    assert can_retry("pending", 0, 5)
    assert can_retry("cancelled", 0)
    assert not can_retry("failed", 5, 5)
    assert not can_retry("completed", 1, 5)
    assert not can_retry("processing", 1, 5)


def test_a_dedupe_key_does_not_depend_on_the_order_of_the_payload() -> None:
    assert make_dedupe_key("sync", None, {"b": 1, "a": [2]}) == 'sync::global::{"a":[2],"b":1}'
    assert make_dedupe_key("sync", "acme", {}) == "sync::acme::{}"


def test_the_async_twins_of_a_lease_do_the_same(timed: Treadle, treadle_clock: ManualClock) -> None:
    async def main() -> None:
        (lease,) = await timed.aclaim()
        await lease.aextend(600)
        await lease.arelease()
        (lease,) = await timed.aclaim()
        await lease.asnooze(0)
        (lease,) = await timed.aclaim()
        await lease.afail("once", retry_in=0)
        (lease,) = await timed.aclaim()
        await lease.acomplete("done")
        with pytest.raises(LeaseLost):
            await lease.arelease()

    job = timed.enqueue("work")
    asyncio.run(main())
    assert (*place(timed, job), now(timed, job).result) == (Status.COMPLETED, 2, "done")


def test_a_lease_taken_by_hand_shows_no_worker_and_a_real_time(td: Treadle) -> None:
    job = td.enqueue("a")
    before = time.time()
    (lease,) = td.claim(lease=60)
    assert before + 55 < lease.deadline < time.time() + 65
    assert now(td, job).worker_id is None
    lease.complete()
