"""Jobs that wait for others or for a signal are blocked until what they wait for has happened."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.conformance.helpers import (
    COMPLETED,
    FAILED,
    HOUR,
    FakeClock,
    finish,
    ids,
    new_job,
    place_of,
    put,
    put_and_take,
    put_many,
    settle_one,
    take,
)
from tests.conformance.keyed_jobs import STARTED, THROTTLE, call, keyed
from treadle.codec import as_json
from treadle.errors import BadOption, LeaseLost, StoreBusy, WrongStatus
from treadle.job import ClaimedJob, Job, Status
from treadle.outcome import Outcome, OutcomeKind
from treadle.steps import NewStep
from treadle.stores.shared.matching import MOST_MATCHED
from treadle.waits import NewSignal, NewWait

SLEEPING = Outcome(OutcomeKind.SUSPENDED, charged=0, delay=HOUR, steps=(NewStep("nap", "sleep", position=1),))


def waiting_for(signal: str, timeout: int | None = None) -> Outcome:
    wait = NewWait("signal", signal, step="ok", timeout=timeout)
    return Outcome(OutcomeKind.SUSPENDED, charged=0, waits=(wait,))


def run(store: Any, id: str, outcome: Outcome = COMPLETED) -> None:
    (claimed,) = [c for c in take(store) if c.id == id]
    assert settle_one(store, claimed, outcome)


def child_of(store: Any, *parents: Job, **options: Any) -> Job:
    return put(store, "child", after=tuple(ids(parents)), **options)


def status(store: Any, job: Job) -> Status:
    return store.get(job.id).status


# Parents


def test_a_child_starts_when_its_parent_has_completed(store: Any) -> None:
    parent = put(store)
    child = child_of(store, parent)
    assert child.status is Status.BLOCKED
    assert child == store.get(child.id)
    run(store, parent.id)
    assert ids(take(store)) == [child.id]
    assert ids(store.parents(child.id)) == [parent.id]


def test_a_child_waits_for_all_of_its_parents(store: Any) -> None:
    parents = put_many(store, 3)
    child = child_of(store, *parents)
    claimed = take(store)
    for one in claimed[:2]:
        assert settle_one(store, one, COMPLETED)
        assert take(store) == []
    assert settle_one(store, claimed[2], COMPLETED)
    assert ids(take(store)) == [child.id]


def test_a_child_of_jobs_that_have_completed_starts_at_once(store: Any) -> None:
    child = child_of(store, finish(store, COMPLETED), finish(store, COMPLETED))
    assert ids(take(store)) == [child.id]


def test_a_child_also_waits_for_its_own_time(store: Any, clock: FakeClock) -> None:
    child = child_of(store, finish(store, COMPLETED), delay=HOUR)
    assert take(store) == []
    assert status(store, child) is Status.PENDING
    clock.advance(3600)
    assert ids(take(store)) == [child.id]


@pytest.mark.parametrize(
    ("if_failed", "expected"), [("hold", Status.BLOCKED), ("cancel", Status.CANCELLED), ("run", Status.PROCESSING)]
)
def test_what_becomes_of_a_child_if_its_parent_fails(store: Any, if_failed: str, expected: Status) -> None:
    parent = put(store)
    child = child_of(store, parent, if_failed=if_failed)
    late = put(store, "other")
    run(store, parent.id, FAILED)
    take(store)
    assert status(store, child) is expected
    late = child_of(store, store.get(parent.id), if_failed=if_failed)
    take(store)
    assert status(store, late) is expected


def test_a_cancelled_parent_counts_as_failed(store: Any) -> None:
    parent = put(store)
    child = child_of(store, parent, if_failed="cancel")
    grandchild = child_of(store, child, if_failed="cancel")
    store.cancel(parent.id)
    while store.match():
        pass
    assert [status(store, job) for job in (child, grandchild)] == [Status.CANCELLED] * 2
    assert store.get(child.id).error == f"its parent {parent.id} cancelled"


def test_a_child_that_has_lost_its_throttled_key_is_cancelled_when_its_parent_fails(
    store: Any, clock: FakeClock
) -> None:
    parent = put(store)
    child = call(store, THROTTLE, after=(parent.id,), if_failed="cancel")
    clock.advance(3601)
    other = call(store, THROTTLE)

    claimed = {one.id: one for one in take(store)}
    assert settle_one(store, claimed[parent.id], FAILED)
    assert take(store) == []

    assert status(store, child) is Status.CANCELLED
    assert status(store, other) is Status.PROCESSING


def test_a_retried_parent_lets_its_children_go_on(store: Any) -> None:
    parent = finish(store, FAILED)
    child = child_of(store, parent)
    assert take(store) == []
    store.retry(parent.id)
    run(store, parent.id)
    assert ids(take(store)) == [child.id]


def test_many_children_of_one_parent_go_in_several_transactions(store: Any) -> None:
    parent = put(store)
    children = store.insert([new_job("child", after=(parent.id,)) for _ in range(1_203)])
    run(store, parent.id)
    found: list[ClaimedJob] = []
    while some := take(store, 500):
        found += some
    assert sorted(ids(found)) == sorted(ids(children))


def test_held_children_of_a_failed_parent_are_no_work(store: Any) -> None:
    parent = put(store)
    store.insert([new_job("child", after=(parent.id,)) for _ in range(600)])
    run(store, parent.id, FAILED)
    assert take(store) == []
    assert store.match() == 0


def test_jobs_of_one_call_can_wait_for_each_other(store: Any) -> None:
    first = new_job()
    second = new_job(after=(first.id,))
    third = new_job(after=(first.id, second.id))
    store.insert([third, second, first])
    for job in (first, second, third):
        run(store, job.id)


def test_bad_parents_are_refused(store: Any) -> None:
    first, second = new_job(), new_job()
    cycle = [new_job(after=(first.id,)), first]
    with pytest.raises(BadOption, match="no such job"):
        put(store, after=(second.id,))
    with pytest.raises(BadOption, match="no such job"):
        put(store, after=("nonsense",))
    with pytest.raises(BadOption, match="another tenant"):
        put(store, after=(put(store, tenant="acme").id,))
    store.insert(cycle)
    a = new_job(after=(second.id,))
    with pytest.raises(BadOption, match="leave one parent out"):
        store.insert([a, msgspec.structs.replace(second, after=(a.id,))])


def test_a_job_that_others_wait_for_is_not_deleted(store: Any, clock: FakeClock) -> None:
    parent = finish(store, COMPLETED)
    child = child_of(store, parent)
    with pytest.raises(WrongStatus, match=child.id):
        store.delete(parent.id)
    clock.advance(3600)
    assert store.prune([Status.COMPLETED], 0, 100) == 0
    run(store, child.id)
    clock.advance(3600)
    assert store.prune([Status.COMPLETED], 0, 100) == 2


def test_a_blocked_job_can_be_cancelled_deleted_and_moved(store: Any) -> None:
    parent = put(store)
    first, second, third = (child_of(store, parent) for _ in range(3))
    assert store.cancel(first.id).status is Status.CANCELLED
    store.delete(second.id)
    with pytest.raises(WrongStatus, match="waits for"):
        store.run_now(third.id)
    store.complete([third.id])
    assert status(store, third) is Status.COMPLETED
    run(store, parent.id)
    assert take(store) == []


def test_a_parent_that_was_answered_by_another_job_is_that_job(store: Any) -> None:
    holder = put(store, dedupe="k")
    parent = new_job(dedupe="k")
    child = new_job("child", after=(parent.id,))
    store.insert([parent, child])
    assert ids(store.parents(child.id)) == [holder.id]


# Suspended handlers


def test_a_sleeping_job_waits_for_time(store: Any, clock: FakeClock) -> None:
    claimed = put_and_take(store)
    assert settle_one(store, claimed, SLEEPING)
    assert place_of(store, claimed.id) == (Status.PENDING, 0)
    assert take(store) == []
    clock.advance(3600)
    (again,) = take(store)
    assert (again.attempt, again.failures, again.forgiven) == (1, 1, 0)
    assert [(step.name, step.kind) for step in store.steps(claimed.id)] == [("nap", "sleep")]


@pytest.mark.parametrize("before", [True, False])
def test_a_signal_lets_its_waiters_go_on(store: Any, before: bool) -> None:
    if before:
        store.signal(NewSignal("go", '{"by": "ann"}'))
    claimed = put_and_take(store)
    assert settle_one(store, claimed, waiting_for("go"))
    assert status(store, store.get(claimed.id)) is Status.BLOCKED
    if not before:
        assert take(store) == []
        store.signal(NewSignal("go", '{"by": "ann"}', tenant="acme"))
        assert take(store) == []
        store.signal(NewSignal("go", '{"by": "ann"}'))
    assert ids(take(store)) == [claimed.id]
    (step,) = store.steps(claimed.id)
    assert (step.name, step.kind, step.value) == ("ok", "signal", {"by": "ann"})


def test_the_first_signal_of_a_name_counts(store: Any) -> None:
    assert store.signal(NewSignal("go", "1", by="ann")).value == 1
    second = store.signal(NewSignal("go", "2"))
    assert (second.value, second.by) == (1, "ann")
    assert store.get_signal("go") == second
    assert store.get_signal("go", "acme") is None


def test_a_wait_ends_after_its_time(store: Any, clock: FakeClock) -> None:
    claimed = put_and_take(store)
    assert settle_one(store, claimed, waiting_for("go", HOUR))
    found = take(store)
    assert found == []
    assert found.due.in_seconds == pytest.approx(3600)
    clock.advance(3600)
    assert ids(take(store)) == [claimed.id]
    assert [step.kind for step in store.steps(claimed.id)] == ["timeout"]
    store.signal(NewSignal("go"))
    assert store.match() == 1
    assert [step.kind for step in store.steps(claimed.id)] == ["timeout"]


def test_a_job_waits_for_a_subjob_with_the_key_that_it_held_until_it_started(store: Any) -> None:
    parent = store.insert([keyed(STARTED)])[0]
    (claimed,) = take(store)
    subjob = keyed(STARTED)
    step, wait = NewStep("all", "gather", as_json([subjob.id])), NewWait("subjob", subjob.id, "all")
    assert settle_one(
        store, claimed, Outcome(OutcomeKind.SUSPENDED, charged=0, steps=(step,), waits=(wait,), follow_ups=(subjob,))
    )
    assert [subjob.id] == [wait.what for wait in store.waits(parent.id)]
    run(store, subjob.id)
    assert [parent.id] == ids(take(store))


def test_a_job_waits_for_its_subjobs(store: Any) -> None:
    claimed = put_and_take(store)
    subjobs = [new_job("sub", origin=claimed.id) for _ in range(3)]
    waits = tuple(NewWait("subjob", job.id, step="pages") for job in subjobs)
    suspended = Outcome(OutcomeKind.SUSPENDED, charged=0, follow_ups=tuple(subjobs), waits=waits)
    assert settle_one(store, claimed, suspended)
    first, *rest = take(store)
    assert {first.type, *(c.type for c in rest)} == {"sub"}
    assert settle_one(store, first, FAILED)
    for one in rest:
        assert take(store) == []
        assert settle_one(store, one, COMPLETED)
    assert ids(take(store)) == [claimed.id]
    assert [store.get(job.id).origin for job in subjobs] == [claimed.id] * 3


# Steps


def test_steps_are_stored_under_the_lease(store: Any) -> None:
    claimed = put_and_take(store)
    assert store.save_steps([(claimed, NewStep("a", value="1")), (claimed, NewStep("b", value="[2]"))]) == [None, None]
    assert [(s.name, s.value, s.attempt) for s in store.steps(claimed.id)] == [("a", 1, 1), ("b", [2], 1)]
    assert settle_one(store, claimed, FAILED)
    (error,) = store.save_steps([(claimed, NewStep("c"))])
    assert isinstance(error, LeaseLost)
    assert len(store.steps(claimed.id)) == 2


def test_of_steps_that_share_a_commit_those_without_a_lease_are_not_stored(store: Any) -> None:
    held, lost, stale = put_and_take(store), put_and_take(store), put_and_take(store)
    assert settle_one(store, lost, FAILED)
    stale = msgspec.structs.replace(stale, token=stale.token ^ 1)  # another claim has this number, after a failover
    steps = [NewStep("a", position=1), NewStep("b", position=2)]
    errors = store.save_steps([(one, step) for step in steps for one in (held, lost, stale)])
    assert [type(error) for error in errors] == [type(None), LeaseLost, LeaseLost] * 2
    assert [[s.name for s in store.steps(one.id)] for one in (held, lost, stale)] == [["a", "b"], [], []]


def test_jobs_and_signals_are_stored_with_their_step(store: Any) -> None:
    claimed, other = put_and_take(store), put_and_take(store)
    step = NewStep("a", follow_ups=(new_job("sub", origin=claimed.id),), signals=(NewSignal("go", "1"),))
    assert store.save_steps([(claimed, step), (other, NewStep("b"))]) == [None, None]
    assert store.save_steps([(claimed, step)]) == [None]  # the reply of the first one was lost
    assert [one.type for one in take(store)] == ["sub"]
    assert store.get_signal("go").value == 1
    assert settle_one(store, claimed, FAILED)
    late = NewStep("b", follow_ups=(new_job("late"),), signals=(NewSignal("late"),))
    bad = NewStep("c", follow_ups=(new_job("child", after=("nonsense",)),))
    errors = store.save_steps([(claimed, late), (other, NewStep("d")), (other, bad)])
    assert [type(error) for error in errors] == [LeaseLost, type(None), BadOption]
    assert (store.get_signal("late"), take(store)) == (None, [])
    assert [step.name for step in store.steps(other.id)] == ["b", "d"]


def test_how_jobs_have_ended(store: Any) -> None:
    done, failed = finish(store, Outcome(OutcomeKind.COMPLETED, result="[1]")), finish(store, FAILED)
    waiting = put(store)
    found = store.ends([waiting.id, done.id, failed.id, new_job().id])
    assert {id: (one.status, one.result) for id, one in found.items()} == {
        waiting.id: (None, None),
        done.id: ("completed", [1]),
        failed.id: ("failed", None),
    }


@pytest.mark.only("postgresql")
def test_a_settle_whose_signal_is_locked_is_set_aside_and_the_rest_goes_on(store: Any, users: Any) -> None:
    first, second = put_and_take(store), put_and_take(store)
    store.signal(NewSignal("go", "1"), users)
    sends = Outcome(OutcomeKind.COMPLETED, signals=(NewSignal("go", "2"),))
    settled = store.settle([(first, sends), (second, COMPLETED)])
    assert ids(one for one, _ in settled.written) == [second.id]
    assert ids(one for one, _ in settled.set_aside) == [first.id]
    users.commit()
    assert settle_one(store, first, sends)
    assert store.get_signal("go").value == 1


@pytest.mark.only("postgresql")
def test_a_step_whose_signal_is_locked_does_not_hold_up_others(store: Any, users: Any) -> None:
    first, second = put_and_take(store), put_and_take(store)
    store.signal(NewSignal("go", "1"), users)
    sends = first, NewStep("a", signals=(NewSignal("go", "2"),))
    locked, stored = store.save_steps([sends, (second, NewStep("a"))])
    assert (type(locked), stored) == (StoreBusy, None)
    users.commit()
    assert store.save_steps([sends]) == [None]


def test_a_follow_up_whose_parent_is_gone_waits(store: Any) -> None:
    parent, claimed = finish(store, COMPLETED), put_and_take(store)
    child = new_job("child", after=(parent.id,))
    store.delete(parent.id)
    assert settle_one(store, claimed, Outcome(OutcomeKind.COMPLETED, follow_ups=(child,)))
    assert take(store) == []
    assert store.get(child.id).status is Status.BLOCKED


def test_attempts_before_the_last_new_step_no_longer_count(store: Any) -> None:
    claimed = put_and_take(store, max_attempts=2)
    for _ in range(4):
        assert store.save_steps([(claimed, NewStep(f"step {claimed.attempt}"))]) == [None]
        assert settle_one(store, claimed, Outcome(OutcomeKind.RETRIED, error="no"))
        (claimed,) = take(store)
        assert claimed.failures == 2
    assert claimed.attempt == 5


def test_a_retry_keeps_the_steps_of_a_job_that_has_not_completed(store: Any) -> None:
    for outcome, kept in ((FAILED, 2), (COMPLETED, 0)):
        claimed = put_and_take(store)
        store.save_steps([(claimed, NewStep("a", position=1)), (claimed, NewStep("b", position=2))])
        assert settle_one(store, claimed, outcome)
        store.retry(claimed.id)
        (again,) = take(store)
        assert len(store.steps(again.id)) == kept
        assert again.forgiven == (0 if kept else None)
        assert settle_one(store, again, FAILED)
    claimed = put_and_take(store)
    store.save_steps([(claimed, NewStep(name, position=n)) for n, name in enumerate("abc", 1)])
    assert settle_one(store, claimed, COMPLETED)
    with pytest.raises(BadOption, match="'a', 'b', 'c'"):
        store.retry(claimed.id, "d")
    store.retry(claimed.id, "b")
    assert [step.name for step in store.steps(claimed.id)] == ["a"]


def test_a_match_says_that_there_is_more_until_all_children_of_one_call_may_run(store: Any) -> None:
    """None of them was looked at when it was stored: their parent is new, too."""
    parent = new_job()
    store.insert([parent, *(new_job("child", after=(parent.id,)) for _ in range(MOST_MATCHED + 1))])
    run(store, parent.id)
    while store.match():
        pass
    assert len(take(store, 2 * MOST_MATCHED)) == MOST_MATCHED + 1


def test_the_end_of_many_parents_is_noticed_in_several_transactions(store: Any) -> None:
    parents = put_many(store, MOST_MATCHED + 1)
    assert store.settle([(claimed, COMPLETED) for claimed in take(store, 2 * MOST_MATCHED)]).lost == []
    child = child_of(store, *parents)
    store.match()
    assert sum(wait.met for wait in store.waits(child.id)) == MOST_MATCHED
    assert ids(take(store)) == [child.id]
