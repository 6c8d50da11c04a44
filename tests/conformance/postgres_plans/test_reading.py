"""The plans of lists, statistics and deletions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from tests.conformance.postgres_plans.database import BATCH, FIRST, LATER, MIDDLE, MOST
from tests.conformance.postgres_plans.plan import check
from treadle.filters import Filter, parse
from treadle.ids import first_id_of, ids_from
from treadle.job import Status
from treadle.stores.copying import Tables
from treadle.stores.postgres.connection import Transaction
from treadle.stores.postgres.sql import PLAN_BY_INDEX
from treadle.stores.shared import search


class Asking:
    """A stand-in for a transaction that records the statements."""

    sql = Transaction.sql
    now = FIRST

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def snapshot(self) -> AbstractContextManager[None]:
        return nullcontext()

    def execute(self, statement: str, parameters: Any = None) -> Found:
        if parameters and "OFFSET" not in statement:  # the extent of a search is a walk of that length in the index
            self.asked.append((statement, dict(parameters)))
        return Found()


class Found(list[Any]):
    def fetchall(self) -> list[Any]:
        return []


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(),
        *(Filter(statuses=(status,)) for status in Status if status is not Status.CANCELLED),
        Filter(statuses=(Status.PENDING, Status.FAILED)),
        Filter(tenants=("acme",)),
        Filter(tenants=("acme",), statuses=(Status.PENDING,)),
        Filter(subjects=("call-0",)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("before", [None, MIDDLE], ids=["first page", "later page"])
def test_a_page_is_read_in_order_and_the_scan_ends_with_it(explain, wanted, before):
    asking = Asking()
    search.jobs(asking, wanted, BATCH - 1, None if before is None else first_id_of(before))

    explain.connection.execute(PLAN_BY_INDEX)
    assert asking.asked
    for statement, parameters in asking.asked:
        check(explain(statement, parameters), 6 * BATCH)  # a job, and up to three tables where it may be


@pytest.mark.parametrize(
    "text",
    [
        "type:type-1",
        "type:type-1 tenant:acme",
        "type:type-1 subject:call-0",
        "type:type-1 since:2026-09-21T13:35",
        "type:type-1 status:pending",
        "type:type-1 status:processing",
        "type:type-1 status:failed",
        "type:type-1 status:completed",
        "status:retrying",
    ],
)
def test_the_extent_of_a_search_is_found_by_a_walk_over_ids(explain, text, monkeypatch):
    monkeypatch.setattr(search, "FIRST_LOOK", BATCH)
    walking = Walking()
    search.jobs(walking, parse(text), BATCH - 1, None)

    explain.connection.execute(PLAN_BY_INDEX)
    [(statement, parameters)] = walking.asked
    plan = explain(statement, parameters)
    check(plan, BATCH + 1)
    assert all("Index" in n["Node Type"] for n in plan.scans), plan


class Walking(Asking):
    """The same, for the extent of a search."""

    def execute(self, statement: str, parameters: Any = None) -> Found:
        if "OFFSET" in statement:
            self.asked.append((statement, dict(parameters)))
        return Found()


def test_the_start_of_an_id_is_looked_up_in_the_primary_key(explain):
    first, last = ids_from(first_id_of(MIDDLE)[:7])
    plan = explain(Transaction.sql.IDS_BETWEEN, {"first": first, "last": last, "limit": BATCH})
    check(plan, BATCH + 1)
    assert ["jobs_pkey"] == [node["Index Name"] for node in plan.scans], plan


# Pages and statistics

RANGES = 22
"""Priorities, some of which have jobs."""
LEVEL_ROWS = 5
"""The rows that a (queue, type, priority) may cost beside those that are counted."""


@pytest.mark.parametrize(
    ("now", "counted"), [(LATER, 0), (MIDDLE, BATCH), (FIRST, BATCH)], ids=["due", "both", "later"]
)
def test_queues_are_counted_in_ranges_of_the_index(explain, now, counted):
    explain.connection.execute(PLAN_BY_INDEX)
    pairs = json.dumps(explain.connection.execute("SELECT DISTINCT queue, type FROM treadle.ready").fetchall())
    waiting = Transaction.sql.WAITING_BY_PRIORITY.format(pairs=Transaction.sql.PAIRS)
    plan = explain(waiting, {"now": now, "most": BATCH, "levels": 1000, "pairs": pairs})

    levels = plan.top["Actual Rows"]
    assert 30 <= levels <= 3 * RANGES
    assert [] == plan.sequential, plan
    assert plan.rows <= levels * (counted + LEVEL_ROWS), plan
    assert plan.sorted == 0, plan
    assert [] == [n for n in plan.nodes if "Bitmap" in n["Node Type"]], plan  # which would read a whole level


def test_retries_are_counted_in_their_partial_index(explain):
    explain.connection.execute(
        f"UPDATE treadle.ready SET attempts = 1 WHERE id IN (SELECT id FROM treadle.ready ORDER BY id LIMIT {BATCH})"
    )

    explain.connection.execute(PLAN_BY_INDEX)
    check(explain(Transaction.sql.RETRYING, {"now": LATER, "most": BATCH}))


def test_a_sample_is_read_from_the_end_of_the_table(explain):
    check(explain(Transaction.sql.LATENCY_SAMPLE, {"limit": BATCH, "looked_at": 2 * BATCH}), 2 * BATCH)


def test_failures_are_found_by_their_index(explain):
    check(explain(Transaction.sql.FAILURES, {"limit": BATCH, "now": LATER}), 3 * BATCH)


@pytest.mark.parametrize(
    "statuses", [["completed"], ["failed"], ["completed", "failed", "cancelled"]], ids=lambda names: "+".join(names)
)
def test_pruning_reads_only_old_jobs(explain, statuses):
    before = FIRST + 40 * 100 * 1000
    wanted = {"statuses": json.dumps(statuses), "before": before, "oldest": first_id_of(before), "now": LATER}

    plan = explain(Transaction.sql.PRUNABLE, {**wanted, "limit": BATCH})

    old = 40 * 100
    check(plan, old if statuses == ["failed"] else MOST)


def test_pruning_reads_only_the_waits_for_old_jobs(explain):
    before = FIRST + 40 * 100 * 1000
    fill_waits(explain)
    explain.connection.execute(  # as after an ANALYZE that met dead rows only: the table seems to be empty
        """UPDATE pg_class SET reltuples = 0, relpages = pg_relation_size(oid) / 8192
            WHERE oid = 'treadle.waits'::regclass"""
    )
    wanted = {"statuses": '["completed"]', "before": before, "oldest": first_id_of(before), "now": LATER}

    plan = explain(Transaction.sql.PRUNABLE, {**wanted, "limit": BATCH})

    assert plan.rows <= MOST, plan


def fill_waits(explain):
    """None of them is for a job that is pruned: they are for the youngest half."""
    explain.connection.execute(
        """INSERT INTO treadle.waits (id, tenant, kind, what, step, if_failed, met, since)
           SELECT id, tenant, 'parent', id::text, '', 'hold', 0, 0 FROM treadle.finished WHERE completed_at > %s""",
        [FIRST + (40 * 100 + 21_000) * 1000],
    )


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_pruning_deletes_by_index(explain, status, waits):
    """All jobs from one id to another, or one in a hundred of them: others are between those."""
    before = FIRST + 40 * 100 * 1000
    if waits:
        fill_waits(explain)
    wanted = {"statuses": json.dumps([status]), "before": before, "oldest": first_id_of(before), "now": LATER}

    plan = explain(Transaction.sql.PRUNE, {**wanted, "limit": BATCH})

    check(plan, 12 * BATCH + (40 * 100 if status == "failed" else 0))


def test_deleting_reads_only_what_it_deletes(explain):
    rows = explain.connection.execute(f"SELECT id::text FROM treadle.finished ORDER BY id LIMIT {BATCH}").fetchall()
    ids = {"ids": json.dumps([id for (id,) in rows])}

    for statement in (
        Transaction.sql.DELETE_FINISHED,
        Transaction.sql.DELETE_ATTEMPTS,
        Transaction.sql.DELETE_JOBS,
        Transaction.sql.DELETE_READY,
        Transaction.sql.EXISTING_IDS,
    ):
        check(explain(statement, ids))


class Copied(Tables):
    """Tables that record the statements of a copy."""

    def __init__(self) -> None:
        self.tenant = None
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def _execute(self, sql: str, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        self.asked.append((sql, dict(given)))
        return []


def test_a_copy_reads_one_chunk_of_jobs_at_a_time(explain):
    ids = explain.connection.execute(f"SELECT id::text FROM treadle.jobs j ORDER BY j.id OFFSET 1000 LIMIT {BATCH}")
    (first,), *_, (last,) = ids.fetchall()
    copied = Copied()
    copied.next_ids(first, BATCH)
    copied.places(first, last)

    for statement, parameters in copied.asked:
        check(explain(Transaction.sql.translate(statement), parameters), 3 * BATCH)


def test_one_job_is_found_without_a_scan(explain):
    ((id,),) = explain.connection.execute("SELECT id::text FROM treadle.jobs LIMIT 1").fetchall()

    for statement in (
        Transaction.sql.GET,
        Transaction.sql.IS_STORED,
        Transaction.sql.LEASE_OF_JOB,
        *Transaction.sql.LOCK_JOB,
    ):
        check(explain(statement, {"id": id}), 5)
