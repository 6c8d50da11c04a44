"""Statistics over all jobs: queues, usage, latency, failures, and what workers do."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta

import pytest

from tests.conformance.helpers import (
    FAILED,
    HOUR,
    RETRIED,
    SNOOZED,
    enlist,
    finish,
    limit,
    new_job,
    put,
    put_many,
    settle_one,
    take,
)
from treadle import Treadle
from treadle.clock import MINUTE, SECOND, to_datetime
from treadle.errors import BadOption
from treadle.filters import Filter, Prefix
from treadle.job import Count
from treadle.outcome import CANCELLED, COMPLETED, RELEASED, Outcome, OutcomeKind
from treadle.stores.shared import stats

LATER = Outcome(OutcomeKind.RETRIED, error="TimeoutError: no answer", delay=600 * SECOND)


@pytest.fixture
def td(store, clock):
    """An app on the same database."""
    app = Treadle(store.url, clock=clock)
    yield app
    app.close()


# Queues


def stats_of(store, queue, type):
    [row] = [row for row in store.queue_stats() if (row.queue, row.type) == (queue, type)]
    return row


def test_without_jobs_there_are_no_queue_stats(store):
    assert [] == store.queue_stats()


def test_queue_stats_count_jobs_that_wait_run_and_have_ended(store):
    for outcome in (COMPLETED, COMPLETED, FAILED, CANCELLED, LATER):
        claimed = [put(store, "mail", queue="q"), *take(store)][1]
        assert settle_one(store, claimed, outcome)
    put_many(store, 3, "mail", queue="q")
    take(store, 1)
    put_many(store, 4, "mail", queue="q", delay=HOUR)

    row = stats_of(store, "q", "mail")

    assert (2, 4, 1) == (row.counts["queued"], row.counts["scheduled"], row.counts["retrying"])
    assert (1, 2, 1, 1) == (
        row.counts["processing"],
        row.counts["completed"],
        row.counts["failed"],
        row.counts["cancelled"],
    )
    assert (None, True) == (row.limit, row.exact)


def test_queue_stats_are_by_queue_and_type(store):
    for queue, type in (("b", "x"), ("a", "y"), ("a", "x")):
        put(store, type, queue=queue)

    assert [("a", "x"), ("a", "y"), ("b", "x")] == [(row.queue, row.type) for row in store.queue_stats()]


def test_of_very_many_queues_and_types_the_largest_have_rows_and_one_row_sums_the_others(store):
    most, more = stats.MOST_QUEUES, 3
    store.insert([new_job(f"type-{n:04}") for n in range(most + more - 1)])
    put_many(store, 5, "mail", queue="zone", delay=HOUR)

    *rows, others = store.queue_stats()

    assert [("default", f"type-{n:04}") for n in range(most - 1)] == [(row.queue, row.type) for row in rows[:-1]]
    assert ("zone", "mail", 5, 0) == (rows[-1].queue, rows[-1].type, rows[-1].counts["scheduled"], rows[-1].others)
    assert all(row.exact and row.oldest_due for row in rows[:-1])
    assert ("", "", more, False) == (others.queue, others.type, others.others, others.exact)
    assert {"queued": more} == {state: n for state, n in others.counts.items() if n}


def test_counts_include_what_has_no_row_of_its_own(store):
    types = [f"type-{n:04}" for n in range(stats.MOST_QUEUES + 3)]
    store.insert([new_job(type) for type in types])
    put(store, types[0], delay=HOUR)
    states = [{"state": "queued", "count": len(types)}, {"state": "scheduled", "count": 1}]

    assert states == store.counts(("state",)).rows
    assert [{"count": len(types) + 1}] == store.counts(()).rows
    assert [{"state": "queued", "count": 1}] == store.counts(("state",), Filter(types=(types[-1],))).rows
    assert [{"count": 1}] == store.counts((), Filter(types=(types[-1],), statuses=("queued",))).rows
    assert [{"type": type, "count": 1} for type in types[1:]] == store.counts(("type",)).rows[1:]
    by_both = store.counts(("type", "state"), Filter(types=(Prefix("type-100"),))).rows
    assert [{"type": type, "state": "queued", "count": 1} for type in types[1000:]] == by_both


def test_the_oldest_and_the_next_are_found_at_every_priority(store, clock):
    now = clock()
    for priority, (due, later) in {5: (10, 40), 0: (30, 20), -3: (20, 30)}.items():
        put(store, priority=priority, run_at=now - due * SECOND)
        put(store, priority=priority, run_at=now - 1)
        put(store, priority=priority, run_at=now + later * SECOND)
        put(store, priority=priority, run_at=now + HOUR)
    put(store, priority=9, run_at=now + 25 * SECOND)

    row = stats_of(store, "default", "noop")

    assert (now - 30 * SECOND, now + 20 * SECOND) == (row.oldest_due, row.next_due)
    assert (6, 7) == (row.counts["queued"], row.counts["scheduled"])


def test_a_job_that_is_due_now_counts_as_queued(store, clock):
    put(store, run_at=clock())
    put(store, run_at=clock() + 1)

    row = stats_of(store, "default", "noop")

    assert (1, 1, clock(), clock() + 1) == (
        row.counts["queued"],
        row.counts["scheduled"],
        row.oldest_due,
        row.next_due,
    )


def test_queue_stats_show_the_limit_of_the_type(store):
    limit(store, "noop", 3)
    put(store)

    assert 3 == stats_of(store, "default", "noop").limit


def test_queue_stats_without_waiting_jobs_have_no_oldest_job(store):
    finish(store, COMPLETED)

    row = stats_of(store, "default", "noop")

    assert (0, None, None) == (row.counts["queued"], row.oldest_due, row.next_due)


# Usage


def journal(store, clock, runs):
    """Make runs in many minutes. Return them: (second, type, queue, tenant, outcome, busy, waiting)."""
    chance, written = random.Random(7), []
    for _ in range(runs):
        place = {name: chance.choice(("a", "b")) for name in ("type", "queue")} | {"tenant": chance.choice(("", "t"))}
        put(store, **place)
        clock.advance(waited := chance.randrange(5))
        [claimed] = take(store)
        clock.advance(ran := chance.randrange(40))
        outcome = chance.choice((COMPLETED, FAILED, CANCELLED, LATER))
        settle_one(store, claimed, outcome)
        written.append((clock() // SECOND, *place.values(), outcome, ran, waited))
        if outcome is LATER:
            store.cancel(claimed.id)
    return written


def summed(written, by, step):
    names = ("type", "queue", "tenant")
    sums = defaultdict(lambda: [0, 0, 0, 0, 0])
    for second, type, queue, tenant, outcome, ran, waited in written:
        place = dict(zip(names, (type, queue, tenant), strict=True))
        key = (second // 60 * 60 // step * step, *(place[name] for name in by))
        for i, n in enumerate((1, outcome is COMPLETED, outcome in (FAILED, LATER), ran, waited)):
            sums[key][i] += n
    return [(key, *numbers) for key, numbers in sorted(sums.items())]


def by_key(usage):
    return [((int(u.at.timestamp()), *u.key), u.runs, u.completed, u.failures, u.busy, u.waiting) for u in usage]


def test_usage_equals_the_sums_of_all_runs(store, clock):
    written = journal(store, clock, 60)
    first, last = written[0][0] // 60 * 60, clock() // SECOND + 1

    for by in ((), ("type",), ("queue", "type"), ("tenant", "type", "queue")):
        for step in (60, 300, 3600):
            assert by_key(store.usage(first, last, step, by)) == summed(written, by, step), (by, step)
    of_t = [run for run in written if run[3] == "t"]
    assert by_key(store.usage(first, last, 60, ("type",), "t")) == summed(of_t, ("type",), 60)
    assert [] == store.usage(first, last, 60, ("type",), "nobody")
    of_a = [run for run in written if run[1] == "a"]
    assert by_key(store.usage(first, last, 60, ("queue",), type="a")) == summed(of_a, ("queue",), 60)
    for by in ((), ("type",), ("tenant", "queue")):
        for step in (300, 1 << 40):
            most = sorted(summed(written, by, 1 << 40), key=lambda row: (-row[1], row[0]))[:2]
            kept = [row for row in summed(written, by, step) if row[0][1:] in {key[1:] for key, *_ in most}]
            assert by_key(store.usage(first, last, step, by, most=2)) == kept, (by, step)


def test_a_released_job_does_not_count_as_a_run(store):
    put(store)
    settle_one(store, take(store)[0], RELEASED)

    assert [] == store.usage(0, 1 << 40, 60, ("type",))


def test_a_range_of_usage_includes_its_start_and_excludes_its_end(store, clock, td):
    """So the usage of consecutive hours counts each run once."""
    start = to_datetime(clock())
    for _ in range(4):
        finish(store, COMPLETED)
        clock.advance(60)
    minute = timedelta(minutes=1)

    def runs(since, until):
        return sum(used.runs for used in td.usage(since, until))

    assert 1 == runs(start, start + minute)
    assert 2 == runs(start + minute, start + 3 * minute)
    assert 4 == runs(start, start + 4 * minute)
    assert 2 == runs(start + minute / 2, start + minute * 1.5)  # a minute always counts as a whole
    assert 0 == runs(start - minute, start)


def test_usage_up_to_now_includes_runs_that_ended_just_now(store, clock, td):
    finish(store, COMPLETED)

    assert 1 == sum(used.runs for used in td.usage())
    clock.advance(3600)
    assert 1 == sum(used.runs for used in td.usage(timedelta(hours=1)))
    clock.advance(60)
    assert 0 == sum(used.runs for used in td.usage(timedelta(hours=1)))


@pytest.mark.parametrize("wrong", [{"by": ("colour",)}, {"by": "status"}, {"step": 30}, {"step": 90}, {"step": 0}])
def test_usage_by_an_unknown_field_is_refused(td, wrong):
    with pytest.raises(BadOption):
        td.usage(**wrong)


# Speed, failures, problems


def test_latency_is_measured_over_the_newest_jobs(store, clock, td):
    for ran in (1, 2, 3):
        put(store, "mail", queue="q")
        clock.advance(5)
        [claimed] = take(store)
        clock.advance(ran)
        settle_one(store, claimed, COMPLETED if ran < 3 else FAILED)
    store.cancel(put(store).id)  # which never ran

    assert [("mail", "q", 5 * SECOND, ran * SECOND) for ran in (3, 2, 1)] == store.latency_sample()
    assert (3, 5.0, 2.0, 3.0) == tuple(
        getattr(td.latency()["mail"], n) for n in ("jobs", "wait_p50", "run_p50", "run_p95")
    )


def test_latency_does_not_read_many_jobs_that_never_ran(store, monkeypatch):
    monkeypatch.setattr(stats, "SAMPLED_FROM", 5)
    finish(store, COMPLETED)
    for _ in range(4):
        store.cancel(put(store).id)

    assert 1 == len(store.latency_sample())
    store.cancel(put(store).id)
    assert [] == store.latency_sample()


def test_failures_are_grouped_by_type_and_error_with_the_latest_first(store, clock, td):
    errors = ("KeyError: 'a'", "KeyError: 'b'", "Boom", None, "ValueError: x: y")
    made = {}
    for type in ("mail", "resize"):
        for error in errors:
            clock.advance(1)
            made[type, error] = finish(store, Outcome(OutcomeKind.FAILED, error=error), type=type)
    finish(store, COMPLETED), finish(store, CANCELLED)
    settle_one(store, [put(store), *take(store)][1], RETRIED)

    groups = [group for group in td.failures() if group.count]

    last, first = made["mail", "KeyError: 'b'"], made["mail", "KeyError: 'a'"]
    assert [("resize", e, n) for e, n in (("ValueError", 1), ("", 1), ("Boom", 1), ("KeyError", 2))] == [
        (group.type, group.error, group.count) for group in groups[:4]
    ]
    assert (last.id, first.completed_at, last.completed_at) == (groups[7].sample, groups[7].first_at, groups[7].last_at)
    assert 10 == sum(group.count for group in groups)


def test_errors_of_jobs_that_wait_for_a_retry_are_among_the_failures(store, clock, td):
    """They are counted separately, because they may still complete."""
    boom = Outcome(OutcomeKind.RETRIED, delay=HOUR, error="KeyError: 'a'")
    put_many(store, 2)
    for claimed in take(store, 2):
        settle_one(store, claimed, boom)
    failed = finish(store, Outcome(OutcomeKind.FAILED, error="KeyError: 'b'"))
    put(store, delay=HOUR)  # scheduled: it has no error

    [group] = td.failures()

    assert ("noop", "KeyError", 1, 2, failed.id) == (
        group.type,
        group.error,
        group.count,
        group.retrying,
        group.sample,
    )
    clock.advance(2 * 3600)  # due again: no longer waiting for a time
    assert [(1, 0)] == [(group.count, group.retrying) for group in td.failures()]


def test_failures_around_midnight_are_one_problem(store, clock, td):
    day = 24 * HOUR
    clock.now = clock() // day * day + day - 30 * SECOND
    for _ in range(6):
        finish(store, FAILED)
        clock.advance(10)

    [problem] = td.problems()

    assert ("failing", '6 of 6 runs of type "noop" failed in the last 15 minutes') == (problem.code, problem.text)


def test_many_snoozes_do_not_hide_that_most_other_runs_fail(store, td):
    for _ in range(6):
        finish(store, FAILED)
    put(store)
    for _ in range(20):
        settle_one(store, take(store)[0], SNOOZED)

    [problem] = [problem for problem in td.problems() if problem.code == "failing"]

    assert problem.text.startswith('6 of 6 runs of type "noop" failed')


def test_a_worker_shows_the_jobs_that_it_runs(store, clock):
    enlist(store, "w1"), enlist(store, "w2")
    put_many(store, 2, "mail")
    put(store, "resize")
    first = clock()
    take(store, 1, "w1", types={"mail": None})
    clock.advance(5)
    take(store, 5, "w1")

    busy, idle = store.workers()

    assert (("mail", 2, first), ("resize", 1, first + 5 * SECOND)) == busy.doing
    assert (3, (), 0) == (busy.leases, idle.doing, idle.leases)


# Counts with a limit


def test_a_count_that_reaches_its_limit_is_shown_with_a_plus(store, td):
    put_many(store, 6)

    assert Count(6, True) == td.count()
    assert Count(5, False) == td.count(at_most=5)
    assert ("6", "5+", "10,000+") == (str(td.count()), str(td.count(at_most=5)), str(Count(10_000, False)))


def test_a_count_of_a_search_that_ends_early_is_not_exact(store, td, monkeypatch):
    monkeypatch.setattr("treadle.management.COUNT_LIMIT", 3)
    put_many(store, 5, payload='{"n":1}')

    assert Count(3, False) == td.count("payload.n:1")


def test_tabs_count_every_state_whatever_state_the_filter_names(store, clock, td):
    finish(store, FAILED, type="other"), put_many(store, 2), put(store, delay=HOUR)

    for filter in (None, "status:failed", "since:1h"):
        tabs = td.counts_by_state(filter)
        assert {"all": 4, "queued": 2, "scheduled": 1, "failed": 1} == {k: c.value for k, c in tabs.items() if c.value}
    assert {"all": 1, "failed": 1} == {k: c.value for k, c in td.counts_by_state("type:other").items() if c.value}
    assert Count(1, False) == td.counts_by_state(at_most=1)["queued"]
    waiting = ["queued", "scheduled", "retrying", "blocked"]
    assert ["all", *waiting, "processing", "completed", "failed", "cancelled"] == list(tabs)


def test_a_filter_and_an_option_cannot_say_the_same_thing_twice(td):
    with pytest.raises(BadOption, match="say it once"):
        td.jobs("type:a", type="b")


def test_usage_counts_by_minutes_of_the_clock(store, clock):
    """A run that ends in the last microsecond of a minute belongs to that minute."""
    put(store)
    [claimed] = take(store)
    clock.now = clock.start + MINUTE - 1
    settle_one(store, claimed, COMPLETED)

    [used] = store.usage(0, 1 << 40, 60, ())
    assert to_datetime(clock.start) == used.at
