"""Counts and usage have the same sums before, during and after compaction."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.conformance.helpers import (
    RETRIED,
    at_once,
    check_consistency,
    finish,
    on_postgres,
    put,
    put_many,
    select,
    settle_one,
    take,
)
from treadle.outcome import COMPLETED
from treadle.stores.postgres import sql

PLACE = "minute, type, queue, tenant"
SUMS = ", ".join(f"CAST(sum({name}) AS bigint)" for name in ("runs", "completed", "failures", "busy", "waiting"))


def usage(store):
    return select(store, f"SELECT {PLACE}, {SUMS} FROM treadle.usage GROUP BY {PLACE} ORDER BY {PLACE}")


def sums(store):
    return store.counts(("status", "type", "queue")).rows, usage(store)


def rows(store, table):
    return select(store, f"SELECT count(*) FROM treadle.{table}")[0][0]


def work(store, clock, types=("a", "b")):
    """Make jobs of some types, in every state."""
    for type in types:
        put_many(store, 3, type)
        clock.advance(2)
        first, second, _ = take(store, types={type: None})
        clock.advance(1)
        settle_one(store, first, RETRIED)
        settle_one(store, second, COMPLETED)


def test_compaction_changes_no_sum(store, clock):
    work(store, clock)
    before = sums(store)

    store.compact()
    assert before == sums(store)

    work(store, clock, ("c",))
    again = sums(store)
    store.compact()
    store.compact()
    assert again == sums(store)


def test_compaction_leaves_one_row_for_each_sum(store, clock):
    work(store, clock)

    left = store.compact()

    counts, used = sums(store)
    assert (len(used), len(counts)) == (rows(store, "usage"), len([c for c in counts if c["count"]]))
    assert (rows(store, "tallies") + rows(store, "usage") if on_postgres(store) else 0) == left


def test_compaction_removes_sums_of_zero(store):
    store.delete(put(store).id)

    store.compact()

    assert [] == store.counts(()).rows
    assert not on_postgres(store) or 0 == rows(store, "tallies")


def test_usage_of_an_hour_ago_is_kept_as_it_is(store, clock):
    finish(store, COMPLETED)
    clock.advance(2 * 3600)
    finish(store, COMPLETED)
    before = usage(store)

    store.compact()

    assert 2 == len(before)
    assert before == usage(store)


@pytest.mark.only("sqlite")
def test_in_a_sqlite_file_there_is_nothing_to_compact(store, clock):
    work(store, clock)
    before = store.changes(), rows(store, "tallies"), sums(store)

    assert 0 == store.compact()

    assert before == (store.changes(), rows(store, "tallies"), sums(store))


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_sums_are_exact_during_a_compaction(store, clock, end):
    work(store, clock)
    before = sums(store)

    with psycopg.connect(store.url) as folder:
        folder.execute(sql.LOCK_COMPACTING)
        folder.execute(sql.COMPACT_TALLIES)
        folder.execute(sql.COMPACT_USAGE.replace(":since", "0"))
        assert before == sums(store)
        assert 0 == store.compact()

        work(store, clock, ("c",))
        meanwhile = sums(store)
        check_consistency(store)
        getattr(folder, end)()

    assert before != meanwhile
    assert meanwhile == sums(store)
    store.compact()
    assert meanwhile == sums(store)


def test_concurrent_compactions_count_nothing_twice(open_store):
    handles = [open_store() for _ in range(3)]
    handles[0].open()
    working, rounds = threading.Event(), 30
    working.set()

    def move():
        for _ in range(rounds):
            put_many(handles[0], 2)
            handles[0].settle([(c, COMPLETED) for c in take(handles[0])])
        working.clear()

    def compact(store):
        while working.is_set():
            store.compact()
            total = sum(row["count"] for row in store.counts(()).rows)
            assert total % 2 == 0, total

    answers = at_once(move, *(lambda store=store: compact(store) for store in handles[1:]))

    assert [None] * 3 == answers
    assert [{"status": "completed", "count": 2 * rounds}] == handles[0].counts(("status",)).rows
    assert 2 * rounds == sum(row[4] for row in usage(handles[0]))
