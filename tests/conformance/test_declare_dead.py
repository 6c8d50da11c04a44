"""Dead workers: their jobs are returned, and only the job that caused the crash is charged an attempt."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.helpers import (
    enlist,
    ids,
    place_of,
    put,
    put_and_take,
    put_many,
    settle_one,
    suspicion_of,
    take,
)
from treadle.errors import WorkerLost
from treadle.job import ClaimedJob, Status, Suspicion
from treadle.outcome import COMPLETED
from treadle.stores.shared import liveness, verbs
from treadle.stores.shared.liveness import MOST_RETURNED


def test_the_job_of_a_worker_that_was_declared_dead_is_returned_and_its_attempt_counts(store):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")

    assert 1 == store.declare_dead("w1", "the process died")

    job = store.get(claimed.id)
    assert (Status.PENDING, 1, "the process died") == (job.status, job.attempts, job.error)
    assert claimed.id == take(store)[0].id


def test_a_crash_in_the_last_attempt_fails_the_job(store):
    """The job neither loops nor disappears."""
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1", max_attempts=1)

    store.declare_dead("w1", "the process died")

    job = store.get(claimed.id)
    assert (Status.FAILED, 1, "the process died") == (job.status, job.attempts, job.error)
    assert ["failed"] == [attempt.outcome for attempt in store.attempts(claimed.id)]


def test_a_job_that_kills_every_worker_ends_after_its_last_attempt(store):
    job = put(store, max_attempts=3)
    for i in range(3):
        worker = enlist(store, f"w{i}")
        take(store, worker=worker)
        store.declare_dead(worker, f"crash {i}")

    assert (Status.FAILED, 3) == place_of(store, job.id)
    assert ["crash 0", "crash 1", "crash 2"] == [attempt.error for attempt in store.attempts(job.id)]


def test_a_worker_that_beats_again_is_not_declared_dead(store):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")
    seen = store.beat("w1").workers["w1"]
    store.beat("w1")

    assert 0 == store.declare_dead("w1", "stood still", beats=seen)

    assert Status.PROCESSING == store.get(claimed.id).status
    assert settle_one(store, claimed, COMPLETED)


def test_a_worker_whose_beat_count_stands_still_is_declared_dead(store):
    enlist(store, "w1")
    put_and_take(store, worker="w1")
    seen = store.beat("w1").workers["w1"]

    assert 1 == store.declare_dead("w1", "stood still", beats=seen)
    assert [] == store.workers()


def test_only_jobs_that_had_started_are_charged_for_a_crash(store):
    enlist(store, "w1")
    put_many(store, 3)
    running, *queued = take(store, worker="w1")

    assert 3 == store.declare_dead("w1", "the process died", started={running.number})

    assert [(Status.PENDING, 0)] * 2 == [place_of(store, id) for id in ids(queued)]
    assert (Status.PENDING, 1) == place_of(store, running.id)
    assert [1, 0, 0] == [len(store.attempts(id)) for id in ids([running, *queued])]


def test_no_job_is_charged_if_none_had_started(store):
    enlist(store, "w1")
    put_many(store, 2)
    claimed = take(store, worker="w1")

    store.declare_dead("w1", "the process died", started=())

    assert [(Status.PENDING, 0)] * 2 == [place_of(store, id) for id in ids(claimed)]
    assert [Suspicion.NONE] * 2 == [c.suspicion for c in take(store)]


def test_a_job_that_ran_alone_is_charged_for_the_crash(store):
    enlist(store, "w1")
    put_and_take(store, worker="w1")
    put(store)
    take(store, worker="w1")
    running = min(store.beat("w1").leases)

    store.declare_dead("w1", "the process died", started={running})

    by_number = {c.attempt: c.suspicion for c in take(store)}
    assert {2: Suspicion.GUILTY, 1: Suspicion.NONE} == by_number


def test_jobs_that_ran_at_the_same_time_are_suspects_and_not_charged(store):
    enlist(store, "w1")
    put_many(store, 2)
    claimed = take(store, worker="w1")

    store.declare_dead("w1", "the process died")

    assert [(Status.PENDING, 0)] * 2 == [place_of(store, id) for id in ids(claimed)]
    assert [Suspicion.SUSPECTED] * 2 == [c.suspicion for c in take(store)]
    assert all("runs again, alone" in store.attempts(id)[0].error for id in ids(claimed))


def test_a_suspect_that_crashes_alone_is_charged_for_both_crashes(store):
    enlist(store, "w1")
    put_many(store, 2, max_attempts=9)
    guilty, innocent = take(store, worker="w1")
    store.declare_dead("w1", "crash")
    enlist(store, "w2")
    take(store, 1, worker="w2")

    store.declare_dead("w2", "crash again")

    assert (Status.PENDING, 2) == place_of(store, guilty.id)
    assert (Status.PENDING, 0) == place_of(store, innocent.id)


def test_a_suspect_with_two_attempts_fails_at_its_second_crash(store):
    enlist(store, "w1")
    put_many(store, 2, max_attempts=2)
    guilty, innocent = take(store, worker="w1")
    store.declare_dead("w1", "crash")
    enlist(store, "w2")
    take(store, 1, worker="w2")

    store.declare_dead("w2", "crash again")

    assert (Status.FAILED, 2) == place_of(store, guilty.id)
    settle_one(store, take(store)[0], COMPLETED)
    assert (Status.COMPLETED, 1) == place_of(store, innocent.id)


def test_suspects_that_crash_together_again_are_both_charged(store):
    """Otherwise, two jobs that always run at the same time would loop forever."""
    put_many(store, 2, max_attempts=2)
    for worker in ("w1", "w2"):
        enlist(store, worker)
        claimed = take(store, worker=worker)
        store.declare_dead(worker, "crash")

    assert [(Status.FAILED, 2)] * 2 == [place_of(store, id) for id in ids(claimed)]


def test_no_job_is_suspected_if_the_worker_was_killed_from_outside(store):
    """A machine that was switched off says nothing about the jobs: each only lost an attempt."""
    enlist(store, "w1")
    put_many(store, 2)
    claimed = take(store, worker="w1")

    store.declare_dead("w1", "killed", outside=True)

    assert [(Status.PENDING, 1)] * 2 == [place_of(store, id) for id in ids(claimed)]
    assert [Suspicion.NONE] * 2 == [c.suspicion for c in take(store)]


def test_a_manual_retry_clears_the_suspicion(store):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1", max_attempts=1)
    store.declare_dead("w1", "crash")

    store.retry(claimed.id)

    assert Suspicion.NONE == suspicion_of(store)


def test_a_cancelled_job_of_a_dead_worker_is_cancelled(store):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")
    store.cancel(claimed.id)

    store.declare_dead("w1", "the process died")

    assert Status.CANCELLED == store.get(claimed.id).status


def test_a_worker_is_declared_dead_once_and_cannot_come_back(store):
    enlist(store, "w1")
    put_and_take(store, worker="w1")
    store.declare_dead("w1", "the process died")

    assert 0 == store.declare_dead("w1", "again")
    with pytest.raises(WorkerLost):
        take(store, worker="w1")


def test_declaring_one_worker_dead_does_not_affect_the_others(store):
    enlist(store, "w1")
    enlist(store, "w2")
    theirs = put_and_take(store, worker="w2")

    assert 0 == store.declare_dead("w1", "the process died")

    assert ["w2"] == ids(store.workers())
    assert settle_one(store, theirs, COMPLETED)


def test_a_worker_that_is_gone_can_be_declared_dead_again_for_leases_left_in_its_name(store, by_hand):
    enlist(store, "w1")
    claimed = put_and_take(store, worker="w1")
    by_hand("DELETE FROM treadle_workers")

    assert 1 == store.declare_dead("w1", "gone")
    assert Status.PENDING == store.get(claimed.id).status


@pytest.mark.parametrize("how", ["declare_dead", "rescue"])
def test_very_many_leases_are_returned_in_several_transactions(store, monkeypatch, how):
    """The last ones are not alone: many ran when their worker died."""
    enlist(store)
    put_many(store, MOST_RETURNED + 1)
    while take(store, 100, "w1"):
        pass
    sizes: list[int] = []
    settle_held = liveness.settle_held

    def counted(tx: Any, ended: Any) -> Any:
        sizes.append(len(ended))
        return settle_held(tx, ended)

    monkeypatch.setattr(liveness, "settle_held", counted)
    if how == "rescue":
        assert MOST_RETURNED + 1 == store.rescue(silent_for=-1)
    else:
        assert MOST_RETURNED + 1 == store.declare_dead("w1", "crash")
    assert [MOST_RETURNED, 1] == sizes
    again = take(store, 2 * MOST_RETURNED)
    assert {Suspicion.SUSPECTED} == {c.suspicion for c in again}
    assert MOST_RETURNED + 1 == len(again)


@pytest.fixture
def in_between(store: Any, monkeypatch: Any) -> Any:
    """Let something happen between the transactions that return leases, two at a time."""
    if not hasattr(store, "move"):
        pytest.skip("looks into treadle's own stores")
    for module in (liveness, verbs):
        monkeypatch.setattr(module, "MOST_RETURNED", 2)
    move, calls = store.move, itertools.count()

    def let(happen: Callable[[], object]) -> None:
        def wrapped(*args: Any, **options: Any) -> Any:
            if next(calls) == 1:
                monkeypatch.setattr(store, "move", move)
                happen()
            return move(*args, **options)

        monkeypatch.setattr(store, "move", wrapped)

    return let


def die() -> None:
    raise KeyboardInterrupt


def leases_of(store: Any, worker: str, n: int) -> list[ClaimedJob]:
    enlist(store, worker)
    put_many(store, n, max_attempts=1)
    return take(store, worker=worker)


@pytest.mark.parametrize("how", ["rescue", "declare_dead", "kill -9"])
@pytest.mark.parametrize("n", [3, 7])
def test_what_had_not_started_is_not_charged_by_who_returns_the_rest_first(store, open_store, in_between, how, n):
    other, claimed = open_store(), leases_of(store, "w1", n)
    by_another = {"rescue": other.rescue, "declare_dead": lambda: other.declare_dead("w1", "stood still")}
    in_between(by_another.get(how, die))

    with contextlib.suppress(KeyboardInterrupt):
        store.declare_dead("w1", "the process died", started=())
    other.rescue()

    assert [(Status.PENDING, 0)] * n == [place_of(store, c.id) for c in claimed]
    assert [Suspicion.NONE] * n == [c.suspicion for c in take(store)]


@pytest.mark.parametrize("how", ["declare_dead", "rescue"])
def test_a_job_that_ran_with_others_is_suspected_by_who_returns_it_after_them(store, open_store, in_between, how):
    other, claimed = open_store(), leases_of(store, "w1", 3)
    in_between(other.rescue)

    store.rescue(silent_for=-1) if how == "rescue" else store.declare_dead("w1", "the process died")

    assert [(Status.PENDING, 0)] * 3 == [place_of(store, c.id) for c in claimed]
    assert [Suspicion.SUSPECTED] * 3 == [c.suspicion for c in take(store)]


def test_the_job_that_ran_alone_is_charged_before_what_had_not_started_is_returned(store, in_between):
    *unstarted, running = leases_of(store, "w1", 5)
    in_between(die)

    with pytest.raises(KeyboardInterrupt):
        store.declare_dead("w1", "the process died", started={running.number})

    assert (Status.FAILED, 1) == place_of(store, running.id)
    assert 3 == store.rescue()
    assert [(Status.PENDING, 0)] * 4 == [place_of(store, c.id) for c in unstarted]


def test_a_worker_that_is_declared_dead_claims_nothing_while_its_leases_are_returned(store, in_between):
    leases_of(store, "w1", 3)
    raised: list[object] = []

    def claim_and_beat() -> None:
        for verb in (lambda: take(store, worker="w1"), lambda: store.beat("w1")):
            with pytest.raises(WorkerLost) as error:
                verb()
            raised.append(error.type)

    in_between(claim_and_beat)
    assert 3 == store.declare_dead("w1", "the process died", started=())
    assert [WorkerLost] * 2 == raised
