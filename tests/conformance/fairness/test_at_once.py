"""Several claims at once take turns too, and none waits for another."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from tests.conformance.fairness.helpers import put_fair, tenants
from tests.conformance.helpers import at_once, by_hand, ids, new_job, select, take
from treadle.ids import new_id
from treadle.stores.base import TypePolicy


def test_two_handles_at_once_get_different_jobs(open_store):
    first, second = open_store(), open_store()
    first.publish([TypePolicy(type="fair", fair="tenant")])
    for tenant in "abcdefgh":
        put_fair(first, tenant, 50)

    def all_of(store: Any) -> list[str]:
        found: list[str] = []
        while claimed := take(store, 10):
            found += ids(claimed)
            if len(claimed) < 10 and len(found) < 150:  # others were faster: it goes on at once
                assert 0.0 == claimed.due.in_seconds
        return found

    mine, theirs = at_once(lambda: all_of(first), lambda: all_of(second))
    rest = all_of(first)  # each may have ended when the other had locked all that was left

    assert 400 == len({*mine, *theirs, *rest}) == len(mine) + len(theirs) + len(rest)


def test_each_handle_begins_with_a_tenant_by_chance(open_store):
    """Otherwise many short-lived processes, as of `treadle tick`, would serve the first tenants only."""
    first = open_store()
    first.publish([TypePolicy(type="fair", fair="tenant")])
    for n in range(8):
        put_fair(first, f"t{n}", 60)

    firsts = {take(open_store(), 1)[0].tenant for _ in range(60)}

    assert len(firsts) >= 4


@pytest.mark.only("postgresql")
def test_a_claim_does_not_wait_for_jobs_that_another_transaction_has_locked(fair):
    put_fair(fair, "a", 1)
    put_fair(fair, "b", 1)
    put_fair(fair, "c", 1, fair="")
    with closing(by_hand(fair)) as users:
        users.execute("SELECT 1 FROM treadle.ready WHERE tenant <> 'b' FOR UPDATE")

        claimed = take(fair, 10)

        assert (["b"], None) == (tenants(claimed), claimed.due.in_seconds)
        users.rollback()
    assert ["a", "c"] == sorted(tenants(take(fair, 10)))


@pytest.mark.only("postgresql")
def test_a_claim_goes_on_with_the_next_tenants_if_others_have_the_first(fair):
    for n in range(40):
        put_fair(fair, f"t{n:02}")
    with closing(by_hand(fair)) as users:
        take(fair, 1)
        next_ones = sorted(row[0] for row in select(fair, "SELECT tenant FROM treadle.ready"))
        start = next(iter(fair.database.cursors.turn.values()))
        locked = [t for t in (*next_ones, *next_ones) if t > start][:10] if start < next_ones[-1] else next_ones[:10]
        users.execute("SELECT 1 FROM treadle.ready WHERE tenant = ANY(%s) FOR UPDATE", [locked])

        assert 10 == len(take(fair, 10))
        users.rollback()


def test_new_ids_of_fair_jobs_are_stored_once(fair):
    job = new_job("fair", tenant="a", fair="tenant", delay=0)

    assert [job.id] == ids(fair.insert([job])) == ids(fair.insert([job]))
    assert job.id < new_id()
    assert 1 == len(take(fair))
