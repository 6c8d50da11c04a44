"""Values that only SQLite lets you put into a row by hand: only that job is affected."""

from __future__ import annotations

import pytest

from tests.conformance import test_by_hand
from tests.conformance.helpers import check_consistency, finish, ids, put_many, take
from treadle.outcome import COMPLETED
from treadle.stores.base import ClaimRequest

pytestmark = [pytest.mark.by_hand, pytest.mark.only("sqlite")]

BROKEN = {
    "no JSON": "'{\"a\":'",
    "nothing": "''",
    "no UTF-8": "CAST(x'7B2261223AFFFE7D' AS TEXT)",
    "a NUL": "'{\"a\":' || char(0) || '}'",
    "too deep": f"'{'[' * 5000}'",
    "a quote": "'\"'",
}


@pytest.fixture
def by_hand_as_it_is(by_hand):
    """Run SQL with an expression where the tests for all stores have a value."""

    def execute(sql, payload, *parameters):
        return by_hand(sql.replace("?", payload, 1), *parameters)

    return execute


@pytest.mark.parametrize("payload", BROKEN.values(), ids=BROKEN)
def test_a_payload_that_is_not_json_is_claimed_and_other_jobs_run(store, by_hand_as_it_is, payload):
    test_by_hand.test_a_broken_payload_is_claimed_and_other_jobs_run(store, by_hand_as_it_is, payload)


@pytest.mark.parametrize("payload", BROKEN.values(), ids=BROKEN)
def test_a_payload_that_is_not_json_is_shown_as_it_is(store, by_hand_as_it_is, payload):
    test_by_hand.test_a_broken_payload_is_shown_as_it_is(store, by_hand_as_it_is, payload)


def test_a_broken_result_is_shown_as_it_is(store, by_hand):
    job = finish(store, COMPLETED)
    by_hand("UPDATE treadle_finished SET result = '{'")

    assert "{" == store.get(job.id).result


def test_a_type_broken_by_hand_does_not_stop_the_others(store, by_hand):
    broken, whole = put_many(store, 2)
    by_hand("UPDATE treadle_ready SET type = CAST(x'FF' AS TEXT) WHERE id = ?", broken.id)

    assert [whole.id] == ids(take(store))


@pytest.mark.parametrize("id", ["CAST(x'FF' AS TEXT)", "'a' || char(0) || 'b'", "'no such job'"])
def test_a_row_whose_id_cannot_be_read_is_removed(store, by_hand, id):
    """A worker would find it at every look, and claim nothing."""
    broken, whole = put_many(store, 2)
    by_hand(f"UPDATE treadle_ready SET id = {id} WHERE id = ?", broken.id)
    by_hand("DELETE FROM treadle_jobs WHERE id = ?", broken.id)

    assert [whole.id] == ids(take(store))

    assert not store.due(ClaimRequest(limit=1)).now
    check_consistency(store)
