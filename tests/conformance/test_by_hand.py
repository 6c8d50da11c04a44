"""Rows that were broken by hand: only that job is affected, and nothing loops."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import (
    HOUR,
    RETRIED,
    check_consistency,
    enlist,
    everything,
    finish,
    ids,
    limit,
    new_job,
    put,
    put_and_take,
    put_many,
    settle_one,
    take,
)
from treadle.filters import Filter
from treadle.job import Status
from treadle.outcome import COMPLETED, RELEASED

pytestmark = pytest.mark.by_hand

BROKEN = {
    "no object": "[1, 2]",
    "a lone surrogate": '{"a":"\\ud800"}',
    "a NUL": '{"a":"\\u0000"}',
    "too deep": "[" * 2000 + "]" * 2000,
    "a number too large": '{"a":1e999}',
}


@pytest.mark.parametrize("payload", BROKEN.values(), ids=BROKEN)
def test_a_broken_payload_is_claimed_and_other_jobs_run(store, by_hand, payload):
    """Its attempt fails and says why. If claims skipped it, it would stay there forever, unseen."""
    neighbors = put_many(store, 2, payload='{"a":1}')
    broken = put(store)
    by_hand("UPDATE treadle_jobs SET payload = ? WHERE id = ?", payload, broken.id)

    claimed = take(store)

    assert ids([*neighbors, broken]) == ids(claimed)
    assert ['{"a":1}'] * 2 == [c.payload for c in claimed[:2]]
    assert not store.settle([(claimed[0], COMPLETED), (claimed[1], COMPLETED), (claimed[2], RETRIED)]).lost
    check_consistency(store)


@pytest.mark.parametrize("payload", BROKEN.values(), ids=BROKEN)
def test_a_broken_payload_is_shown_as_it_is(store, by_hand, payload):
    whole, broken = put_many(store, 2, tenant="t")
    by_hand("UPDATE treadle_jobs SET payload = ? WHERE id = ?", payload, broken.id)

    assert isinstance(store.get(broken.id).payload, dict)
    for wanted in (Filter(), Filter(tenants=("t",)), Filter(statuses=(Status.PENDING,))):
        assert ids([broken, whole]) == ids(store.jobs(wanted, 10).jobs)


@pytest.mark.parametrize("at", [1 << 62, -(1 << 62)], ids=["far ahead", "far back"])
def test_a_time_beyond_all_dates_does_not_hide_the_other_jobs(store, by_hand, at):
    whole, broken = put_many(store, 2)
    by_hand("UPDATE treadle_ready SET run_at = ? WHERE id = ?", at, broken.id)

    assert ids([broken, whole]) == ids(everything(store))


# A row of treadle_jobs deleted by hand


def delete_job(by_hand, id):
    by_hand("DELETE FROM treadle_jobs WHERE id = ?", id)


def test_a_waiting_job_deleted_by_hand_is_skipped_once_and_removed(store, by_hand):
    gone, there = put_many(store, 2)
    delete_job(by_hand, gone.id)

    assert [there.id] == ids(take(store))

    assert [] == by_hand("SELECT id FROM treadle_ready")
    assert [(there.id,)] == by_hand("SELECT CAST(id AS text) FROM treadle_leases")
    check_consistency(store)


def test_a_claim_that_finds_only_deleted_jobs_finds_nothing(store, by_hand):
    delete_job(by_hand, put(store).id)

    assert [] == take(store)
    assert [] == store.counts(()).rows


def test_a_running_job_deleted_by_hand_does_not_use_a_slot_forever(store, by_hand):
    limit(store, "noop", 1)
    enlist(store, "w1")
    gone = put_and_take(store, worker="w1")
    put(store)
    delete_job(by_hand, gone.id)
    store.declare_dead("w1", "the process died")

    store.rescue()

    assert 1 == len(take(store))
    check_consistency(store)


@pytest.mark.parametrize("outcome", [RETRIED, RELEASED], ids=lambda outcome: outcome.kind.value)
def test_a_running_job_deleted_by_hand_is_removed_when_it_would_wait_again(store, by_hand, outcome):
    gone = put_and_take(store)
    delete_job(by_hand, gone.id)

    assert settle_one(store, gone, outcome)
    assert [] == take(store)
    assert [] == store.counts(()).rows


def test_a_running_job_deleted_by_hand_can_be_completed(store, by_hand):
    gone, there = put_many(store, 2)
    claimed = take(store)
    delete_job(by_hand, gone.id)

    assert not store.settle([(c, COMPLETED) for c in claimed]).lost
    assert Status.COMPLETED == store.get(there.id).status


def test_the_dedupe_key_of_a_job_deleted_by_hand_is_free(store, by_hand):
    """Otherwise, nothing could ever be enqueued with that key again."""
    delete_job(by_hand, put(store, dedupe="k", delay=HOUR).id)

    first, second = store.insert([new_job(dedupe="k"), new_job(dedupe="k")])

    assert first == second
    assert first == put(store, dedupe="k")


def test_a_retry_can_take_the_dedupe_key_of_a_job_deleted_by_hand(store, by_hand):
    ended = finish(store, COMPLETED, dedupe="k")
    delete_job(by_hand, put(store, dedupe="k").id)

    assert Status.PENDING == store.retry(ended.id).status
    assert ended.id == put(store, dedupe="k").id
