"""The plans of claims, in order and by turns."""

from __future__ import annotations

import json

import pytest

from tests.conformance.postgres_plans.database import BATCH, BLOCKS, ENDED, FIRST, LATER, MIDDLE, MOST, RUNNING
from tests.conformance.postgres_plans.plan import check
from treadle.ids import new_id
from treadle.stores.postgres import at_once_sql
from treadle.stores.postgres import insert_claim_settle_sql as hot
from treadle.stores.postgres.connection import Transaction
from treadle.stores.postgres.sql import PLAN_BY_INDEX, PostgresStatements

LEVELS = 40
"""The number of (queue, type, priority), rounded up."""
QUEUES = json.dumps(["queue-0", "queue-1"])
RANGE = ("queue-1", "type-1", 2)
START = (-(1 << 63), "00000000-0000-0000-0000-000000000000")
SOMEWHERE = (MIDDLE, new_id())
EVERY_RANGE = [(f"queue-{n % 2}", f"type-{n}", 2) for n in range(10)]
from_where = pytest.mark.parametrize("position", [START, SOMEWHERE], ids=["from the start", "from a cursor"])
PAUSE_ACME = "INSERT INTO treadle.pauses VALUES ('acme', '', '', 'ann', '', 0, NULL, 0)"


def test_what_has_expired_is_found_by_its_index(explain):
    """None of the 200,000 expires."""
    for name in ("EXPIRED", "HAS_EXPIRED"):
        check(explain(getattr(PostgresStatements(), name), {"now": FIRST, "limit": BATCH}), 1)


def test_ranges_in_order_and_by_turns_are_found_by_skipping_through_their_indexes(explain):
    check(explain(hot.READY_RANGES, {"now": LATER}))


@from_where
def test_a_range_is_read_from_its_start_or_from_a_cursor(explain, position):
    ranges = json.dumps([(*RANGE, *position)])

    check(explain(hot.READ_RANGES, {"ranges": ranges, "now": LATER, "limit": BATCH}))


def test_several_ranges_are_read_separately(explain):
    ranges = json.dumps([(*place, *START) for place in EVERY_RANGE])

    check(explain(hot.READ_RANGES, {"ranges": ranges, "now": LATER, "limit": BATCH // 10}))


@from_where
def test_the_jobs_of_one_range_are_locked_from_its_start_or_from_a_cursor(explain, position):
    queue, type, priority = RANGE
    run_at, id = position
    place = {"queue": queue, "type": type, "priority": priority, "run_at": run_at, "id": id, "limit": BATCH}
    check(explain(hot.LIMIT_VALUES_OF_RANGE, {**place, "paths": '[["a", "b"]]', "by_tenant": False, "now": LATER}))


def test_jobs_that_are_not_due_are_not_read(explain):
    ranges = json.dumps([(*place, *START) for place in EVERY_RANGE])

    check(explain(hot.READ_RANGES, {"ranges": ranges, "now": FIRST, "limit": BATCH // 10}), len(EVERY_RANGE) * 3)


def test_the_next_due_job_is_found_by_its_index(explain):
    check(explain(hot.NEXT_DUE, {"now": FIRST, "limit": BATCH}))


def claim(ranges, now):
    return {"ranges": json.dumps(ranges), "now": now, "worker": "w", "token": 1, "timeouts": "{}"}


@from_where
def test_a_claim_reads_only_what_it_takes(explain, position):
    plan = explain(hot.INSERT_LEASES, claim([(*RANGE, BATCH, *position)], LATER))

    check(plan)
    assert BATCH == plan.taken("ready"), plan


def test_a_claim_of_several_ranges_reads_only_what_it_takes(explain):
    plan = explain(hot.INSERT_LEASES, claim([(*place, BATCH // 10, *START) for place in EVERY_RANGE], LATER))

    check(plan)
    assert BATCH == plan.taken("ready"), plan


@pytest.mark.parametrize("types", [["type-1"], ["type-1", "type-2"]])
def test_a_claim_at_once_reads_a_batch_of_each_range_that_is_wanted(explain, types):
    """Each type has three priorities. It looks at the others, too."""
    explain.connection.execute("TRUNCATE treadle.openings")
    statement = at_once_sql.CLAIM.replace("parked = 'fair'", "parked = 'none'")  # nothing waits by turns
    row = {"limit": BATCH, "looked_at": 100, "timeouts": json.dumps(dict.fromkeys(types)), "queues": QUEUES}
    plan = explain(statement, {**row, "now": LATER, "worker": "", "token": 1, "limits": 0, "limited": "[]"})

    assert [] == plan.sequential, plan
    assert BATCH == plan.taken("ready"), plan
    assert plan.rows <= MOST + 3 * len(types) * BATCH + 2 * LEVELS, plan
    assert plan.blocks <= BLOCKS * BATCH, plan


def test_a_claim_at_once_that_something_hinders_reads_little(explain):
    row = {"limit": BATCH, "looked_at": 100, "timeouts": "{}", "queues": QUEUES, "limits": 0, "limited": "[]"}
    plan = explain(at_once_sql.CLAIM, {**row, "now": LATER, "worker": "", "token": 1})

    check(plan, 2 * LEVELS)
    assert 0 == plan.taken("ready"), plan


def test_a_claim_that_meets_a_paused_tenant_reads_no_further(explain):
    """Its jobs count as found: they are parked, and then the claim takes others."""
    explain.connection.execute(PAUSE_ACME)
    plan = explain(hot.INSERT_LEASES, claim([("queue-0", "type-0", 2, BATCH, *START)], LATER))

    check(plan)
    assert 0 < plan.taken("ready") < BATCH, plan


def test_parking_reads_the_start_of_a_range(explain):
    explain.connection.execute(PAUSE_ACME)
    ranges = json.dumps([("queue-0", "type-0", 2, BATCH, *START)])

    check(explain(hot.PARK, {"ranges": ranges, "now": LATER, "most": BATCH}), 2 * MOST)


def test_parked_rows_are_found_by_what_they_are_parked_for(explain):
    explain.connection.execute("UPDATE treadle.ready SET parked = 'tenant:acme' WHERE tenant = 'acme'")

    check(explain(Transaction.sql.PARKED_FOR, {"after": "tenant:", "before": "tenant;", "most": BATCH}))
    check(explain(Transaction.sql.UNPARK, {"parked": "tenant:acme", "most": BATCH}))
    check(explain(Transaction.sql.DROP_PAUSES, {"now": LATER}))


# By turns

FAIR = {"queue": "fair", "type": "fair", "priority": 2, "now": LATER}
WALK = {"last": "b", "tenants": BATCH - 1, "wanted": BATCH, "each": 1}


@pytest.mark.parametrize("last", ["b", "tenant-7", "\U0010ffff"])
def test_a_claim_jumps_from_tenant_to_tenant(explain, last):
    check(explain(Transaction.sql.READ_TURNS, {**FAIR, **WALK, "last": last}), 3 * MOST)


def test_a_claim_by_turns_reads_only_what_it_takes(explain):
    rows = explain.connection.execute(f"SELECT id::text FROM treadle.ready WHERE parked = 'fair' LIMIT {BATCH}")
    ids = json.dumps([id for (id,) in rows])
    plan = explain(hot.INSERT_LEASES_OF, {"ids": ids, "queues": None, **claim([], LATER)})

    check(plan)
    assert BATCH == plan.taken("ready"), plan


def test_rows_are_moved_to_the_index_by_turns_by_index(explain):
    row = {"queue": "queue-1", "type": "type-3", "priority": 2, "now": LATER, "most": BATCH}

    check(explain(Transaction.sql.START_TURNS, row))


def test_turns_are_counted_by_their_index(explain):
    explain.connection.execute(PLAN_BY_INDEX)
    place = {"tenant": "big", "run_at": FIRST + (ENDED + RUNNING + BATCH) * 1000, "id": new_id(), "limit": BATCH}
    pairs = json.dumps([("fair", "fair")])

    check(explain(Transaction.sql.TURNS, {**FAIR, **WALK, **place}), 2 * MOST)
    check(explain(Transaction.sql.EQUAL_BY_TURNS, {**FAIR, **place}))
    check(explain(Transaction.sql.ABOVE_BY_TURNS, {**FAIR, **place, "priority": 1}))
    oldest = Transaction.sql.OLDEST_BY_TURNS.format(pairs=Transaction.sql.PAIRS)
    check(explain(oldest, {"now": LATER, "most": BATCH, "pairs": pairs}), 3 * MOST)
