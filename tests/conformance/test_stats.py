"""All jobs together: lanes, usage, speed, failures, and what workers do."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta

import pytest

from tests.conformance.helpers import FAILED, HOUR, RETRIED, enlist, finish, limit, put, put_many, settle_one, take
from treadle import Treadle
from treadle.clock import MINUTE, SECOND, to_datetime
from treadle.errors import BadOption
from treadle.job import Count
from treadle.outcome import CANCELLED, COMPLETED, RELEASED, Outcome, OutcomeKind
from treadle.stores.shared import stats

LATER = Outcome(OutcomeKind.RETRIED, error="TimeoutError: no answer", delay=600 * SECOND)


@pytest.fixture
def desk(store, clock):
    """The same database, as people ask."""
    app = Treadle(store.url, clock=clock)
    yield app
    app.close()


# Lanes


def lane_of(store, queue, type):
    [lane] = [lane for lane in store.queue_stats() if (lane.queue, lane.type) == (queue, type)]
    return lane


def test_without_jobs_there_are_no_lanes(store):
    assert [] == store.queue_stats()


def test_a_lane_has_what_waits_runs_and_has_ended(store):
    for outcome in (COMPLETED, COMPLETED, FAILED, CANCELLED, LATER):
        claimed = [put(store, "mail", queue="q"), *take(store)][1]
        assert settle_one(store, claimed, outcome)
    put_many(store, 3, "mail", queue="q")
    take(store, 1)
    put_many(store, 4, "mail", queue="q", delay=HOUR)

    lane = lane_of(store, "q", "mail")

    assert (2, 4, 1) == (lane.counts["queued"], lane.counts["scheduled"], lane.counts["retrying"])
    assert (1, 2, 1, 1) == (
        lane.counts["processing"],
        lane.counts["completed"],
        lane.counts["failed"],
        lane.counts["cancelled"],
    )
    assert (None, True) == (lane.limit, lane.exact)


def test_lanes_are_by_queue_and_type(store):
    for queue, type in (("b", "x"), ("a", "y"), ("a", "x")):
        put(store, type, queue=queue)

    assert [("a", "x"), ("a", "y"), ("b", "x")] == [(lane.queue, lane.type) for lane in store.queue_stats()]


def test_the_oldest_and_the_next_are_found_at_every_priority(store, clock):
    now = clock()
    for priority, (due, later) in {5: (10, 40), 0: (30, 20), -3: (20, 30)}.items():
        put(store, priority=priority, run_at=now - due * SECOND)
        put(store, priority=priority, run_at=now - 1)
        put(store, priority=priority, run_at=now + later * SECOND)
        put(store, priority=priority, run_at=now + HOUR)
    put(store, priority=9, run_at=now + 25 * SECOND)

    lane = lane_of(store, "default", "noop")

    assert (now - 30 * SECOND, now + 20 * SECOND) == (lane.oldest_due, lane.next_due)
    assert (6, 7) == (lane.counts["queued"], lane.counts["scheduled"])


def test_what_is_due_this_very_moment_is_queued(store, clock):
    put(store, run_at=clock())
    put(store, run_at=clock() + 1)

    lane = lane_of(store, "default", "noop")

    assert (1, 1, clock(), clock() + 1) == (
        lane.counts["queued"],
        lane.counts["scheduled"],
        lane.oldest_due,
        lane.next_due,
    )


def test_a_lane_knows_the_limit_of_its_type(store):
    limit(store, "noop", 3)
    put(store)

    assert 3 == lane_of(store, "default", "noop").limit


def test_a_lane_in_which_nothing_waits_has_no_oldest(store):
    finish(store, COMPLETED)

    lane = lane_of(store, "default", "noop")

    assert (0, None, None) == (lane.counts["queued"], lane.oldest_due, lane.next_due)


# Usage


def journal(store, clock, runs):
    """Runs in many minutes, and what they are: (second, type, queue, tenant, outcome, busy, waiting)."""
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


def told(usage):
    return [((int(u.at.timestamp()), *u.key), u.runs, u.completed, u.failures, u.busy, u.waiting) for u in usage]


def test_usage_adds_up_to_a_journal_of_the_runs(store, clock):
    written = journal(store, clock, 60)
    first, last = written[0][0] // 60 * 60, clock() // SECOND + 1

    for by in ((), ("type",), ("queue", "type"), ("tenant", "type", "queue")):
        for step in (60, 300, 3600):
            assert told(store.usage(first, last, step, by)) == summed(written, by, step), (by, step)
    of_t = [run for run in written if run[3] == "t"]
    assert told(store.usage(first, last, 60, ("type",), "t")) == summed(of_t, ("type",), 60)
    assert [] == store.usage(first, last, 60, ("type",), "nobody")


def test_what_was_given_back_is_no_run(store):
    put(store)
    settle_one(store, take(store)[0], RELEASED)

    assert [] == store.usage(0, 1 << 40, 60, ("type",))


def test_a_stretch_of_usage_has_its_start_and_not_its_end(store, clock, desk):
    """So that one hour after the other counts each run once."""
    start = to_datetime(clock())
    for _ in range(4):
        finish(store, COMPLETED)
        clock.advance(60)
    minute = timedelta(minutes=1)

    def runs(since, until):
        return sum(used.runs for used in desk.usage(since, until))

    assert 1 == runs(start, start + minute)
    assert 2 == runs(start + minute, start + 3 * minute)
    assert 4 == runs(start, start + 4 * minute)
    assert 2 == runs(start + minute / 2, start + minute * 1.5)  # a minute is counted as a whole
    assert 0 == runs(start - minute, start)


def test_usage_up_to_now_has_what_ended_just_now(store, clock, desk):
    finish(store, COMPLETED)

    assert 1 == sum(used.runs for used in desk.usage())
    clock.advance(3600)
    assert 1 == sum(used.runs for used in desk.usage(timedelta(hours=1)))
    clock.advance(60)
    assert 0 == sum(used.runs for used in desk.usage(timedelta(hours=1)))


@pytest.mark.parametrize("wrong", [{"by": ("colour",)}, {"by": "status"}, {"step": 30}, {"step": 90}, {"step": 0}])
def test_usage_by_something_else_is_refused(desk, wrong):
    with pytest.raises(BadOption):
        desk.usage(**wrong)


# Speed, failures, problems


def test_the_newest_jobs_tell_how_long_they_waited_and_ran(store, clock, desk):
    for ran in (1, 2, 3):
        put(store, "mail", queue="q")
        clock.advance(5)
        [claimed] = take(store)
        clock.advance(ran)
        settle_one(store, claimed, COMPLETED if ran < 3 else FAILED)
    store.cancel(put(store).id)  # which never ran

    assert [("mail", "q", 5 * SECOND, ran * SECOND) for ran in (3, 2, 1)] == store.latency_sample()
    assert (3, 5.0, 2.0, 3.0) == tuple(
        getattr(desk.latency()["mail"], n) for n in ("jobs", "wait_p50", "run_p50", "run_p95")
    )


def test_many_that_never_ran_are_not_all_read_to_find_one_that_did(store, monkeypatch):
    monkeypatch.setattr(stats, "SAMPLED_FROM", 5)
    finish(store, COMPLETED)
    for _ in range(4):
        store.cancel(put(store).id)

    assert 1 == len(store.latency_sample())
    store.cancel(put(store).id)
    assert [] == store.latency_sample()


def test_failures_are_grouped_by_type_and_error_the_latest_first(store, clock, desk):
    errors = ("KeyError: 'a'", "KeyError: 'b'", "Boom", None, "ValueError: x: y")
    made = {}
    for type in ("mail", "resize"):
        for error in errors:
            clock.advance(1)
            made[type, error] = finish(store, Outcome(OutcomeKind.FAILED, error=error), type=type)
    finish(store, COMPLETED), finish(store, CANCELLED)
    settle_one(store, [put(store), *take(store)][1], RETRIED)

    groups = [group for group in desk.failures() if group.count]

    last, first = made["mail", "KeyError: 'b'"], made["mail", "KeyError: 'a'"]
    assert [("resize", e, n) for e, n in (("ValueError", 1), ("", 1), ("Boom", 1), ("KeyError", 2))] == [
        (group.type, group.error, group.count) for group in groups[:4]
    ]
    assert (last.id, first.completed_at, last.completed_at) == (groups[7].sample, groups[7].first_at, groups[7].last_at)
    assert 10 == sum(group.count for group in groups)


def test_errors_of_jobs_that_wait_for_a_retry_are_among_the_failures(store, clock, desk):
    """They are counted apart: they may still complete."""
    boom = Outcome(OutcomeKind.RETRIED, delay=HOUR, error="KeyError: 'a'")
    put_many(store, 2)
    for claimed in take(store, 2):
        settle_one(store, claimed, boom)
    failed = finish(store, Outcome(OutcomeKind.FAILED, error="KeyError: 'b'"))
    put(store, delay=HOUR)  # scheduled: it has no error

    [group] = desk.failures()

    assert ("noop", "KeyError", 1, 2, failed.id) == (
        group.type,
        group.error,
        group.count,
        group.retrying,
        group.sample,
    )
    clock.advance(2 * 3600)  # due again: no longer waiting for a time
    assert [(1, 0)] == [(group.count, group.retrying) for group in desk.failures()]


def test_failures_around_midnight_are_one_problem(store, clock, desk):
    day = 24 * HOUR
    clock.now = clock() // day * day + day - 30 * SECOND
    for _ in range(6):
        finish(store, FAILED)
        clock.advance(10)

    [problem] = desk.problems()

    assert ("failing", '6 of 6 runs of type "noop" failed in the last 15 minutes') == (problem.code, problem.text)


def test_a_worker_does_what_it_has_in_hand(store, clock):
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


# Counts for people


def test_a_count_beyond_what_was_asked_for_says_at_least(store, desk):
    put_many(store, 6)

    assert Count(6, True) == desk.count()
    assert Count(5, False) == desk.count(at_most=5)
    assert ("6", "5+", "10,000+") == (str(desk.count()), str(desk.count(at_most=5)), str(Count(10_000, False)))


def test_a_search_that_is_cut_short_counts_at_least_so_many(store, desk, monkeypatch):
    monkeypatch.setattr("treadle.management.SEARCHED", 3)
    put_many(store, 5, payload='{"n":1}')

    assert Count(3, False) == desk.count("payload.n:1")


def test_tabs_count_every_state_whatever_the_filter_says_of_it(store, clock, desk):
    finish(store, FAILED, type="other"), put_many(store, 2), put(store, delay=HOUR)

    for filter in (None, "status:failed", "since:1h"):
        tabs = desk.counts_by_state(filter)
        assert {"all": 4, "queued": 2, "scheduled": 1, "failed": 1} == {k: c.value for k, c in tabs.items() if c.value}
    assert {"all": 1, "failed": 1} == {k: c.value for k, c in desk.counts_by_state("type:other").items() if c.value}
    assert Count(1, False) == desk.counts_by_state(at_most=1)["queued"]
    assert ["all", "queued", "scheduled", "retrying", "processing", "completed", "failed", "cancelled"] == list(tabs)


def test_a_filter_and_an_option_cannot_say_the_same_thing_twice(desk):
    with pytest.raises(BadOption, match="say it once"):
        desk.jobs("type:a", type="b")


def test_minutes_are_those_of_the_clock(store, clock):
    """A run that ends in the last microsecond of a minute is that minute's."""
    put(store)
    [claimed] = take(store)
    clock.now = clock.start + MINUTE - 1
    settle_one(store, claimed, COMPLETED)

    [used] = store.usage(0, 1 << 40, 60, ())
    assert to_datetime(clock.start) == used.at
