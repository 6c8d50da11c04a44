"""The plans of limits and of settling."""

from __future__ import annotations

import json

import pytest

from tests.conformance.postgres_plans.database import BATCH, ENDED, LATER, MOST, RUNNING
from tests.conformance.postgres_plans.plan import check
from treadle.stores.base import RECLAIM_AFTER
from treadle.stores.postgres import at_once_sql
from treadle.stores.postgres import insert_claim_settle_sql as hot
from treadle.stores.postgres.connection import Transaction

SQL = Transaction.sql
KEY_USES = SQL.KEY_USES.format(keys=SQL.COUNTED_KEYS, unit=SQL.UNIT, once=SQL.ONCE)
SOME_KEYS = [("api", f"key-{ENDED + 1 + n}") for n in range(BATCH)]

ONE_KEY = """
    INSERT INTO treadle.lease_keys (name, key, id, lease, tenant)
    SELECT 'other', '', id, lease, tenant FROM treadle.leases;
    UPDATE pg_class SET reltuples = 0, relpages = pg_relation_size(oid) / 8192
     WHERE oid IN ('treadle.leases'::regclass, 'treadle.lease_keys'::regclass)
"""


def waiting(explain, n=BATCH):
    rows = explain.connection.execute("SELECT id::text FROM treadle.ready ORDER BY id LIMIT %s", [n]).fetchall()
    return [id for [id] in rows]


def test_a_limited_type_is_counted_in_the_leases_only(explain):
    """There are as many leases as running jobs."""
    plan = explain(KEY_USES, {"grace": RECLAIM_AFTER, "now": LATER, "keys": json.dumps([("type:limited", "", 1, 0)])})

    assert plan.rows <= RUNNING + MOST, plan
    assert {"leases"} >= set(plan.sequential), plan


def test_the_use_of_keys_is_found_by_key(explain):
    check(
        explain(
            KEY_USES, {"grace": RECLAIM_AFTER, "now": LATER, "keys": json.dumps([(*key, 1, 1) for key in SOME_KEYS])}
        )
    )


@pytest.mark.parametrize("name", ["first", "other"])
def test_the_leases_of_one_key_are_each_found_by_their_job(explain, name):
    """Also when vacuum has just found the tables empty, but for rows that an old snapshot keeps."""
    explain.connection.execute(ONE_KEY)
    plan = explain(KEY_USES, {"grace": RECLAIM_AFTER, "now": LATER, "keys": json.dumps([(name, "", 1, 0)])})

    assert plan.rows <= 3 * RUNNING, plan


@pytest.mark.parametrize("name", ["first", "other"])
def test_what_a_rate_alone_limits_is_not_counted(explain, name):
    """An old snapshot would keep the keys of all jobs that have run under it."""
    explain.connection.execute(ONE_KEY)
    plan = explain(KEY_USES, {"grace": RECLAIM_AFTER, "now": LATER, "keys": json.dumps([(name, "", 0, 1)])})

    assert plan.rows <= 3, plan


def test_older_buckets_of_a_key_are_not_read(explain):
    """Nor would those be that were deleted, and that an old snapshot keeps."""
    explain.connection.execute(
        "INSERT INTO treadle.buckets (name, key, full_at) SELECT 'one', '', n FROM generate_series(1, 1000) n"
    )
    [(newest,)] = explain.connection.execute("SELECT max(seq) FROM treadle.buckets WHERE name = 'one'").fetchall()
    [statement] = Transaction.sql.SET_BUCKETS
    plan = explain(statement, {"keys": json.dumps([("one", "", 1, newest)])})

    assert plan.rows <= 3, plan
    left = explain.connection.execute("SELECT seq FROM treadle.buckets WHERE seq = %s", [newest]).fetchall()
    assert [] == left


def test_candidates_are_locked_leased_and_parked_by_their_ids(explain):
    some = {"ids": json.dumps(waiting(explain)), "now": LATER}
    check(explain(hot.LIMIT_VALUES, {**some, "paths": '[["a", "b"]]', "by_tenant": False}))
    parked = json.dumps([(id, "limit:api\x1facme") for id in waiting(explain)])
    check(explain(Transaction.sql.PARK_FOR, {"rows": parked}), 4 * BATCH)
    worker = {"worker": "w1", "timeouts": "{}", "token": 1, "queues": None}
    check(explain(hot.INSERT_LEASES_OF, {**some, **worker}), 4 * BATCH)


def test_rows_that_are_leased_with_a_key_are_found_by_their_places(explain):
    rows = explain.connection.execute("SELECT ctid::text FROM treadle.ready LIMIT %s", [BATCH]).fetchall()
    places = ",".join(f'"{place}"' for [place] in rows)
    keys = {"names": json.dumps(["api"] * BATCH), "keys": json.dumps([str(n) for n in range(BATCH)])}
    worker = {"worker": "w1", "timeouts": "{}", "token": 1, "now": LATER}

    plan = explain(hot.INSERT_KEYED_LEASES, {"places": f"{{{places}}}", **keys, **worker})

    check(plan, 4 * BATCH)
    assert BATCH == plan.taken("ready"), plan


def test_openings_are_found_by_their_time_and_key(explain):
    check(explain(Transaction.sql.TAKE_OPENINGS, {"now": LATER, "most": BATCH}), 4 * BATCH)
    rows = json.dumps([(*key, LATER + 1, "limit:api") for key in SOME_KEYS])
    check(explain(Transaction.sql.ADD_OPENINGS, {"rows": rows, "now": LATER}))
    check(explain(Transaction.sql.NEXT_OPENING, {}))
    [statement] = Transaction.sql.SET_BUCKETS
    check(explain(statement, {"keys": json.dumps([(*key, 1, 1) for key in SOME_KEYS])}), 4 * BATCH)


def test_rows_that_are_parked_for_keys_are_found_by_jumps(explain):
    explain.connection.execute("UPDATE treadle.ready SET parked = 'limit:' || tenant WHERE queue < 'queue-5'")
    rows = json.dumps([("limit:acme", 3), ("limit:none", 3)])
    check(explain(Transaction.sql.UNPARK_KEYS, {"rows": rows, "n": 3, "beside": 5, "now": LATER}), 10 * BATCH)


def test_released_keys_are_found_by_the_jobs(explain, held):
    ids = json.dumps([id for id, _ in held])
    [release] = Transaction.sql.RELEASE_LIMITS
    check(explain(release, {"ids": ids, "keyed": ids, "now": LATER}), 3 * BATCH)


# Settle


def test_a_completion_reads_only_the_jobs_that_it_ends(explain, held):
    ids, numbers = [id for id, _ in held], [number for _, number in held]
    # The index still has the rows that other tests have rolled back, until somebody has met them.
    explain.connection.execute("SELECT id FROM treadle.waits ORDER BY id")

    plan = explain(hot.COMPLETE, {"ids": ids, "numbers": numbers, "tokens": [1] * BATCH, "now": LATER})

    check(plan)
    assert BATCH - 1 == plan.taken("leases"), plan


def test_a_completion_under_limits_reads_only_the_jobs_that_it_ends(explain, held):
    ids, numbers = [id for id, _ in held], [number for _, number in held]
    explain.connection.execute("SELECT id FROM treadle.waits ORDER BY id")
    limited = {"keyed": json.dumps(ids), "types": "[]", "notices": "[]", "now": LATER}

    plan = explain(at_once_sql.COMPLETE_LIMITED, {"ids": ids, "numbers": numbers, "tokens": [1] * BATCH, **limited})

    assert [] == plan.sequential, plan
    assert plan.rows <= 3 * BATCH, plan
    assert plan.sorted <= 2 * BATCH, plan  # each has two keys
    assert BATCH - 1 == plan.taken("leases"), plan
    assert BATCH - 1 == plan.taken("lease_keys"), plan


@pytest.mark.parametrize("status", ["failed", None], ids=["ended", "waiting again"])
def test_settling_reads_only_the_jobs_that_it_settles(explain, held, status):
    rows = json.dumps([(id, n, 1, status, 1, None, "e", LATER, 0, None, "failed", "t", 1, "", 1) for id, n in held])

    plan = explain(hot.SETTLE, {"rows": rows, "now": LATER})

    check(plan)
    assert BATCH - 1 == plan.taken("leases"), plan


def test_dedupe_keys_are_released_by_job_id(explain, held):
    check(explain(hot.RELEASE_KEYS, {"ids": json.dumps([id for id, _ in held]), "now": 0}))


NO_LIMITS_YET = """
    UPDATE pg_class SET reltuples = 0, relpages = 1 WHERE oid = 'treadle.leases_by_limit'::regclass;
    UPDATE pg_statistic SET stanullfrac = 1 WHERE starelid = 'treadle.leases'::regclass AND staattnum IN (
        SELECT attnum FROM pg_attribute WHERE attrelid = starelid AND attname IN ('limit_name', 'limit_key'))
"""


@pytest.mark.parametrize("analysed", ["SELECT", NO_LIMITS_YET], ids=["with limits", "before there were limits"])
def test_a_rescue_reads_leases_and_never_all_jobs(explain, analysed):
    """It is a chore of every worker. Nothing is stuck, as a rule."""
    explain.connection.execute(analysed)
    row = {"grace": RECLAIM_AFTER, "now": LATER, "worker": "w1"}
    for name in ("STUCK_IDS", "DELETE_ORPHANED_LEASES", "DEAD_LEASEHOLDERS", "LEASES_OF_WORKER"):
        plan = explain(getattr(Transaction.sql, name), row)
        assert {"leases"} >= set(plan.sequential), plan
        assert plan.rows <= 3 * RUNNING, plan
    some = explain.connection.execute(f"SELECT id::text FROM treadle.leases LIMIT {BATCH}").fetchall()
    check(explain(Transaction.sql.STUCK_LEASES, {**row, "ids": json.dumps([id for [id] in some])}), MOST + BATCH)


def test_waits_for_jobs_that_have_ended_are_found_by_what_they_wait_for(explain):
    """One job waits for all of them, as a fan-in does."""
    child = waiting(explain, 1)
    explain.connection.execute(
        """INSERT INTO treadle.waits (id, tenant, kind, what, step, if_failed, met, since)
           SELECT %s::uuid, tenant, 'parent', id::text, '', 'hold', 0, 0 FROM treadle.finished""",
        child,
    )
    rows = explain.connection.execute("SELECT id::text FROM treadle.finished ORDER BY id LIMIT %s", [BATCH])
    whats = {"whats": json.dumps([id for [id] in rows]), "limit": BATCH + 1}

    check(explain(Transaction.sql.WAITERS_OF_ENDED, whats), 4 * BATCH)
    check(explain(Transaction.sql.MEET_ENDED, {**whats, "ids": json.dumps(child)}), 6 * BATCH)


def test_a_match_finds_keys_by_the_ids_of_jobs(explain):
    """All keys of these jobs have successors."""
    ids = waiting(explain, BATCH)
    these = {"ids": json.dumps(ids)}
    explain.connection.execute("UPDATE treadle.ready SET parked = 'wait' WHERE id = ANY(%s::uuid[])", [ids])

    check(explain(Transaction.sql.LOCK_WAITING, these), 5 * BATCH)
    explain.connection.execute("UPDATE treadle.dedupe SET successor = id WHERE id = ANY(%s::uuid[])", [ids])
    check(explain(Transaction.sql.SUCCESSORS, these), 5 * BATCH)
    check(explain(Transaction.sql.LOCK_SUCCESSORS, these), 5 * BATCH)
