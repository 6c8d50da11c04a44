"""Races of waiting: what begins to wait and what ends the wait may not see each other, and no wake-up is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.conformance.helpers import (
    COMPLETED,
    FAILED,
    HOUR,
    at_once,
    by_hand,
    ids,
    new_job,
    put,
    put_and_take,
    put_many,
    settle_one,
    take,
)
from tests.conformance.test_waiting import child_of, run, status, waiting_for
from treadle.job import ClaimedJob, Status
from treadle.outcome import Outcome, OutcomeKind
from treadle.stores.shared import matching
from treadle.waits import NewSignal

pytestmark = pytest.mark.needs("joins_transactions")


@pytest.fixture
def users(store: Any) -> Iterator[Any]:
    """A user's own connection."""
    store.open()
    connection = by_hand(store)
    yield connection
    connection.close()


@pytest.mark.only("postgresql")
def test_a_parent_settles_while_the_enqueue_of_its_child_is_open(store: Any, users: Any) -> None:
    parent = put_and_take(store)
    (child,) = store.insert([new_job("child", after=(parent.id,))], users)
    assert settle_one(store, parent, COMPLETED)
    assert take(store) == []
    users.commit()
    assert ids(take(store)) == [child.id]


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("commits_first", ["signal", "waiter"])
def test_a_signal_is_sent_in_an_open_transaction_while_its_waiter_suspends(
    store: Any, users: Any, commits_first: str
) -> None:
    claimed = put_and_take(store)
    store.signal(NewSignal("go", "1"), users)
    if commits_first == "signal":
        users.commit()
    assert settle_one(store, claimed, waiting_for("go"))
    if commits_first == "waiter":
        assert take(store) == []
        users.commit()
    assert ids(take(store)) == [claimed.id]


def test_a_signal_that_is_rolled_back_was_never_sent(store: Any, users: Any) -> None:
    store.signal(NewSignal("go", "1"), users)
    users.rollback()
    assert store.get_signal("go") is None


def test_the_last_two_parents_settle_at_once(store: Any, open_store: Any) -> None:
    other = open_store()
    for _ in range(20):
        put_many(store, 2)
        first, second = take(store)
        child = put(store, "child", after=(first.id, second.id))
        at_once(lambda a=first: settle_one(store, a, COMPLETED), lambda b=second: settle_one(other, b, COMPLETED))
        found = [c for claimed in at_once(lambda: take(store), lambda: take(other)) for c in claimed]
        found += take(store)
        assert ids(found) == [child.id]
        assert settle_one(store, found[0], COMPLETED)


def test_two_handles_match_at_once(store: Any, open_store: Any) -> None:
    other = open_store()
    parents = put_many(store, 40)
    children = store.insert([new_job("child", after=tuple(ids(parents))) for _ in range(40)])
    claimed = take(store)
    halves = claimed[::2], claimed[1::2]
    found: list[ClaimedJob] = []

    def settle_and_claim(handle: Any, half: Any) -> list[ClaimedJob]:
        mine: list[ClaimedJob] = []
        for one in half:
            assert settle_one(handle, one, COMPLETED)
            mine += take(handle)
        return mine

    for some in at_once(lambda: settle_and_claim(store, halves[0]), lambda: settle_and_claim(other, halves[1])):
        assert not isinstance(some, Exception), some
        found += some
    while some := take(store):
        found += some
    assert sorted(ids(found)) == sorted(ids(children))


@pytest.mark.parametrize("most", [1, 7, 500])
def test_more_waits_than_one_match_takes(store: Any, monkeypatch: Any, most: int) -> None:
    """Among them those of a parent that has failed, which each child takes in its own way."""
    monkeypatch.setattr(matching, "MOST_MATCHED", most)
    bad, *good = ids(put_many(store, 12))
    children = store.insert([new_job("child", after=tuple(good)) for _ in range(5)])
    odd = {how: new_job(how, after=(bad, *good), if_failed=how) for how in ("hold", "cancel", "run")}
    store.insert(list(odd.values()))
    assert not store.settle([(one, FAILED if one.id == bad else COMPLETED) for one in take(store)]).lost
    found = [one.id for _ in range(150) for one in take(store)]
    assert sorted(found) == sorted([*ids(children), odd["run"].id])
    assert status(store, odd["hold"]) == Status.BLOCKED
    assert status(store, odd["cancel"]) == Status.CANCELLED


def test_two_handles_match_signals_at_once(store: Any, open_store: Any) -> None:
    other = open_store()
    waiters = suspended(store, ["go", "on"] * 20)

    def signal_and_claim(handle: Any, name: str) -> list[ClaimedJob]:
        handle.signal(NewSignal(name, f'"{name}"'))
        return take(handle)

    found: list[ClaimedJob] = []
    for some in at_once(lambda: signal_and_claim(store, "go"), lambda: signal_and_claim(other, "on")):
        assert not isinstance(some, Exception), some
        found += some
    while some := take(store):
        found += some
    assert sorted(ids(found)) == sorted(ids(waiters))
    assert sorted(step.value for c in waiters for step in store.steps(c.id)) == ["go"] * 20 + ["on"] * 20


def suspended(store: Any, signals: Sequence[str]) -> list[ClaimedJob]:
    """Jobs that wait for these, each for one, and of which no match has anything left to look at."""
    put_many(store, len(signals))
    claimed = take(store)
    store.settle([(c, waiting_for(signal)) for c, signal in zip(claimed, signals, strict=True)])
    assert take(store) == []
    return claimed


@pytest.mark.parametrize("most", [1, 7, 500])
def test_more_jobs_wait_for_a_signal_than_one_match_takes(store: Any, monkeypatch: Any, most: int) -> None:
    monkeypatch.setattr(matching, "MOST_MATCHED", most)
    waiters = suspended(store, ["go"] * 20)
    store.signal(NewSignal("go"))
    assert sorted(one.id for _ in range(20) for one in take(store)) == sorted(ids(waiters))
    assert store.counts(("status",)).rows == [{"status": "processing", "count": 20}]


@pytest.mark.only("postgresql")
def test_a_waiter_that_is_locked_is_let_go_later(store: Any, users: Any) -> None:
    """Though its row is another one then."""
    waiter, other = suspended(store, ["go", "go"])
    users.execute("UPDATE treadle.ready SET priority = 9 WHERE id = %s", (waiter.id,))
    store.signal(NewSignal("go"))
    assert ids(take(store)) == [other.id]
    assert take(store) == []
    users.commit()
    assert ids(take(store)) == [waiter.id]


@pytest.mark.only("postgresql")
def test_a_completion_in_a_transaction_that_is_left_open_blocks_nobody(store: Any) -> None:
    parent, other = put_and_take(store), put_and_take(store)
    child = child_of(store, store.get(parent.id), store.get(other.id))
    entered, leave = threading.Event(), threading.Event()

    def handler() -> None:
        with store.transaction(parent, lambda: COMPLETED):
            entered.set()
            assert leave.wait(20)

    thread = threading.Thread(target=handler)
    thread.start()
    assert entered.wait(20)
    assert settle_one(store, other, COMPLETED)
    assert take(store) == []
    leave.set()
    thread.join()
    assert ids(take(store)) == [child.id]


def test_a_timeout_and_a_signal_at_once_have_one_outcome(store: Any, open_store: Any) -> None:
    other = open_store()
    for n in range(20):
        claimed = put_and_take(store)
        assert settle_one(store, claimed, waiting_for(f"go {n}", 1))
        at_once(lambda name=f"go {n}": other.signal(NewSignal(name)), store.match)
        found = [*take(store), *take(other)]
        assert ids(found) == [claimed.id]
        (step,) = store.steps(claimed.id)
        assert step.kind in ("signal", "timeout")
        assert settle_one(store, found[0], COMPLETED)


def test_a_cancelled_job_lets_nothing_go_twice(store: Any, open_store: Any) -> None:
    """A child is cancelled by hand while its parent fails."""
    other = open_store()
    for _ in range(20):
        parent = put(store)
        child = child_of(store, parent, if_failed="cancel", dedupe="child")
        run(store, parent.id, FAILED)
        at_once(lambda id=child.id: other.cancel(id), store.match)
        while store.match():
            pass
        assert status(store, child) is Status.CANCELLED


def test_a_suspended_job_is_cancelled_and_released_once(store: Any) -> None:
    claimed = put_and_take(store)
    store.cancel(claimed.id)
    sleeping = Outcome(OutcomeKind.SUSPENDED, charged=0, delay=HOUR)
    assert settle_one(store, claimed, sleeping)
    assert status(store, store.get(claimed.id)) is Status.CANCELLED
