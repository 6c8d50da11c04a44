"""The plans of statements whose cost must not grow with unrelated rows, at 200,000 waiting jobs.

A plan is made from statistics, which may be missing or old when a queue fills up. Each statement is checked with
fresh ones, with none, and with those of empty tables; and as a prepared statement, which is planned without values.
One file, because all tests share a database that takes seconds to fill.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import psycopg
import pytest

from tests.conformance.conftest import make_tables
from treadle.filters import Filter, parse
from treadle.ids import first_id_of, new_id
from treadle.job import Status
from treadle.stores.base import RECLAIM_AFTER
from treadle.stores.postgres import at_once_sql
from treadle.stores.postgres import insert_claim_settle_sql as hot
from treadle.stores.postgres.connection import Transaction
from treadle.stores.postgres.sql import BEGIN, PostgresStatements
from treadle.stores.shared import search

WAITING = 200_000
RUNNING = 2_000
ENDED = 50_000
BATCH = 50
MOST = 3 * BATCH
"""Rows that a statement may read per job of a batch: the row itself, its job, and one other."""

OURS = ("ready", "leases", "jobs", "finished", "attempts", "dedupe", "lease_keys", "openings", "buckets")
FIRST = 1_790_000_000_000_000
"""When the first job was created, in microseconds."""

# An id that contains its time, as treadle's ids do, and then its number.
ID = f"""
(lpad(to_hex(({FIRST} + n * 1000) / 1000), 12, '0') || '7000' || '8000' || lpad(to_hex(n), 12, '0'))::uuid
""".strip()

# Ten types in two queues with three priorities. One job in a hundred has a limited type.
FILL = f"""
CREATE TEMP TABLE made AS
SELECT n, {ID} AS id, CASE WHEN n % 100 = 0 THEN 'limited' ELSE 'type-' || n % 10 END AS type,
       'queue-' || n % 2 AS queue, CASE WHEN n % 50 = 0 THEN 'acme' ELSE '' END AS tenant,
       CASE WHEN n % 500 = 0 THEN 'call-' || n % 7 ELSE '' END AS subject, (n % 3)::integer AS priority,
       {FIRST} + n * 1000 AS at
  FROM generate_series(1, {WAITING + RUNNING + ENDED}) n;
INSERT INTO treadle.jobs
SELECT id, type, queue, tenant, subject, '{{}}', priority, 5, CASE WHEN n % 5 = 0 THEN 'key-' || n END, NULL, at
  FROM made;
INSERT INTO treadle.finished
SELECT id, n, 1, CASE WHEN n % 100 = 1 THEN 'failed' ELSE 'completed' END, queue, type, tenant, 1, 0, 'w', at,
       at, at + 1000
  FROM made WHERE n <= {ENDED};
INSERT INTO treadle.leases
SELECT id, n, 1, queue, type, tenant, 1, 0, 0, 'w' || n % 20, at, at
  FROM made WHERE n > {ENDED} AND n <= {ENDED + RUNNING};
INSERT INTO treadle.ready
SELECT id, queue, type, tenant, priority, at, 0, 0, 0, at FROM made WHERE n > {ENDED + RUNNING};
INSERT INTO treadle.dedupe SELECT tenant, 'key-' || n, id FROM made WHERE n > {ENDED} AND n % 5 = 0;
INSERT INTO treadle.attempts
SELECT id, tenant, n, 1, 'w', at, at, 'retried', 'e', 't' FROM made WHERE n <= {ENDED};
INSERT INTO treadle.lease_keys
SELECT 'api', tenant, id, n, tenant FROM made WHERE n > {ENDED} AND n <= {ENDED + RUNNING};
INSERT INTO treadle.openings (name, key, at, held)
SELECT 'api', 'key-' || n, at, 0 FROM made WHERE n > {ENDED} AND n <= {ENDED + RUNNING};
INSERT INTO treadle.buckets (name, key, full_at)
SELECT 'api', 'key-' || n, at * 1000 FROM made WHERE n > {ENDED} AND n <= {ENDED + RUNNING};
INSERT INTO treadle.types VALUES ('limited', 'queue-0', 0, 5, NULL, NULL, 0);
"""

# A type by turns. One of its tenants has nearly all jobs, 200 others have 20 each.
BY_TURNS = 40_000
FILL_BY_TURNS = f"""
CREATE TEMP TABLE fair AS
SELECT n, {ID} AS id, CASE WHEN n % 10 = 0 THEN 'tenant-' || n / 10 % 200 ELSE 'big' END AS tenant,
       {FIRST} + n * 1000 AS at
  FROM generate_series({WAITING + RUNNING + ENDED + 1}, {WAITING + RUNNING + ENDED + BY_TURNS}) n;
INSERT INTO treadle.jobs SELECT id, 'fair', 'fair', tenant, '', '{{}}', 2, 5, NULL, NULL, at FROM fair;
INSERT INTO treadle.ready SELECT id, 'fair', 'fair', tenant, 2, at, 0, 0, 0, at, 'fair' FROM fair;
INSERT INTO treadle.types VALUES ('fair', 'fair', 2, 5, NULL, NULL, 0, '[]', '', '[]', 'tenant');
"""

# Statistics are rows of pg_statistic. The planner's idea of a table's size is in pg_class.
FORGET = """
DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'treadle'::regnamespace);
UPDATE pg_class SET reltuples = {tuples}, relpages = 0, relallvisible = 0
 WHERE relnamespace = 'treadle'::regnamespace AND relkind IN ('r', 'i')
"""
STATISTICS = {
    "fresh": "ANALYZE",
    "never analysed": FORGET.format(tuples=-1),
    "analysed when empty": FORGET.format(tuples=0),
}
NAME = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)")

PLANS = {"custom": "force_custom_plan", "generic": "force_generic_plan"}


@pytest.fixture(scope="module")
def filled(postgres_databases) -> Iterator[str]:
    """A database with many jobs. No test commits a change to it."""
    url = postgres_databases.fresh()
    make_tables(url)
    with psycopg.connect(url, autocommit=True) as connection:
        for table in OURS:  # autovacuum must not refresh the statistics
            connection.execute(f"ALTER TABLE treadle.{table} SET (autovacuum_enabled = false)")
        connection.execute(FILL)
        connection.execute(FILL_BY_TURNS)
    yield url
    postgres_databases.drop(url)


@pytest.fixture(scope="module", params=STATISTICS)
def statistics(filled, request) -> str:
    with psycopg.connect(filled, autocommit=True) as connection:
        connection.execute(STATISTICS[request.param])
    return filled


@pytest.fixture(params=PLANS)
def explain(statistics, request) -> Iterator[Explain]:
    with psycopg.connect(statistics, autocommit=True) as connection:
        connection.execute(f"SET plan_cache_mode = {PLANS[request.param]}")
        connection.execute(BEGIN)
        yield Explain(connection)
        connection.execute("ROLLBACK")


class Explain:
    """Runs a prepared statement and returns its plan. Its changes are rolled back after the test."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def __call__(self, statement: str, parameters: dict[str, Any]) -> Plan:
        names = list(dict.fromkeys(NAME.findall(statement)))
        values = [parameters[name] for name in names]
        text = NAME.sub(lambda match: f"${names.index(match[1]) + 1}", statement)
        self.connection.execute("DEALLOCATE ALL")
        types = f" ({', '.join(map(type_of, values))})" if values else ""
        self.connection.execute(f"PREPARE p{types} AS {text}")
        cursor = psycopg.ClientCursor(self.connection)
        execute = f"EXECUTE p ({', '.join(['%s'] * len(names))})" if names else "EXECUTE p"
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {execute}", values)
        return Plan(cursor.fetchone()[0][0]["Plan"])


def type_of(value: Any) -> str:
    """The type that psycopg sends. The server infers the type of a text."""
    if isinstance(value, list):
        return f"{'text' if isinstance(value[0], str) else 'bigint'}[]"
    return "unknown" if isinstance(value, str) else "bigint"


class Plan:
    """An executed plan, as nodes."""

    def __init__(self, top: dict[str, Any]) -> None:
        self.top = top
        self.nodes = list(self._below(top))

    def __repr__(self) -> str:
        """The plan as lines, for the message of a failed test."""
        lines = [f"{self.rows} rows, {self.sorted} sorted, {self.blocks} blocks"]
        for n in self.nodes:
            names = ("Node Type", "Relation Name", "Index Name", "Index Cond", "Filter", "Actual Loops", *WASTED)
            lines.append(" ".join([*(str(n[name]) for name in names if name in n), f"→ {n['Actual Rows']}"]))
        return "\n".join(lines)

    def _below(self, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node.get("Plans", ()):
            yield from self._below(child)

    @property
    def scans(self) -> list[dict[str, Any]]:
        return [n for n in self.nodes if n.get("Relation Name") in OURS and n["Node Type"] != "ModifyTable"]

    @property
    def sequential(self) -> list[str]:
        """Tables that were read completely."""
        return [n["Relation Name"] for n in self.scans if n["Node Type"] == "Seq Scan" and n["Actual Loops"]]

    @property
    def rows(self) -> float:
        """Rows that were read from treadle's tables, including those that were filtered out."""
        return sum(_rows(n) for n in self.scans)

    @property
    def sorted(self) -> float:
        """The most rows that one step sorted."""
        return max((_rows(n["Plans"][0]) for n in self.nodes if n["Node Type"] in SORTS), default=0)

    def taken(self, table: str) -> float:
        """How many rows of a table were deleted."""
        return sum(
            n["Actual Rows"] for n in self.nodes if (n.get("Operation"), n.get("Relation Name")) == ("Delete", table)
        )

    @property
    def blocks(self) -> int:
        return self.top["Shared Hit Blocks"] + self.top["Shared Read Blocks"]


SORTS = ("Sort", "Incremental Sort")
WASTED = ("Rows Removed by Filter", "Rows Removed by Index Recheck", "Rows Removed by Join Filter")


def _rows(node: dict[str, Any]) -> float:
    return (node["Actual Rows"] + sum(node.get(name, 0) for name in WASTED)) * node["Actual Loops"]


def check(plan: Plan, most: int = MOST) -> None:
    assert [] == plan.sequential, plan
    assert plan.sorted <= BATCH, plan
    assert plan.rows <= most, plan
    assert plan.blocks <= BLOCKS * BATCH, plan


def test_what_has_expired_is_found_by_its_index(explain):
    """None of the 200,000 expires."""
    for name in ("EXPIRED", "HAS_EXPIRED"):
        check(explain(getattr(PostgresStatements(), name), {"now": FIRST, "limit": BATCH}), 1)


BLOCKS = 30
"""Pages that may be touched for one job: three levels of an index, and a page of each table and index."""


# Claim

RANGE = ("queue-1", "type-1", 2)
LATER = FIRST + 2 * WAITING * 1000
MIDDLE = FIRST + (ENDED + WAITING // 2) * 1000
START = (-(1 << 63), "00000000-0000-0000-0000-000000000000")
SOMEWHERE = (MIDDLE, new_id())
LEVELS = 40
"""The number of (queue, type, priority), rounded up."""
QUEUES = json.dumps(["queue-0", "queue-1"])
EVERY_RANGE = [(f"queue-{n % 2}", f"type-{n}", 2) for n in range(10)]
from_where = pytest.mark.parametrize("position", [START, SOMEWHERE], ids=["from the start", "from a cursor"])


def test_ranges_are_found_by_skipping_through_the_index(explain):
    check(explain(hot.READY_RANGES, {}))


def test_a_limited_type_is_counted_in_the_leases_only(explain):
    """There are as many leases as running jobs."""
    plan = explain(KEY_USES, {"grace": RECLAIM_AFTER, "now": LATER, "keys": json.dumps([("type:limited", "")])})

    assert plan.rows <= RUNNING + MOST, plan
    assert {"leases"} >= set(plan.sequential), plan


@from_where
def test_a_range_is_read_from_its_start_or_from_a_cursor(explain, position):
    ranges = json.dumps([(*RANGE, *position)])

    check(explain(hot.READ_RANGES, {"ranges": ranges, "now": LATER, "limit": BATCH}))


def test_several_ranges_are_read_separately(explain):
    ranges = json.dumps([(*place, *START) for place in EVERY_RANGE])

    check(explain(hot.READ_RANGES, {"ranges": ranges, "now": LATER, "limit": BATCH // 10}))


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
    plan = explain(statement, {**row, "now": LATER, "worker": "", "token": 1, "unlimited": 0})

    assert [] == plan.sequential, plan
    assert BATCH == plan.taken("ready"), plan
    assert plan.rows <= MOST + 3 * len(types) * BATCH + 2 * LEVELS, plan
    assert plan.blocks <= BLOCKS * BATCH, plan


def test_a_claim_at_once_that_something_hinders_reads_little(explain):
    row = {"limit": BATCH, "looked_at": 100, "timeouts": "{}", "queues": QUEUES, "unlimited": 0}
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


def test_ranges_by_turns_are_found_by_skipping_through_their_index(explain):
    check(explain(hot.READY_RANGES, {}))


def test_a_claim_by_turns_reads_only_what_it_takes(explain):
    rows = explain.connection.execute(f"SELECT id::text FROM treadle.ready WHERE parked = 'fair' LIMIT {BATCH}")
    ids = json.dumps([id for (id,) in rows])
    plan = explain(hot.INSERT_LEASES_OF, {"ids": ids, "now": LATER, "worker": "w", "token": 1, "timeouts": "{}"})

    check(plan)
    assert BATCH == plan.taken("ready"), plan


def test_rows_are_moved_to_the_index_by_turns_by_index(explain):
    row = {"queue": "queue-1", "type": "type-3", "priority": 2, "now": LATER, "most": BATCH}

    check(explain(Transaction.sql.START_TURNS, row))


def test_turns_are_counted_by_their_index(explain):
    explain.connection.execute(hot.PLAN_BY_INDEX)
    place = {"tenant": "big", "run_at": FIRST + (ENDED + RUNNING + BATCH) * 1000, "id": new_id(), "limit": BATCH}
    pairs = json.dumps([("fair", "fair")])

    check(explain(Transaction.sql.TURNS, {**FAIR, **WALK, **place}), 2 * MOST)
    check(explain(Transaction.sql.EQUAL_BY_TURNS, {**FAIR, **place}))
    check(explain(Transaction.sql.ABOVE_BY_TURNS, {**FAIR, **place, "priority": 1}))
    oldest = Transaction.sql.OLDEST_BY_TURNS.format(pairs=Transaction.sql.PAIRS)
    check(explain(oldest, {"now": LATER, "most": BATCH, "pairs": pairs}), 3 * MOST)


PAUSE_ACME = "INSERT INTO treadle.pauses VALUES ('acme', '', '', 'ann', '', 0, NULL, 0)"


# Limits

KEY_USES = Transaction.sql.KEY_USES.format(keys=Transaction.sql.KEYS, unit=Transaction.sql.UNIT)
SOME_KEYS = [("api", f"key-{ENDED + 1 + n}") for n in range(BATCH)]


def waiting(explain, n=BATCH):
    rows = explain.connection.execute("SELECT id::text FROM treadle.ready ORDER BY id LIMIT %s", [n]).fetchall()
    return [id for [id] in rows]


def test_the_use_of_keys_is_found_by_key(explain):
    check(explain(KEY_USES, {"grace": RECLAIM_AFTER, "now": LATER, "keys": json.dumps(SOME_KEYS)}))


def test_candidates_are_locked_leased_and_parked_by_their_ids(explain):
    some = {"ids": json.dumps(waiting(explain)), "now": LATER}
    check(explain(hot.LIMIT_VALUES, {**some, "paths": '[["a", "b"]]'}))
    parked = json.dumps([(id, "limit:api\x1facme") for id in waiting(explain)])
    check(explain(Transaction.sql.PARK_FOR, {"rows": parked}), 4 * BATCH)
    worker = {"worker": "w1", "timeouts": "{}", "token": 1}
    check(explain(hot.INSERT_LEASES_OF, {**some, **worker}), 4 * BATCH)


def test_openings_are_found_by_their_time_and_key(explain):
    check(explain(Transaction.sql.OPENINGS, {"now": LATER, "most": BATCH}))
    rows = json.dumps([(*key, LATER + 1, "limit:api") for key in SOME_KEYS])
    check(explain(Transaction.sql.ADD_OPENINGS, {"rows": rows, "now": LATER}))
    check(explain(Transaction.sql.NEXT_OPENING, {}))
    check(explain(Transaction.sql.EMPTY_BUCKETS, {"keys": json.dumps(SOME_KEYS)}))


def test_rows_that_are_parked_for_keys_are_found_by_jumps(explain):
    explain.connection.execute("UPDATE treadle.ready SET parked = 'limit:' || tenant WHERE queue < 'queue-5'")
    rows = json.dumps([("limit:acme", 3), ("limit:none", 3)])
    check(explain(Transaction.sql.UNPARK_KEYS, {"rows": rows, "most": 3}), 10 * BATCH)


def test_released_keys_are_found_by_the_jobs(explain, held):
    ids = json.dumps([id for id, _ in held])
    [release] = Transaction.sql.RELEASE_LIMITS
    check(explain(release, {"ids": ids, "keyed": ids, "now": LATER}), 3 * BATCH)


# Settle


@pytest.fixture
def held(explain):
    """A batch of leases, one of which the caller has lost."""
    rows = explain.connection.execute(f"SELECT id::text, lease FROM treadle.leases ORDER BY lease LIMIT {BATCH}")
    (*ours, (lost, number)) = rows.fetchall()
    return [*ours, (lost, number + 1_000_000)]


def test_a_completion_reads_only_the_jobs_that_it_ends(explain, held):
    ids, numbers = [id for id, _ in held], [number for _, number in held]

    plan = explain(hot.COMPLETE, {"ids": ids, "numbers": numbers, "tokens": [1] * BATCH, "now": LATER})

    check(plan)
    assert BATCH - 1 == plan.taken("leases"), plan


@pytest.mark.parametrize("status", ["failed", None], ids=["ended", "waiting again"])
def test_settling_reads_only_the_jobs_that_it_settles(explain, held, status):
    rows = json.dumps([(id, n, 1, status, 1, None, "e", LATER, 0, None, "failed", "t", 1, "") for id, n in held])

    plan = explain(hot.SETTLE, {"rows": rows, "now": LATER})

    check(plan)
    assert BATCH - 1 == plan.taken("leases"), plan


def test_dedupe_keys_are_released_by_job_id(explain, held):
    check(explain(hot.RELEASE_KEYS, {"ids": json.dumps([id for id, _ in held]), "now": 0}))


# Manage


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

    explain.connection.execute(hot.PLAN_BY_INDEX)
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

    explain.connection.execute(hot.PLAN_BY_INDEX)
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


# Pages and statistics

RANGES = 22
"""Priorities, some of which have jobs."""
LEVEL_ROWS = 5
"""The rows that a (queue, type, priority) may cost beside those that are counted."""


@pytest.mark.parametrize(
    ("now", "counted"), [(LATER, 0), (MIDDLE, BATCH), (FIRST, BATCH)], ids=["due", "both", "later"]
)
def test_queues_are_counted_in_ranges_of_the_index(explain, now, counted):
    explain.connection.execute(hot.PLAN_BY_INDEX)
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

    explain.connection.execute(hot.PLAN_BY_INDEX)
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


def test_one_job_is_found_without_a_scan(explain):
    ((id,),) = explain.connection.execute("SELECT id::text FROM treadle.jobs LIMIT 1").fetchall()

    for statement in (
        Transaction.sql.GET,
        Transaction.sql.IS_STORED,
        Transaction.sql.LEASE_OF_JOB,
        *Transaction.sql.LOCK_JOB,
    ):
        check(explain(statement, {"id": id}), 5)
