"""A job that would wait for itself, directly or through others, fails or is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.conformance.helpers import COMPLETED, FakeClock, ids, new_job, put, put_and_take, settle_one, take
from tests.conformance.keyed_jobs import DEBOUNCE, REPLACE, STARTED, THROTTLE, call, keyed, waiting
from treadle.codec import as_json
from treadle.errors import BadOption
from treadle.job import ClaimedJob, NewJob, Status
from treadle.outcome import Outcome, OutcomeKind
from treadle.steps import NewStep
from treadle.waits import NewWait

RETURN: dict[str, Any] = {}
ENDED = pytest.mark.parametrize(
    "rule", [RETURN, REPLACE, DEBOUNCE, THROTTLE], ids=["return", "replace", "debounce", "throttle"]
)


def gather(*subjobs: NewJob) -> Outcome:
    """A handler waits for these."""
    step = NewStep("all", "gather", as_json(ids(subjobs)))
    waits = tuple(NewWait("subjob", job.id, "all") for job in subjobs)
    return Outcome(OutcomeKind.SUSPENDED, charged=0, steps=(step,), waits=waits, follow_ups=subjobs)


def start(store: Any, clock: FakeClock) -> ClaimedJob:
    clock.advance(60)  # a debounce is over
    (claimed,) = take(store)
    return claimed


def subjob(claimed: ClaimedJob, rule: Any) -> NewJob:
    return keyed(rule, type="sub", origin=claimed.id)


@ENDED
def test_a_job_that_gathers_a_subjob_with_its_own_key_fails(store: Any, clock: FakeClock, rule: Any) -> None:
    origin, other = call(store, rule), put(store, "other")
    clock.advance(60)
    claimed, beside = sorted(take(store), key=lambda one: one.type != origin.type)
    new = subjob(claimed, rule)

    settled = store.settle([(claimed, gather(new)), (beside, COMPLETED)])

    assert [(origin.id, OutcomeKind.FAILED), (other.id, OutcomeKind.COMPLETED)] == [
        (one.id, outcome.kind) for one, outcome in settled.written
    ]
    found = store.get(origin.id)
    assert Status.FAILED is found.status
    assert "for its subjob of type 'sub'" in found.error
    assert "(sha256 8254c329a92850f6) is held by this job itself; give the subjob another key" in found.error
    assert ('or let that job hold its key until="started"' in found.error) is (rule is not THROTTLE)
    assert store.get(new.id) is None
    assert store.steps(origin.id) == []


@pytest.mark.parametrize("rule", [RETURN, REPLACE, DEBOUNCE], ids=["return", "replace", "debounce"])
def test_a_job_waits_for_a_subjob_with_the_key_that_it_held_until_it_started(
    store: Any, clock: FakeClock, rule: Any
) -> None:
    origin = call(store, rule | STARTED)
    claimed = start(store, clock)
    new = subjob(claimed, rule | STARTED)

    assert settle_one(store, claimed, gather(new))

    assert new.id == start(store, clock).id
    assert Status.BLOCKED is store.get(origin.id).status


@ENDED
def test_a_failed_gather_leaves_the_successor_of_its_job_alone(store: Any, clock: FakeClock, rule: Any) -> None:
    call(store, rule)
    claimed = start(store, clock)
    successor = call(store)

    assert settle_one(store, claimed, gather(subjob(claimed, rule)))

    assert [successor.id] == ids(take(store))


@ENDED
def test_a_job_that_gathers_a_subjob_with_the_key_of_its_origin_fails(store: Any, clock: FakeClock, rule: Any) -> None:
    call(store, rule)
    grand = start(store, clock)
    assert settle_one(store, grand, gather(new_job(origin=grand.id)))
    claimed = start(store, clock)

    assert settle_one(store, claimed, gather(subjob(claimed, rule)))

    assert f"is held by job {grand.id}, which waits for this job; give" in store.get(claimed.id).error
    assert [grand.id] == ids(take(store))  # its own subjob has ended


@pytest.mark.parametrize("rule", [REPLACE, DEBOUNCE], ids=["replace", "debounce"])
def test_a_job_goes_on_after_its_subjobs_replaced_each_other(store: Any, clock: FakeClock, rule: Any) -> None:
    claimed = put_and_take(store)
    first, second = subjob(claimed, rule), subjob(claimed, rule)
    assert settle_one(store, claimed, gather(first, second))
    last = start(store, clock)

    assert settle_one(store, last, COMPLETED)

    assert (second.id, Status.CANCELLED) == (last.id, store.get(first.id).status)
    assert [claimed.id] == ids(take(store))


def test_a_job_that_gathers_a_subjob_with_the_key_of_its_child_fails(store: Any) -> None:
    claimed = put_and_take(store)
    child = call(store, STARTED, after=(claimed.id,))

    assert settle_one(store, claimed, gather(subjob(claimed, STARTED)))

    error = store.get(claimed.id).error
    assert f"is held by job {child.id}, which waits for this job; give the subjob another key" in error
    assert "until" not in error  # it has not started


def test_a_job_that_gathers_a_child_of_its_child_fails(store: Any) -> None:
    claimed = put_and_take(store)
    child = put(store, after=(claimed.id,))

    assert settle_one(store, claimed, gather(new_job("sub", after=(child.id,), origin=claimed.id)))

    assert "type 'sub': one of the subjob's parents waits for this job; leave" in store.get(claimed.id).error


# Parents


@pytest.mark.parametrize("rule", [REPLACE, DEBOUNCE], ids=["replace", "debounce"])
@pytest.mark.parametrize("together", [False, True], ids=["stored", "new"])
def test_a_job_that_would_replace_its_own_parent_is_refused(store: Any, rule: Any, together: bool) -> None:
    """It would be held by a job that has ended, and that cannot be retried, because its key is held."""
    parent = keyed(rule)
    child = keyed(rule, after=(parent.id,))
    before = [] if together else store.insert([parent])

    with pytest.raises(BadOption, match=f"after='{parent.id}': this job would replace that one, because both have"):
        store.insert([parent, child] if together else [child])

    assert ids(before) == waiting(store)


def test_a_successor_that_would_replace_its_own_parent_is_refused(store: Any) -> None:
    call(store)
    (running,) = take(store)
    successor = call(store)

    with pytest.raises(BadOption, match=f"after='{successor.id}'"):
        call(store, after=(successor.id,))

    assert settle_one(store, running, COMPLETED)
    assert [successor.id] == ids(take(store))


def test_a_job_that_runs_however_its_parent_ends_may_replace_it(store: Any) -> None:
    parent = call(store)
    child = call(store, after=(parent.id,), if_failed="run")

    assert [child.id] == ids(take(store))
    assert f"replaced by {child.id}" == store.get(parent.id).error


def test_a_handler_that_enqueues_a_job_which_replaces_its_own_parent_fails(store: Any) -> None:
    claimed = put_and_take(store)
    parent = keyed()
    follow_ups = parent, keyed(after=(parent.id,))

    with pytest.raises(BadOption, match="leave the parent out"):
        store.settle([(claimed, Outcome(OutcomeKind.COMPLETED, follow_ups=follow_ups))])

    assert Status.PROCESSING is store.get(claimed.id).status


@pytest.mark.parametrize("rule", [RETURN, THROTTLE, None], ids=["return", "throttle", "no key"])
def test_a_handler_that_enqueues_jobs_which_wait_for_each_other_fails(store: Any, rule: Any) -> None:
    """With a key in common, the first of them is the answer in place of its parent."""
    claimed = put_and_take(store)
    first, second = (new_job() if rule is None else keyed(rule) for _ in range(2))
    first = msgspec.structs.replace(first, after=(second.id,))
    second = second if rule is not None else msgspec.structs.replace(second, after=(first.id,))

    with pytest.raises(BadOption, match="leave one parent out"):
        store.settle([(claimed, Outcome(OutcomeKind.COMPLETED, follow_ups=(first, second)))])

    assert Status.PROCESSING is store.get(claimed.id).status
