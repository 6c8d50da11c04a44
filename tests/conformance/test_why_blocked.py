"""Why a job is blocked or sleeps: what it waits for, and the way out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.helpers import (
    COMPLETED,
    FAILED,
    HOUR,
    FakeClock,
    enlist,
    finish,
    ids,
    new_job,
    put,
    put_and_take,
    put_many,
    settle_one,
    take,
)
from treadle import clock as times
from treadle.diagnosis import explain, for_tenant
from treadle.filters import parse
from treadle.job import Job, Status
from treadle.management import all_problems
from treadle.outcome import Outcome, OutcomeKind
from treadle.reasons import Reason, ReasonCode
from treadle.steps import NewStep
from treadle.waits import NewSignal, NewWait


def why(store: Any, id: str) -> list[Reason]:
    return list(explain(store.job_facts(id)).reasons)


def only(store: Any, id: str) -> Reason:
    (reason,) = why(store, id)
    return reason


def suspend(store: Any, *waits: NewWait, **options: Any) -> str:
    claimed = put_and_take(store, type="waiter", **options)
    assert settle_one(store, claimed, Outcome(OutcomeKind.SUSPENDED, charged=0, waits=waits))
    return claimed.id


def child_of(store: Any, *parents: Job, **options: Any) -> Job:
    return put(store, "child", after=tuple(ids(parents)), **options)


def test_it_waits_for_a_parent(store: Any) -> None:
    parent = put(store, "load")
    child = child_of(store, parent)

    reason = only(store, child.id)

    assert reason.code is ReasonCode.WAITS_FOR_PARENT
    assert reason.text == f"it waits for its parent {parent.id} (load), which is queued"
    assert reason.way_out.endswith(f"treadle jobs why {parent.id}")
    assert reason.data == {"parent": parent.id, "status": "pending", "parents": 1, "ended": 0}


def test_what_a_parent_does_is_told(store: Any) -> None:
    parents = [put(store, "load", delay=HOUR), child_of(store, put(store, "root", delay=HOUR)), put(store, "run")]
    take(store)

    texts = [only(store, child_of(store, parent).id).text for parent in parents]

    assert "which is scheduled, until " in texts[0]
    assert texts[1].endswith("which is blocked itself")
    assert texts[2].endswith("which is running")


def test_it_waits_for_some_of_its_parents(store: Any) -> None:
    parents = put_many(store, 5, "load")
    child = child_of(store, *parents)
    claimed = take(store, limit=2)
    for one in claimed:
        settle_one(store, one, COMPLETED)

    reason = only(store, child.id)

    assert f"2 of 5 have ended; the first that has not is {parents[2].id} (load)" in reason.text
    assert reason.data["ended"] == 2


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_failed_parent_holds_it(store: Any, how: str) -> None:
    parent, other = put(store, "load"), put(store, "load", delay=HOUR)
    child = child_of(store, parent, other)
    if how == "failed":
        settle_one(store, take(store)[0], FAILED)
    else:
        store.cancel(parent.id)

    held, waits = why(store, child.id)

    assert held.code is ReasonCode.PARENT_FAILED
    assert held.text.startswith(f"it is held: its parent {parent.id} (load) {'was ' * (how == 'cancelled')}{how}")
    assert f"treadle jobs retry {parent.id}" in held.way_out
    assert f"treadle jobs cancel {child.id}" in held.way_out
    assert waits.code is ReasonCode.WAITS_FOR_PARENT
    store.retry(parent.id)
    assert [reason.code for reason in why(store, child.id)] == [ReasonCode.WAITS_FOR_PARENT]


@pytest.mark.by_hand
def test_a_parent_is_gone(store: Any, by_hand: Any) -> None:
    parent = put(store)
    child = child_of(store, parent)
    by_hand("DELETE FROM treadle_ready WHERE id = ?", parent.id)
    by_hand("DELETE FROM treadle_jobs WHERE id = ?", parent.id)

    reason = only(store, child.id)

    assert reason.code is ReasonCode.PARENT_GONE
    assert f"treadle jobs clone {child.id}" in reason.way_out


def test_it_waits_for_a_signal(store: Any, clock: FakeClock) -> None:
    id = suspend(store, NewWait("signal", "approve: it's", step="ok", timeout=HOUR), tenant="acme")
    clock.advance(60)

    reason = only(store, id)

    assert reason.code is ReasonCode.WAITS_FOR_SIGNAL
    assert '"approve: it\'s"' in reason.text
    assert "for 1m, in step 'ok'; it waits until " in reason.text
    assert reason.way_out == """to send it: treadle jobs signal 'approve: it'"'"'s' [JSON] --tenant acme"""
    assert (reason.data["signal"], reason.data["step"]) == ("approve: it's", "ok")
    assert times.from_datetime(reason.data["until"]) - times.from_datetime(reason.data["since"]) == HOUR
    assert for_tenant(explain(store.job_facts(id)), store.get(id)).reasons == (reason,)


def test_it_waits_for_its_subjobs(store: Any) -> None:
    jobs = put_many(store, 3, "page", delay=HOUR)
    id = suspend(store, *(NewWait("subjob", job.id, step="pages") for job in jobs))
    store.cancel(jobs[0].id)

    reason = only(store, id)

    assert reason.code is ReasonCode.WAITS_FOR_SUBJOBS
    assert "it waits in step 'pages' for its subjobs: 1 of 3 have ended" in reason.text
    assert (reason.data["subjob"], reason.data["step"]) == (jobs[1].id, "pages")


def test_what_it_waited_for_has_happened(store: Any) -> None:
    """A claim lets it go: without a worker it stays blocked."""
    waiting = [suspend(store, NewWait("signal", "go", step="ok")), child_of(store, finish(store, COMPLETED)).id]
    store.signal(NewSignal("go"))

    assert [only(store, id).code for id in waiting] == [ReasonCode.NO_WORKER] * 2
    enlist(store, types=("waiter", "child"))
    assert [only(store, id).code for id in waiting] == [ReasonCode.NEXT_LOOK] * 2
    while store.match():
        pass
    assert [store.get(id).status for id in waiting] == [Status.PENDING] * 2


def test_it_sleeps_in_a_step(store: Any, clock: FakeClock) -> None:
    enlist(store, types=("noop",))
    claimed = put_and_take(store)
    nap = NewStep("cool down", "sleep")
    settle_one(store, claimed, Outcome(OutcomeKind.SUSPENDED, charged=0, delay=HOUR, steps=(nap,)))
    clock.advance(10)

    reason = only(store, claimed.id)

    assert reason.code is ReasonCode.SLEEPING
    assert "it sleeps in step 'cool down' until " in reason.text
    assert reason.text.endswith("for 59m 50s more")
    store.run_now(claimed.id)
    assert only(store, claimed.id).code is ReasonCode.NEXT_LOOK
    settle_one(store, take(store)[0], Outcome(OutcomeKind.RETRIED, delay=HOUR, error="ValueError: no"))
    assert only(store, claimed.id).code is ReasonCode.NOT_DUE


def test_the_cost_does_not_grow_with_the_parents(store: Any) -> None:
    parents = [new_job("load", delay=HOUR) for _ in range(10_000)]
    for start in range(0, len(parents), 1_000):
        store.insert(parents[start : start + 1_000])
    child = put(store, "child", after=tuple(job.id for job in parents))
    store.cancel(parents[7_000].id)

    held, waits = why(store, child.id)

    assert held.data == {"parent": parents[7_000].id, "status": "cancelled", "parents": 10_000, "failed": 1}
    assert waits.data["ended"] == 1
    assert "1 of 10,000 have ended" in waits.text
    assert len(str(held) + str(waits)) < 1_000


def test_jobs_held_by_failed_parents_are_a_problem(store: Any) -> None:
    parent = finish(store, FAILED)
    assert store.held().jobs == 0
    children = [child_of(store, parent) for _ in range(3)]
    child_of(store, parent, if_failed="run")

    (problem,) = [one for one in all_problems(store, store.queue_stats(), [], []) if one.code == "held"]

    assert problem.text == "3 jobs wait for parents that failed or were cancelled"
    assert problem.next.endswith(f"treadle jobs retry {parent.id}")
    assert parse(problem.filter).ids == (parent.id,)
    store.retry(parent.id)
    assert store.held().jobs == 0
    assert {store.get(job.id).status for job in children} == {Status.BLOCKED}


def long_waits(store: Any) -> list[tuple[str, str]]:
    found = all_problems(store, store.queue_stats(), [], [])
    return [(one.text, one.next) for one in found if one.code == "waits_long"]


def test_jobs_that_wait_very_long_are_a_problem(store: Any, clock: FakeClock) -> None:
    first = suspend(store, NewWait("signal", "approve:7", "ask"), tenant="acme")
    suspend(store, NewWait("signal", "approve:8", "ask"))
    suspend(store, NewWait("signal", "approve:9", "ask", timeout=900 * HOUR))  # it ends by itself
    clock.advance(7 * 24 * 3600)
    assert long_waits(store) == []
    clock.advance(60)
    subjob = put(store, "sub", delay=900 * HOUR)
    by_subjob = suspend(store, NewWait("subjob", subjob.id, "pages"))

    ((text, next),) = long_waits(store)

    assert text.startswith(f"2 jobs wait for a signal, for more than a week; the first is {first}: it waits for the ")
    assert "signal 'approve:7', since " in text
    assert next == "to send it: treadle jobs signal approve:7 [JSON] --tenant acme"
    clock.advance(8 * 24 * 3600)
    _, (text, next) = long_waits(store)
    assert text.startswith(f"1 job waits for subjobs, for more than a week; the first is {by_subjob}: it waits in step")
    assert next.endswith(f"treadle jobs why {subjob.id}")


@pytest.mark.by_hand
def test_jobs_that_wait_for_a_job_that_is_gone_are_a_problem(store: Any, by_hand: Any) -> None:
    parent = put(store, delay=HOUR)
    child = child_of(store, parent)
    assert long_waits(store) == []
    for table in ("jobs", "ready"):
        by_hand(f"DELETE FROM treadle_{table} WHERE id = ?", parent.id)

    ((text, next),) = long_waits(store)

    assert text.startswith(
        f"1 job waits for jobs that were deleted by hand; the first is {child.id}: it waits for job "
    )
    assert f"treadle jobs clone {child.id}" in next
