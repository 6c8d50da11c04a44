"""Schedules: each moment exactly once, what was missed, what overlaps, pauses, declarations, backfills."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conformance.conftest import OpenStore
from tests.conformance.helpers import (
    FAILED,
    HOUR,
    MINUTE,
    FakeClock,
    by_hand,
    enlist,
    everything,
    put_and_take,
    select,
    settle_one,
    snapshot,
    take,
)
from treadle import clock as time
from treadle.clock import SECOND
from treadle.errors import ScheduleDeclared, ScheduleNotFound
from treadle.filters import Filter
from treadle.job import Job, Status
from treadle.outcome import COMPLETED
from treadle.schedule import NewSchedule, Rule, moments_between
from treadle.stores.base import TypePolicy
from treadle.stores.shared import manage

EVERY_MINUTE = Rule(cron="* * * * *")


def new(name: str = "digest", rule: Rule = EVERY_MINUTE, **options: Any) -> NewSchedule:
    return NewSchedule(**{"name": name, "type": "noop", "rule": rule, **options})


def fire(store: Any) -> int:
    """Fire all that is due. How many jobs were stored."""
    jobs, more = 0, True
    while more:
        some, more = store.fire(50)
        jobs += some
    return jobs


def moments(store: Any) -> list[int]:
    return sorted(time.from_datetime(job.fired_at) for job in everything(store) if job.fired_at)


def by_moment(store: Any) -> list[Job]:
    return sorted(everything(store), key=lambda job: job.fired_at)


def test_a_schedule_fires_a_job_at_its_next_moment(store: Any, clock: FakeClock) -> None:
    store.publish([TypePolicy(type="noop", queue="mail", priority=3, max_attempts=7)])
    row = store.put_schedule(new(payload='{"a":1}', subject="s", tenant="acme"))
    assert row.next_at == clock.now + MINUTE
    assert fire(store) == 0
    assert store.next_fire().in_seconds == 60

    clock.advance(60)

    assert store.next_fire().now
    assert fire(store) == 1
    [job] = everything(store)
    assert (job.type, job.queue, job.priority, job.max_attempts) == ("noop", "mail", 3, 7)
    assert (job.payload, job.tenant, job.subject) == ({"a": 1}, "acme", "s")
    assert (job.schedule, time.from_datetime(job.fired_at)) == ("digest", clock.now)
    assert store.schedule("acme", "digest").last_job == job.id
    [claimed] = take(store)
    assert claimed.fired_at == clock.now


def test_its_own_options_win_over_those_of_its_type(store: Any, clock: FakeClock) -> None:
    store.publish([TypePolicy(type="noop", queue="mail", priority=3, max_attempts=7)])
    store.put_schedule(new(queue="other", priority=-1, max_attempts=2))
    clock.advance(60)
    fire(store)

    [job] = everything(store)
    assert (job.queue, job.priority, job.max_attempts) == ("other", -1, 2)


def test_a_moment_is_fired_once_however_often_one_looks(open_store: OpenStore, clock: FakeClock) -> None:
    ours, theirs = open_store(), open_store()
    for n in range(20):
        ours.put_schedule(new(f"s{n}", Rule(every=SECOND), missed="all", overlap="allow"))

    with ThreadPoolExecutor(4) as threads:
        for _ in range(10):
            clock.advance(1)
            list(threads.map(fire, [ours, theirs, ours, theirs]))

    fired = Counter((job.schedule, job.fired_at) for job in everything(ours))
    assert len(fired) == 200
    assert set(fired.values()) == {1}


def test_a_moment_is_fired_once_though_its_schedule_was_made_again(store: Any, clock: FakeClock) -> None:
    store.put_schedule(new())
    clock.advance(60)
    fire(store)
    store.delete_schedule("", "digest")
    clock.step_back(1)
    store.put_schedule(new())
    clock.advance(1)

    fire(store)

    assert len(everything(store)) == 1


@pytest.mark.parametrize(("missed", "count"), [("skip", 0), ("once", 1), ("all", 2)])
def test_what_becomes_of_moments_in_an_outage(store: Any, clock: FakeClock, missed: str, count: int) -> None:
    half_hourly = Rule(every=30 * 60 * SECOND)
    row = store.put_schedule(new(rule=half_hourly, missed=missed, overlap="allow"))
    clock.now = row.next_at + 3 * HOUR + 20 * MINUTE

    assert fire(store) == count

    newest = [row.next_at + 3 * HOUR, row.next_at + 3 * HOUR - 30 * MINUTE]
    assert moments(store) == sorted(newest[:count])
    after = store.schedule("", "digest")
    assert after.next_at == row.next_at + 3 * HOUR + 30 * MINUTE
    assert f"missed={missed!r}" in after.skipped_why
    assert fire(store) == 0


def test_all_missed_moments_of_an_hour_are_fired_but_no_more_than_a_hundred(store: Any, clock: FakeClock) -> None:
    store.put_schedule(new(rule=Rule(every=SECOND), missed="all", overlap="allow"))
    clock.advance(3 * 3600)

    assert fire(store) == 100
    assert moments(store) == [clock.now - n * SECOND for n in range(99, -1, -1)]


def test_skip_stores_nothing_while_a_job_has_not_ended(store: Any, clock: FakeClock) -> None:
    store.put_schedule(new(overlap="skip"))
    for _ in range(3):
        clock.advance(60)
        fire(store)
    [job] = everything(store)
    row = store.schedule("", "digest")
    assert row.skipped_at == clock.now
    assert row.skipped_why == f"job {job.id} has not ended (overlap='skip')"

    [claimed] = take(store)
    clock.advance(60)
    assert fire(store) == 0  # it runs
    settle_one(store, claimed, COMPLETED)
    clock.advance(60)
    assert fire(store) == 1


def test_a_job_that_is_retried_by_hand_has_not_ended(store: Any, clock: FakeClock) -> None:
    store.put_schedule(new(overlap="skip"))
    clock.advance(60)
    fire(store)
    [claimed] = take(store)
    settle_one(store, claimed, FAILED)
    clock.advance(60)
    assert fire(store) == 1
    [second] = take(store)
    settle_one(store, second, COMPLETED)
    store.retry(claimed.id)

    clock.advance(60)

    assert fire(store) == 0


@pytest.mark.only("postgresql")
def test_a_job_that_is_retried_during_a_fire_has_not_ended(open_store: OpenStore, clock: FakeClock) -> None:
    ours, theirs = open_store(), open_store()
    ours.put_schedule(new(overlap="skip"))
    clock.advance(60)
    fire(ours)
    [first] = take(ours)
    settle_one(ours, first, FAILED)
    clock.advance(60)

    def retry_and_fire(tx: Any) -> None:
        manage.retry(tx, first.id)
        assert fire(theirs) == 1  # it does not see the retry, which is not committed

    ours.database.write("other", retry_and_fire)
    second = next(claimed for claimed in take(ours) if claimed.id != first.id)
    settle_one(ours, second, COMPLETED)
    clock.advance(60)
    assert fire(ours) == 0


def test_queue_one_lets_one_wait_while_one_runs(store: Any, clock: FakeClock) -> None:
    store.put_schedule(new(overlap="queue_one"))
    clock.advance(60)
    fire(store)
    take(store)
    for _ in range(3):
        clock.advance(60)
        fire(store)

    assert [job.status for job in by_moment(store)] == [Status.PROCESSING, Status.PENDING]


def test_cancel_running_cancels_what_has_not_ended(store: Any, clock: FakeClock) -> None:
    enlist(store, "w1")
    store.put_schedule(new(overlap="cancel_running"))
    clock.advance(60)
    fire(store)
    [running] = take(store, worker="w1")
    clock.advance(60)
    fire(store)
    assert store.cancelled("w1") == [running.number]
    clock.advance(60)
    fire(store)

    statuses = [job.status for job in by_moment(store)]
    assert statuses == [Status.PROCESSING, Status.CANCELLED, Status.PENDING]


def test_allow_stores_every_moment(store: Any, clock: FakeClock) -> None:
    store.put_schedule(new(overlap="allow"))
    for _ in range(3):
        clock.advance(60)
        fire(store)

    assert len(everything(store)) == 3


@pytest.mark.parametrize(("overlap", "count"), [("allow", 3), ("skip", 1), ("queue_one", 1), ("cancel_running", 1)])
def test_an_outage_with_all_missed_moments_follows_the_overlap(
    store: Any, clock: FakeClock, overlap: str, count: int
) -> None:
    """Of three hours, the moments of the last hour count."""
    row = store.put_schedule(new(rule=Rule(every=30 * 60 * SECOND), missed="all", overlap=overlap))
    clock.now = row.next_at + 3 * HOUR

    assert fire(store) == count


def test_moments_during_a_pause_are_skipped_and_not_missed(store: Any, clock: FakeClock) -> None:
    store.put_schedule(new(missed="all", overlap="allow"))
    paused = store.pause_schedule("", "digest", "ann", "invoice")
    assert (paused.next_at, paused.paused_by, paused.paused_reason) == (None, "ann", "invoice")
    clock.advance(600)
    assert fire(store) == 0

    resumed = store.resume_schedule("", "digest")

    assert resumed.next_at == clock.now + MINUTE
    assert resumed.paused_at is None
    assert fire(store) == 0
    clock.advance(60)
    assert fire(store) == 1


def test_a_pause_can_have_an_end(store: Any, clock: FakeClock) -> None:
    store.put_schedule(new(missed="all", overlap="allow"))
    until = clock.now + 5 * MINUTE + SECOND
    store.pause_schedule("", "digest", "ann", "", until)
    clock.advance(330)
    assert fire(store) == 0
    clock.advance(30)

    assert fire(store) == 1
    assert store.schedule("", "digest").paused_at is None


def test_what_is_not_there_cannot_be_changed(store: Any) -> None:
    store.open()
    before = snapshot(store)
    for change in (
        lambda: store.pause_schedule("", "nope", "", ""),
        lambda: store.resume_schedule("", "nope"),
        lambda: store.delete_schedule("", "nope"),
        lambda: store.fire_now("", "nope"),
        lambda: store.backfill("", "nope", [1]),
    ):
        with pytest.raises(ScheduleNotFound, match="'nope'"):
            change()
    assert store.schedule("", "nope") is None
    assert snapshot(store) == before


def test_schedules_are_listed_by_tenant_and_name(store: Any) -> None:
    for tenant, name in (("b", "x"), ("", "z"), ("a", "y"), ("", "a")):
        store.put_schedule(new(name, tenant=tenant))

    names = [(row.tenant, row.name) for row in store.schedules()]
    assert names == [("", "a"), ("", "z"), ("a", "y"), ("b", "x")]
    assert [(row.tenant, row.name) for row in store.schedules(after=("", "z"), limit=1)] == [("a", "y")]
    assert [row.name for row in store.schedules("")] == ["a", "z"]
    assert [row.name for row in store.schedules("", after=("", "a"))] == ["z"]
    assert store.schedules("nobody") == []


def test_putting_the_same_again_changes_nothing(store: Any, clock: FakeClock) -> None:
    first = store.put_schedule(new())
    clock.advance(90)  # a moment is due, and is still fired

    assert store.put_schedule(new()) == first

    changed = store.put_schedule(new(payload='{"a":2}'))
    assert (changed.revision, changed.next_at) == (2, first.next_at)
    moved = store.put_schedule(new(rule=Rule(every=HOUR)))
    assert moved.next_at > clock.now


# What code declares


def test_workers_declare_schedules_and_a_pause_survives_a_deployment(store: Any, clock: FakeClock) -> None:
    store.declare_schedules([new("a"), new("b")])
    store.pause_schedule("", "a", "ann", "why")
    clock.advance(300)

    store.declare_schedules([new("a", Rule(every=HOUR))])

    a, b = store.schedules()
    assert (a.every, a.paused_by, a.next_at, a.source) == (HOUR, "ann", None, "code")
    assert b.name == "b"
    assert fire(store) == 1


def test_of_several_declarations_the_newest_of_a_live_worker_wins(store: Any, clock: FakeClock) -> None:
    old, newer = new(payload='{"v":1}'), new(payload='{"v":2}')

    def start(worker: str, declared: NewSchedule) -> None:
        enlist(store, worker, schedules={declared.name: declared.spec})
        store.declare_schedules([declared])
        clock.advance(1)

    def version() -> int:
        return json.loads(store.schedule("", "digest").payload)["v"]

    start("w1", old)
    start("w2", newer)
    assert version() == 2
    start("w3", old)  # a worker of the old code restarts during the deployment
    assert version() == 2
    store.declare_dead("w2", "rolled back")
    store.declare_schedules([old])
    assert version() == 1
    start("w4", newer)
    assert version() == 2
    store.put_schedule(new(payload='{"v":3}'))  # somebody changes it at run time
    store.declare_schedules([newer])
    assert version() == 3


def test_a_declared_schedule_can_be_deleted_when_no_live_worker_declares_it(store: Any) -> None:
    declared = new()
    enlist(store, "w1", schedules={declared.name: declared.spec})
    store.declare_schedules([declared])
    with pytest.raises(ScheduleDeclared, match="pause it"):
        store.delete_schedule("", "digest")
    store.declare_dead("w1", "stopped")

    assert store.delete_schedule("", "digest").name == "digest"
    assert store.schedules() == []


def test_workers_that_start_at_once_declare_a_schedule_once(open_store: OpenStore) -> None:
    handles = [open_store() for _ in range(2)]
    declared = [new(f"s{n}") for n in range(10)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda store: [store.declare_schedules(declared) for _ in range(5)], handles))

    assert [row.revision for row in handles[0].schedules()] == [1] * 10


# By hand


def test_run_now_stores_a_job_whatever_pause_or_job_there_is(store: Any, clock: FakeClock) -> None:
    row = store.put_schedule(new())
    store.pause_schedule("", "digest", "ann", "")

    first, second = store.fire_now("", "digest"), store.fire_now("", "digest")

    assert first.id != second.id
    assert (first.schedule, time.from_datetime(first.fired_at)) == ("digest", clock.now)
    assert store.resume_schedule("", "digest").next_at == row.next_at
    clock.advance(60)
    assert fire(store) == 0  # they overlap


def test_a_backfill_stores_each_moment_once(store: Any, clock: FakeClock) -> None:
    store.put_schedule(new())
    clock.advance(60)
    fire(store)
    wanted = moments_between(EVERY_MINUTE, clock.now - 9 * MINUTE, clock.now + 1, 100)

    assert store.backfill("", "digest", wanted) == 9
    assert store.backfill("", "digest", wanted) == 0

    assert moments(store) == wanted
    found = store.jobs(Filter(schedules=("digest",)), 100)
    assert len(found) == 10
    for claimed in take(store):
        settle_one(store, claimed, COMPLETED)
    store.prune([Status.COMPLETED], -SECOND, 100)
    assert everything(store) == []


def test_jobs_are_found_by_their_schedule(store: Any, clock: FakeClock) -> None:
    store.put_schedule(new("a", tenant="acme"))
    store.put_schedule(new("b"))
    put_and_take(store)
    clock.advance(60)
    fire(store)

    [a] = store.jobs(Filter(schedules=("a",)), 10)
    assert a.tenant == "acme"
    assert store.jobs(Filter(schedules=("a",), tenants=("other",)), 10).jobs == []
    [b] = store.jobs(Filter(schedules=("b",), statuses=("pending",)), 10)
    assert (b.schedule, b.tenant) == ("b", "")


@pytest.mark.needs("joins_transactions")
def test_a_schedule_put_in_the_users_transaction_exists_if_that_commits(store: Any, users: Any) -> None:
    users.execute("INSERT INTO orders VALUES (1)")
    store.put_schedule(new("kept", tenant="acme"), users)
    assert store.schedules() == []
    users.commit()
    assert [row.name for row in store.schedules()] == ["kept"]

    users.execute("INSERT INTO orders VALUES (2)")
    store.put_schedule(new("kept", Rule(every=HOUR), tenant="acme"), users)
    store.put_schedule(new("dropped"), users)
    users.rollback()

    [row] = store.schedules()
    assert (row.name, row.every) == ("kept", 0)


@pytest.mark.only("postgresql")
def test_a_schedule_that_a_transaction_changes_is_left_to_it(store: Any, clock: FakeClock) -> None:
    for name in ("a", "b"):
        store.put_schedule(new(name))
    clock.advance(60)
    with by_hand(store) as users:
        store.put_schedule(new("a", payload='{"a":1}'), users)
        assert fire(store) == 1
        users.commit()

    assert fire(store) == 1
    assert {job.schedule: job.payload for job in everything(store)} == {"a": {"a": 1}, "b": {}}


BROKEN = (
    "zone = 'Nowhere'",
    "cron = '* *'",
    "cron = '', every = -5",
    "payload = '['",
    "payload = '[1]'",
    "every = 9000000000000000000, anchor = 9000000000000000000",
)


@pytest.mark.by_hand
@pytest.mark.parametrize("broken", BROKEN)
def test_a_schedule_that_was_broken_by_hand_costs_that_one_only(
    store: Any, clock: FakeClock, by_hand: Any, broken: str
) -> None:
    for name in ("a", "b"):
        store.put_schedule(new(name))
    by_hand(f"UPDATE treadle_schedules SET {broken} WHERE name = 'a'")
    clock.advance(60)

    assert fire(store) == 1

    row = store.schedule("", "a")
    assert row.next_at is None
    assert "cannot be read" in row.skipped_why
    assert store.put_schedule(new("a", Rule(every=HOUR))).next_at > clock.now


def test_a_store_without_schedules_has_nothing_to_fire(store: Any) -> None:
    store.open()

    assert store.next_fire().next_at is None
    assert store.fire(50) == (0, False)
    assert select(store, "SELECT count(*) FROM treadle.fired") == [(0,)]
