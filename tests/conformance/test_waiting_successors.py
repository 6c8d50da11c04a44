"""A successor that waits for its parents, too: it starts when these and the holder of its key have ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.conformance.helpers import (
    COMPLETED,
    FAILED,
    HOUR,
    SNOOZED,
    FakeClock,
    by_hand,
    check_consistency,
    ids,
    put,
    settle_one,
    take,
)
from tests.conformance.keyed_jobs import DEBOUNCE, REPLACE, call, keyed
from tests.conformance.test_waiting import status, waiting_for
from tests.eventually import eventually
from treadle.clock import SECOND
from treadle.diagnosis import explain
from treadle.errors import KeyHeld, WrongStatus
from treadle.job import ClaimedJob, Job, Reschedule, Status
from treadle.reasons import ReasonCode
from treadle.stores.postgres import insert_claim_settle_sql as hot
from treadle.stores.shared.matching import match
from treadle.waits import NewSignal

IF_FAILED = pytest.mark.parametrize("if_failed", ["hold", "cancel", "run"])


def begin(store: Any, rule: Any = REPLACE, **options: Any) -> tuple[ClaimedJob, ClaimedJob, Job]:
    """The holder of a key and a parent, which run, and the successor that waits for both."""
    parent, holder = put(store), call(store)
    claimed = {one.id: one for one in take(store)}
    successor = call(store, rule, type="next", after=(parent.id,), **options)
    assert successor == store.get(successor.id)
    check_blocked(store, successor)
    return claimed[holder.id], claimed[parent.id], successor


def check_blocked(store: Any, successor: Job) -> None:
    """It waits for its parents."""
    assert take(store) == []
    found = store.get(successor.id)
    assert (found.status, found.waits_for_key) == (Status.BLOCKED, False)
    assert first_reason(store, successor) is ReasonCode.WAITS_FOR_PARENT
    check_consistency(store)


def check_behind(store: Any, successor: Job) -> None:
    """It waits for nothing but the holder of its key."""
    assert take(store) == []
    found = store.get(successor.id)
    assert (found.status, found.waits_for_key) == (Status.PENDING, True)
    assert first_reason(store, successor) is ReasonCode.KEY_HELD
    check_consistency(store)


def check_starts(store: Any, successor: Job) -> None:
    assert ids(take(store)) == [successor.id]
    check_consistency(store)


def check_free(store: Any) -> None:
    """Nobody has the key."""
    assert take(store) == []
    check_consistency(store)
    check_starts(store, call(store))


def first_reason(store: Any, job: Job) -> ReasonCode:
    code: ReasonCode = explain(store.job_facts(job.id)).reasons[0].code
    return code


@pytest.mark.parametrize("rule", [REPLACE, DEBOUNCE], ids=["replace", "debounce"])
def test_its_parent_ends_before_the_holder_of_its_key(store: Any, clock: FakeClock, rule: Any) -> None:
    holder, parent, successor = begin(store, rule)
    clock.advance(6)

    assert settle_one(store, parent, COMPLETED)
    check_behind(store, successor)
    assert settle_one(store, holder, COMPLETED)
    check_starts(store, successor)


@pytest.mark.parametrize("rule", [REPLACE, DEBOUNCE], ids=["replace", "debounce"])
def test_the_holder_of_its_key_ends_before_its_parent(store: Any, clock: FakeClock, rule: Any) -> None:
    holder, parent, successor = begin(store, rule)
    clock.advance(6)

    assert settle_one(store, holder, COMPLETED)
    check_blocked(store, successor)
    assert settle_one(store, parent, COMPLETED)
    check_starts(store, successor)


def test_both_end_at_once(store: Any) -> None:
    holder, parent, successor = begin(store)

    assert not store.settle([(holder, COMPLETED), (parent, COMPLETED)]).lost
    check_starts(store, successor)


def test_the_holder_of_its_key_is_its_parent(store: Any) -> None:
    holder = call(store)
    (claimed,) = take(store)
    successor = call(store, type="next", after=(holder.id,))
    check_blocked(store, successor)

    assert settle_one(store, claimed, COMPLETED)
    check_starts(store, successor)


def test_it_waits_for_all_of_its_parents(store: Any) -> None:
    holder = call(store)
    parents = [put(store) for _ in range(3)]
    claimed = {one.id: one for one in take(store)}
    successor = call(store, type="next", after=tuple(ids(parents)))

    for one in parents[:2]:
        assert settle_one(store, claimed[one.id], COMPLETED)
        check_blocked(store, successor)
    assert settle_one(store, claimed[parents[2].id], COMPLETED)
    check_behind(store, successor)
    assert settle_one(store, claimed[holder.id], COMPLETED)
    check_starts(store, successor)


@IF_FAILED
def test_its_parent_fails_while_the_holder_runs(store: Any, if_failed: str) -> None:
    holder, parent, successor = begin(store, if_failed=if_failed)

    assert settle_one(store, parent, FAILED)
    if if_failed == "run":
        check_behind(store, successor)
        assert settle_one(store, holder, COMPLETED)
        check_starts(store, successor)
        return
    assert take(store) == []
    check_consistency(store)
    assert status(store, successor) is (Status.CANCELLED if if_failed == "cancel" else Status.BLOCKED)
    assert settle_one(store, holder, COMPLETED)
    assert take(store) == []
    if if_failed == "cancel":
        check_free(store)
        return
    assert status(store, successor) is Status.BLOCKED
    store.retry(parent.id)
    (again,) = take(store)
    assert settle_one(store, again, COMPLETED)
    check_starts(store, successor)


@IF_FAILED
def test_its_parent_fails_after_the_holder_has_ended(store: Any, if_failed: str) -> None:
    holder, parent, successor = begin(store, if_failed=if_failed)
    assert settle_one(store, holder, FAILED)
    check_blocked(store, successor)

    assert settle_one(store, parent, FAILED)
    if if_failed == "run":
        check_starts(store, successor)
        return
    assert take(store) == []
    check_consistency(store)
    if if_failed == "cancel":
        assert status(store, successor) is Status.CANCELLED
        check_free(store)
        return
    assert status(store, successor) is Status.BLOCKED
    store.cancel(successor.id)
    check_free(store)


@pytest.mark.parametrize("has_parents", [False, True], ids=["plain", "with parents"])
@pytest.mark.parametrize("is_behind", [False, True], ids=["blocked", "behind"])
def test_it_is_replaced(store: Any, has_parents: bool, is_behind: bool) -> None:
    """`behind`: when its parent has ended already."""
    holder, parent, successor = begin(store)
    if is_behind:
        assert settle_one(store, parent, COMPLETED)
        check_behind(store, successor)

    newer = call(store, type="next", after=(parent.id,) if has_parents else ())

    assert store.get(successor.id).error == f"replaced by {newer.id}"
    check_consistency(store)
    if not is_behind:
        assert settle_one(store, parent, COMPLETED)
    check_behind(store, newer)
    assert settle_one(store, holder, COMPLETED)
    check_starts(store, newer)


def test_it_is_replaced_by_a_job_of_the_same_call(store: Any) -> None:
    parent, holder = put(store), call(store)
    claimed = {one.id: one for one in take(store)}

    replaced, newer = store.insert([keyed(after=(parent.id,)), keyed(after=(parent.id,))])

    assert (replaced.status, newer.status) == (Status.CANCELLED, Status.BLOCKED)
    check_consistency(store)
    assert not store.settle([(claimed[parent.id], COMPLETED), (claimed[holder.id], COMPLETED)]).lost
    check_starts(store, newer)


@pytest.mark.parametrize("verb", ["cancel", "delete"])
@pytest.mark.parametrize("is_behind", [False, True], ids=["blocked", "behind"])
def test_it_is_removed(store: Any, verb: str, is_behind: bool) -> None:
    holder, parent, successor = begin(store)
    if is_behind:
        assert settle_one(store, parent, COMPLETED)
        check_behind(store, successor)

    getattr(store, verb)(successor.id)

    check_consistency(store)
    if not is_behind:
        assert settle_one(store, parent, COMPLETED)
    if verb == "cancel":
        with pytest.raises(KeyHeld):
            store.retry(successor.id)
    assert settle_one(store, holder, COMPLETED)
    check_free(store)


def test_it_is_not_started_in_time(store: Any, clock: FakeClock) -> None:
    holder, parent, successor = begin(store, start_within=10 * SECOND)
    clock.advance(11)

    assert store.expire(10) == 1

    assert status(store, successor) is Status.CANCELLED
    assert not store.settle([(holder, COMPLETED), (parent, COMPLETED)]).lost
    check_free(store)


def test_run_now_starts_it_when_its_parents_have_ended(store: Any) -> None:
    """Beside the holder. It goes on beside it, too, when a signal has come."""
    holder, parent, successor = begin(store)
    with pytest.raises(WrongStatus, match="waits for other jobs"):
        store.run_now(successor.id)
    assert settle_one(store, parent, COMPLETED)
    check_behind(store, successor)

    store.run_now(successor.id)

    (claimed,) = take(store)
    assert settle_one(store, claimed, waiting_for("go", HOUR))
    assert take(store) == []
    assert store.signal(NewSignal("go"))
    assert ids(take(store)) == [successor.id]
    assert settle_one(store, holder, COMPLETED)


def test_it_is_rescheduled(store: Any, clock: FakeClock) -> None:
    holder, parent, successor = begin(store)
    store.reschedule(successor.id, Reschedule(delay=HOUR, queue="other"))
    check_blocked(store, successor)
    assert settle_one(store, parent, COMPLETED)
    check_behind(store, successor)
    store.reschedule(successor.id, Reschedule(priority=3))
    check_behind(store, successor)

    assert settle_one(store, holder, COMPLETED)
    assert take(store) == []
    clock.advance(3600)
    check_starts(store, successor)


def test_a_holder_that_waits_for_its_next_attempt_has_not_ended(store: Any) -> None:
    holder, parent, successor = begin(store)
    assert settle_one(store, parent, COMPLETED)

    assert settle_one(store, holder, SNOOZED)
    (again,) = take(store)
    assert again.id == holder.id
    check_behind(store, successor)
    assert settle_one(store, again, FAILED)
    check_starts(store, successor)


@pytest.mark.by_hand
def test_the_holder_of_its_key_is_deleted_by_hand(store: Any, by_hand: Callable[..., Any]) -> None:
    holder, parent, successor = begin(store)
    for table in ("treadle_leases", "treadle_jobs"):
        by_hand(f"DELETE FROM {table} WHERE id = ?", holder.id)

    assert call(store, {}).id == successor.id

    assert take(store) == []
    assert status(store, successor) is Status.BLOCKED
    assert settle_one(store, parent, COMPLETED)
    assert ids(take(store)) == [successor.id]


# Races: while one transaction passes the key on, another finds that the parents have ended


@pytest.fixture
def users(store: Any) -> Iterator[Any]:
    """A user's own connection."""
    store.open()
    with closing(by_hand(store)) as connection:
        yield connection


@contextmanager
def matching_transaction(store: Any) -> Iterator[None]:
    """A match that has let go what it can, and is not committed yet."""
    entered, leave = threading.Event(), threading.Event()

    def steps(tx: Any) -> None:
        match(tx)
        entered.set()
        assert leave.wait(20)

    thread = threading.Thread(target=store.database.write, args=("claim", steps))
    thread.start()
    assert entered.wait(20)
    try:
        yield
    finally:
        leave.set()
        thread.join()


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("end", ["commit", "rollback"])
@IF_FAILED
def test_a_match_while_the_settle_of_the_holder_is_open(store: Any, users: Any, end: str, if_failed: str) -> None:
    """The match leaves the successor and what has arrived to a later one."""
    holder, parent, successor = begin(store, if_failed=if_failed)
    store.complete_within(holder, COMPLETED, users)
    assert settle_one(store, parent, COMPLETED if if_failed == "hold" else FAILED)

    assert take(store) == []
    assert status(store, successor) is Status.BLOCKED
    getattr(users, end)()

    if if_failed == "cancel":
        assert take(store) == []
        assert status(store, successor) is Status.CANCELLED
    elif end == "commit":
        check_starts(store, successor)
    else:
        check_behind(store, successor)
    check_consistency(store)
    if end == "rollback":
        assert settle_one(store, holder, COMPLETED)
        assert ids(take(store)) == ([] if if_failed == "cancel" else [successor.id])


@pytest.mark.only("postgresql")
def test_a_settle_of_the_holder_while_a_match_is_open(store: Any) -> None:
    holder, parent, successor = begin(store)
    assert settle_one(store, parent, COMPLETED)

    with matching_transaction(store):
        assert ids([one for one, _ in store.settle([(holder, COMPLETED)]).set_aside]) == [holder.id]

    check_behind(store, successor)
    assert settle_one(store, holder, COMPLETED)
    check_starts(store, successor)


@pytest.mark.only("postgresql")
def test_a_match_commits_between_the_snapshot_and_the_locks_of_the_holders_settle(
    store: Any, users: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settle sees the successor as it was before the match. It must not take that for what it is."""
    holder, parent, successor = begin(store)
    waits = "AND pg_advisory_xact_lock_shared(7)::text IS NOT NULL OFFSET 0) j"
    assert hot.RELEASE_KEYS.count("OFFSET 0) j") == 1
    monkeypatch.setattr(hot, "RELEASE_KEYS", hot.RELEASE_KEYS.replace("OFFSET 0) j", waits))
    assert settle_one(store, parent, COMPLETED)
    users.execute("SELECT pg_advisory_xact_lock(7)")

    def settle() -> None:
        while store.settle([(holder, COMPLETED)]).set_aside:
            pass

    thread = threading.Thread(target=settle)
    thread.start()
    try:
        blocked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        eventually(lambda: users.execute(blocked).fetchone() == (1,))
        assert store.match()
        assert store.get(successor.id).waits_for_key
    finally:
        users.commit()
        thread.join()
    check_starts(store, successor)


@pytest.mark.only("postgresql")
def test_an_expiry_while_the_settle_of_the_holder_is_open(store: Any, users: Any, clock: FakeClock) -> None:
    holder, _, successor = begin(store, start_within=10 * SECOND)
    clock.advance(11)
    store.complete_within(holder, COMPLETED, users)

    assert store.expire(10) == 0
    assert status(store, successor) is Status.BLOCKED
    users.commit()
    assert store.expire(10) == 1
    check_free(store)
