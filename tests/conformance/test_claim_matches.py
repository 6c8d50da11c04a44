"""A claim also matches what has arrived: that never costs its caller the jobs that are claimed, or much time."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from tests.conformance.helpers import COMPLETED, by_hand, enlist, ids, place_of, put, settle_one, take
from tests.conformance.test_waiting import child_of, status
from tests.conformance.test_waiting_races import suspended
from treadle.errors import StoreBusy, StoreRefused, WorkerLost
from treadle.job import Job, Status
from treadle.stores.shared import matching
from treadle.stores.shared.matching import LOCKED_FOR
from treadle.waits import NewSignal


@pytest.fixture(autouse=True)
def inside(store: Any) -> None:
    if not hasattr(store, "_match"):
        pytest.skip("looks into treadle's own stores")


def arrived(store: Any, children: int = 1) -> list[Job]:
    """Children that the next match may let go."""
    parent = put(store, "parent")
    made = [child_of(store, parent) for _ in range(children)]
    (claimed,) = take(store)
    assert settle_one(store, claimed, COMPLETED)
    return made


@pytest.mark.parametrize("error", [StoreBusy("here", 10), StoreRefused("here", "a trigger says no")])
def test_jobs_are_claimed_though_the_match_fails(store: Any, monkeypatch: Any, error: Exception) -> None:
    (child,) = arrived(store)
    job = put(store, max_attempts=1)

    def fail(*_: Any) -> int:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(store, "_match", fail)
        assert ids(take(store)) == [job.id]
        with pytest.raises(type(error)):  # nothing is claimed: then the caller learns of it
            take(store)
    assert ids(take(store)) == [child.id]


def test_jobs_are_claimed_though_the_worker_is_made_quiet_in_between(store: Any, monkeypatch: Any) -> None:
    worker, job = after_match(store, monkeypatch, lambda worker: store.set_quiet(worker, True))
    assert ids(take(store, worker=worker)) == [job.id]


def test_a_worker_learns_that_it_was_declared_dead_in_between(store: Any, monkeypatch: Any) -> None:
    worker, job = after_match(store, monkeypatch, lambda worker: store.declare_dead(worker, "stood still", started=()))
    with pytest.raises(WorkerLost):
        take(store, worker=worker)
    assert place_of(store, job.id) == (Status.PENDING, 0)


def after_match(store: Any, monkeypatch: Any, then: Any) -> tuple[str, Job]:
    """A worker for which something happens between the match and the claim of what it lets go; and a job."""
    worker, real = enlist(store), store._match
    arrived(store)

    def match(*args: Any) -> int:
        done: int = real(*args)
        then(worker)
        return done

    monkeypatch.setattr(store, "_match", match)
    return worker, put(store)


def test_jobs_that_are_claimed_wait_for_one_match_only(store: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(matching, "MOST_MATCHED", 1)
    children = arrived(store, 5)
    job = put(store)
    claimed: Any = take(store, types={"noop": None})
    assert ids(claimed) == [job.id]
    assert [status(store, child) for child in children].count(Status.BLOCKED) >= 3
    assert claimed.due.now
    assert claimed.due.in_seconds == 0


def test_a_claim_that_has_found_nothing_goes_on_until_all_is_matched(store: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(matching, "MOST_MATCHED", 1)
    children = arrived(store, 5)
    assert take(store, types={"noop": None}) == []
    assert {status(store, child) for child in children} == {Status.PENDING}


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("waits_for", ["a parent", "a signal"])
def test_a_claim_waits_while_a_transaction_has_locked_what_it_would_let_go(store: Any, waits_for: str) -> None:
    """Otherwise each idle worker would claim hundreds of times a second, until a user commits."""
    if waits_for == "a signal":
        (waiter,) = suspended(store, ["go"])
        store.signal(NewSignal("go"))
    else:
        (waiter,) = arrived(store)
    with closing(by_hand(store)) as users:
        users.execute("SELECT 1 FROM treadle.ready WHERE id = %s FOR SHARE", (waiter.id,))
        claimed: Any = take(store)
        assert claimed == []
        assert claimed.due.now
        assert claimed.due.in_seconds == LOCKED_FOR
        users.commit()
    assert ids(take(store)) == [waiter.id]


@pytest.mark.only("sqlite")
def test_a_claim_makes_any_number_of_matches(store: Any, monkeypatch: Any) -> None:
    """It has no more frames on its stack for that."""
    arrived(store)
    left = iter(range(1000, -1, -1))
    monkeypatch.setattr(store, "_match", lambda *_: next(left))
    assert take(store) == []
    assert list(left) == []
