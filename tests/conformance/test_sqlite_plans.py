"""The plans of statements whose cost must not grow with unrelated rows."""

from __future__ import annotations

import re

import pytest

from tests.conformance.helpers import DAY, finish, limit, new_job, put_many, take
from treadle.clock import SECOND
from treadle.filters import Filter, parse
from treadle.job import Status
from treadle.outcome import CANCELLED, COMPLETED
from treadle.pauses import NewPause, Target
from treadle.stores.base import TypePolicy
from treadle.stores.sqlite import insert_claim_settle_sql as hot
from treadle.stores.sqlite.connection import Transaction
from treadle.stores.sqlite.sql import SQLiteStatements

pytestmark = pytest.mark.only("sqlite")

IN_ORDER = "treadle_ready_in_order"
FAIR = "treadle_ready_fair"
RANGE = {"queue": "q", "type": "t", "priority": 0, "now": 1}


def plan(store, statement, parameters=()):
    explained = f"EXPLAIN QUERY PLAN {statement}"
    return [row[3] for row in store.database.read("read", lambda tx: tx.execute(explained, parameters).fetchall())]


def of_table(lines, *names):
    return [line for line in lines if any(f" {name} " in f"{line} " for name in names)]


def statements_of(store, call):
    """The statements that `call` runs on a reader, with their parameters filled in."""
    seen = []
    store.open()
    reader = store.database.read("read", lambda tx: tx.connection)
    reader.set_trace_callback(seen.append)
    call()  # it gets the same reader, which was returned last
    reader.set_trace_callback(None)
    return [statement for statement in seen if statement.lstrip().startswith("SELECT")]


PLACES = {"ranges": '[["q", "t", 0, 0, ""]]', "now": 1, "limit": 1}


def test_a_claim_reads_ranges_of_the_index(store):
    lines = of_table(plan(store, hot.READ_RANGES, PLACES), "r")

    assert len(lines) >= 2
    assert all(line.startswith(f"SEARCH r USING COVERING INDEX {IN_ORDER} (queue=? AND type=? AND") for line in lines)
    assert not [line for line in plan(store, hot.READ_RANGES, PLACES) if "TEMP B-TREE" in line]


def test_the_next_due_job_is_found_by_its_index(store):
    [line] = plan(store, hot.NEXT_DUE, {"now": 1, "limit": 1})

    assert line == "SEARCH treadle_ready USING INDEX treadle_ready_later (run_at>?)"


@pytest.mark.parametrize("name", ["EXPIRED", "HAS_EXPIRED"])
def test_what_has_expired_is_found_by_its_index(store, name):
    statement = getattr(SQLiteStatements(), name)
    lines = of_table(plan(store, statement, {"now": 1, "limit": 1}), "treadle_ready")

    assert lines
    assert all("treadle_ready_expiring (start_by<?)" in line for line in lines)


def test_ranges_are_found_by_skipping_through_the_index(store):
    """The first range is at the start of the index: its SCAN ends after one step (LIMIT 1). The others are searched."""
    lines = plan(store, hot.READY_RANGES)
    ready = of_table(lines, "treadle_ready", "r", "n")

    scans = [line for line in ready if line.startswith("SCAN")]
    assert [f"SCAN treadle_ready USING COVERING INDEX {index}" for index in (IN_ORDER, FAIR)] == scans
    jumps = [line.partition(" (")[0] for line in of_table(lines, "n")]
    assert [f"SEARCH n USING COVERING INDEX {index}" for index in (IN_ORDER, IN_ORDER, FAIR, FAIR)] == jumps
    assert of_table(lines, "treadle_types_fair")
    assert [] == [line for line in lines if "TEMP B-TREE" in line]


def test_a_claim_jumps_from_tenant_to_tenant(store):
    row = {**RANGE, "last": "a", "tenants": 5, "wanted": 5, "each": 1}
    lines = of_table(plan(store, Transaction.sql.READ_TURNS, row), "r")

    assert 6 == len(lines)
    assert [f"SEARCH r USING COVERING INDEX {FAIR} (queue=? AND type=? AND priority=? AND tenant>?)"] == lines[1:2]
    assert all(line.startswith("SEARCH r USING COVERING INDEX treadle_ready_") for line in lines)
    sorts = [line for line in plan(store, Transaction.sql.READ_TURNS, row) if "TEMP B-TREE" in line]
    assert ["USE TEMP B-TREE FOR ORDER BY"] == sorts  # of the tenants that were walked


def test_rows_are_moved_to_the_index_by_turns_by_index(store):
    lines = plan(store, Transaction.sql.START_TURNS, {**RANGE, "most": 5})

    assert [line for line in lines if f"{IN_ORDER} (queue=? AND type=? AND priority=? AND run_at<?)" in line]
    assert not [line for line in lines if line.startswith("SCAN treadle_ready") or "TEMP B-TREE" in line]


@pytest.mark.parametrize("name", ["TURNS", "OLDEST_BY_TURNS", "ABOVE_BY_TURNS", "EQUAL_BY_TURNS"])
def test_turns_are_counted_by_their_index(store, name):
    statement = getattr(Transaction.sql, name).format(pairs=Transaction.sql.PAIRS)
    lines = of_table(plan(store, statement, dict.fromkeys(re.findall(r":(\w+)", statement), 1)), "r", "treadle_ready")

    assert lines
    assert all(line.startswith("SEARCH") and (FAIR in line or "PRIMARY KEY" in line) for line in lines)


def put_fair(store, tenant, n, **options):
    options = {"type": "free", "fair": "tenant", **options}
    store.insert([new_job(tenant=tenant, **options) for _ in range(n)])


def fill_with_jobs_of_one_tenant(store, n):
    put_fair(store, "big", n)


def fill_with_jobs_for_later_of_many_tenants(store, n):
    for k in range(n):
        put_fair(store, f"t{k}", 1, delay=60 * SECOND)


def fill_with_a_lower_priority(store, n):
    for k in range(n):
        put_fair(store, f"t{k}", 1, priority=-1)


def fill_with_jobs_of_a_paused_tenant(store, n):
    store.pause(NewPause(target=Target(tenant="a_paused_one"), by="ann"))
    put_fair(store, "a_paused_one", n)
    assert [] == [*take(store, 1), *take(store, 1)]


@pytest.mark.parametrize(
    "fill",
    [
        fill_with_jobs_of_one_tenant,
        fill_with_jobs_for_later_of_many_tenants,
        fill_with_a_lower_priority,
        fill_with_jobs_of_a_paused_tenant,
    ],
    ids=lambda f: f.__name__,
)
def test_a_backlog_does_not_slow_down_a_claim_by_turns(open_store, fill):
    store, steps = open_store(), []
    store.publish([TypePolicy(type="free", fair="tenant")])
    take(store, 1)
    for n in (20, 1200):
        fill(store, n)
        for tenant in "abcde":
            put_fair(store, tenant, 1)
        steps.append(steps_of_a_claim(store, limit=5))
        for id in waiting_of(store, "abcde"):
            store.cancel(id)

    few, many = steps
    assert many < few * 1.2


def waiting_of(store, tenants):
    """Jobs of these tenants that a claim left, because another tenant had a turn."""
    found = store.jobs(Filter(tenants=tuple(tenants), statuses=(Status.PENDING,)), 100)
    return [job.id for job in found.jobs]


def steps_of_a_claim(store, **wanted):
    """How many steps SQLite's virtual machine makes for a claim. This does not depend on the load of the machine."""
    steps = 0

    def count():
        nonlocal steps
        steps += 1

    connection = store.database._writer
    connection.set_progress_handler(count, 1)
    claimed = take(store, **wanted)
    connection.set_progress_handler(None, 0)
    assert 5 == len(claimed)
    return steps


def fill_with_a_full_type(store, n):
    limit(store, "full", 0)
    put_many(store, n, "full", priority=5)


def fill_with_an_unknown_type(store, n):
    put_many(store, n, "a_stranger", priority=5)


def fill_with_jobs_for_later(store, n):
    put_many(store, n, "free", priority=5, delay=60 * SECOND)


def fill_with_another_queue(store, n):
    put_many(store, n, "free", priority=5, queue="another")


def fill_with_finished_jobs(store, n):
    put_many(store, n, "free")
    store.settle([(claimed, COMPLETED) for claimed in take(store, n)])


def fill_with_due_jobs_behind(store, n):
    put_many(store, n, "free", priority=-1)


def fill_with_a_paused_queue(store, n):
    store.pause(NewPause(target=Target(queue="mail"), by="ann"))
    put_many(store, n, "free", priority=5, queue="mail")


def fill_with_a_paused_type(store, n):
    store.pause(NewPause(target=Target(type="full"), by="ann"))
    put_many(store, n, "full", priority=5)


def fill_with_a_paused_tenant(store, n):
    """The first claims that meet its jobs park them."""
    store.pause(NewPause(target=Target(tenant="acme"), by="ann"))
    put_many(store, n, "free", priority=5, tenant="acme")
    assert [] == [*take(store, 1), *take(store, 1)]


@pytest.mark.parametrize(
    "fill",
    [
        fill_with_a_paused_queue,
        fill_with_a_paused_type,
        fill_with_a_paused_tenant,
        fill_with_a_full_type,
        fill_with_an_unknown_type,
        fill_with_jobs_for_later,
        fill_with_another_queue,
        fill_with_finished_jobs,
        fill_with_due_jobs_behind,
    ],
    ids=lambda f: f.__name__,
)
def test_a_backlog_does_not_slow_down_other_claims(open_store, fill):
    store = open_store()
    steps = []
    for n in (20, 1500):
        fill(store, n)
        put_many(store, 5, "free")
        steps.append(steps_of_a_claim(store, limit=5, types={"free": None, "full": None}, queues=("default",)))

    few, many = steps
    assert many < few * 1.2


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (Filter(tenants=("acme",)), "treadle_jobs_by_tenant"),
        (Filter(tenants=("acme",), statuses=(Status.FAILED,)), "treadle_jobs_by_tenant"),
        (Filter(tenants=("acme",), types=("noop",)), "treadle_jobs_by_tenant"),
        (Filter(subjects=("call-7",)), "treadle_jobs_by_subject"),
        (Filter(subjects=("call-7",), statuses=(Status.PENDING, Status.COMPLETED)), "treadle_jobs_by_subject"),
        (Filter(statuses=(Status.FAILED,)), "treadle_finished_not_completed"),
        (Filter(statuses=(Status.CANCELLED,)), "treadle_finished_not_completed"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("before", [None, "0190"], ids=["first page", "later page"])
def test_a_list_uses_the_index_made_for_it(store, wanted, index, before):
    for statement in statements_of(store, lambda: store.jobs(wanted, 10, before)):
        lines = plan(store, statement)

        assert [line for line in lines if index in line and line.startswith("SEARCH")]
        assert [] == [line for line in lines if "TEMP B-TREE" in line]


@pytest.mark.parametrize("status", list(Status))
def test_a_list_by_status_is_read_in_order_from_the_table_of_that_status(store, status):
    """Because of the order, the scan ends with the last row of the page, however many rows there are."""
    (statement,) = statements_of(store, lambda: store.jobs(Filter(statuses=(status,)), 10, "0190"))

    lines = plan(store, statement)

    assert [] == [line for line in lines if "TEMP B-TREE" in line]
    assert "SEARCH" == lines[0].split()[0]
    assert [] == [line for line in lines if line.startswith("SCAN")]


def test_everything_is_listed_in_order_without_a_sort(store):
    (statement,) = statements_of(store, lambda: store.jobs(Filter(), 10))

    lines = plan(store, statement)

    assert [] == [line for line in lines if "TEMP B-TREE" in line]
    assert "treadle_ready" not in lines[0]


def test_counts_by_status_type_and_queue_read_no_jobs(store):
    (statement,) = statements_of(store, lambda: store.counts(("status", "type", "queue")).rows)

    read = {line.split()[1] for line in plan(store, statement) if line.startswith(("SCAN", "SEARCH"))}
    assert {"t", "treadle_tallies", "treadle_leases"} == read


# Pages and statistics


def no_sort_of_a_table(lines):
    return [line for line in lines if "TEMP B-TREE" in line] == []


def test_queues_are_counted_in_ranges_of_the_index(store):
    waiting = Transaction.sql.WAITING_BY_PRIORITY.format(pairs=Transaction.sql.PAIRS)
    lines = plan(store, waiting, {"now": 1, "most": 5, "levels": 9, "pairs": '[["default", "noop"]]'})

    ready = of_table(lines, "r")
    assert 5 == len(ready)
    assert all(line.startswith(f"SEARCH r USING COVERING INDEX {IN_ORDER} (queue=? AND type=?") for line in ready)
    assert no_sort_of_a_table(lines)


def test_retries_are_counted_in_their_partial_index(store):
    lines = plan(store, Transaction.sql.RETRYING, {"now": 1, "most": 5})

    assert ["SCAN treadle_ready USING INDEX treadle_ready_retrying"] == of_table(lines, "treadle_ready")
    assert ["USE TEMP B-TREE FOR GROUP BY"] == [line for line in lines if "TEMP B-TREE" in line]  # of limited rows


def test_a_sample_is_read_from_the_end_of_the_table(store):
    lines = plan(store, Transaction.sql.LATENCY_SAMPLE, {"limit": 5, "looked_at": 10})

    assert ["SCAN treadle_finished"] == of_table(lines, "treadle_finished")  # in the order of its ids, until LIMIT
    assert no_sort_of_a_table(lines)


def test_failures_are_found_by_their_index(store):
    lines = plan(store, Transaction.sql.FAILURES, {"limit": 5, "now": 0})

    used = "SEARCH treadle_finished USING INDEX treadle_finished_not_completed (status=?)"
    assert [used] == of_table(lines, "treadle_finished")
    assert ["SCAN r USING INDEX treadle_ready_retrying"] == of_table(lines, "r")
    sorts = {line for line in lines if "TEMP B-TREE" in line}
    assert {"USE TEMP B-TREE FOR GROUP BY", "USE TEMP B-TREE FOR ORDER BY"} >= sorts  # of limited rows


@pytest.mark.parametrize(
    ("text", "walk"),
    [
        ("type:a", "SCAN j"),
        ("type:a tenant:acme", "SEARCH j USING COVERING INDEX treadle_jobs_by_tenant (tenant=?)"),
        ("type:a subject:s", "SEARCH j USING COVERING INDEX treadle_jobs_by_subject (subject=?)"),
        ("type:a since:1h", "SEARCH j USING PRIMARY KEY (id>?)"),
        ("type:a status:pending", "SCAN r"),
        ("status:retrying", "SCAN r USING INDEX treadle_ready_retrying"),
        ("type:a status:processing", "SCAN l"),
        ("type:a status:failed", "SEARCH f USING COVERING INDEX treadle_finished_not_completed (status=?)"),
        ("type:a status:completed", "SCAN f"),
    ],
)
def test_the_extent_of_a_search_is_found_by_a_walk_over_ids(store, text, walk):
    """The walk is in the order of ids, without a sort and without reading jobs. It ends at its limit."""
    walks = [s for s in statements_of(store, lambda: store.jobs(parse(text), 10)) if "OFFSET" in s]

    assert walks
    for statement in walks:
        assert [walk] == plan(store, statement)


def test_pruning_reads_only_old_jobs(store, clock):
    finish(store, CANCELLED)
    clock.now += DAY

    old = {"oldest": "0190", "before": 1, "now": 1, "statuses": "[]", "limit": 5}

    for statement in (Transaction.sql.PRUNABLE, hot.OLD_BETWEEN):
        lines = plan(store, statement, old)
        assert [line for line in lines if re.match(r"SEARCH \w+ USING PRIMARY KEY \(id<\?\)", line)]
        assert [] == [line for line in lines if "TEMP B-TREE" in line]
    for statement in (hot.KINDS_BETWEEN, hot.DELETE_OLD_BETWEEN, hot.DELETE_JOBS_BETWEEN, *hot.DELETE_HISTORY_BETWEEN):
        lines = plan(store, statement, {**old, "first": "0180", "last": "0190"})
        assert [] == [line for line in lines if line.startswith("SCAN treadle")]


def test_pruning_the_usage_reads_only_old_rows(store):
    lines = plan(store, Transaction.sql.PRUNE_USAGE, {"before": 1, "limit": 5})

    assert [line for line in lines if line.startswith("SEARCH treadle_usage USING PRIMARY KEY (minute<?)")]
    assert [] == [line for line in lines if line.startswith("SCAN treadle_usage") or "TEMP B-TREE" in line]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT o.id, j.status, j.error FROM orders o JOIN treadle_job j ON j.id = o.job WHERE o.id > 5 LIMIT 10",
        "SELECT j.status, count(*) FROM orders o JOIN treadle_job j ON j.id = o.job WHERE o.id > 5 GROUP BY j.status",
        "SELECT status FROM treadle_job WHERE id = 'x'",
        "SELECT status FROM treadle_job WHERE subject = 'x' AND subject <> ''",
    ],
)
def test_the_view_reads_only_the_jobs_that_are_joined(store, query):
    store.open()
    with store.database.writing() as tx:
        tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, job TEXT NOT NULL)")

    assert [] == [line for line in plan(store, query) if line.startswith(("SCAN", "MATERIALIZE"))]


def test_waits_for_jobs_that_have_ended_are_found_by_what_they_wait_for(store):
    these = {"whats": '["x"]', "ids": '["y"]', "limit": 2}
    for name in "WAITERS_OF_ENDED", "MEET_ENDED":
        lines = of_table(plan(store, getattr(Transaction.sql, name), these), "w", "f")
        assert [line.partition(" (")[2] for line in lines] == ["what=?)", "id=?)"], lines


def test_what_all_databases_share_is_sqlite_here(store):
    """Without casts and schemas; and SQLite can prepare every one of them."""
    for name, statement in vars(Transaction.sql).items():
        assert not re.search(r"::|\bCAST\b|\btreadle\.", statement), name
        if not name.startswith("_"):
            text = statement.format(
                by="type, ",
                group="1, type",
                which="true",
                once=Transaction.sql.ONCE,
                pairs=Transaction.sql.PAIRS,
                names="type",
                keys=Transaction.sql.COUNTED_KEYS,
                unit=Transaction.sql.UNIT,
                state="1",
            )
            assert plan(store, text, dict.fromkeys(re.findall(r":(\w+)", text))) is not None, name


def test_the_start_of_an_id_is_looked_up_in_the_primary_key(store):
    [line] = plan(store, Transaction.sql.IDS_BETWEEN, {"first": "a", "last": "b", "limit": 10})
    assert line == "SEARCH j USING PRIMARY KEY (id>? AND id<?)"
